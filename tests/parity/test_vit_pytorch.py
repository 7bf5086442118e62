"""The ViT and the SimpleViT of vit-pytorch have the same output in Vitrail."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from einops import rearrange
from einops.layers.torch import Rearrange
from torch import Tensor, nn
from torch.testing import assert_close

from tests.reference_libraries import randomise_sharply, reference_library
from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.weights.load import load

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.backends.cuda.sdp_kernel:FutureWarning"),  # of its flash attention
]
SMALL = {"image_size": 24, "patch_size": 6, "num_classes": 5, "dim": 24, "depth": 2, "heads": 3, "dim_head": 8, "mlp_dim": 40}


def build(module: str = "vit", name: str = "ViT", **options: Any) -> Any:
    reference_library("vit_pytorch")
    return randomise_sharply(getattr(import_module(f"vit_pytorch.{module}"), name)(**{**SMALL, **options}))


def assert_equal(theirs: Any, path: Path, **options: Any) -> Any:
    """Write their weights, load and compare them."""
    torch.save(theirs.state_dict(), path)
    ours = load(path, **options)
    images = 0.01 * torch.randn(2, ours.config.channels, *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)
    return ours


CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "ViT": ("vit", "ViT", {}, {}),
    "ViT, mean": ("vit", "ViT", {"pool": "mean"}, {}),
    "ViT, one channel": ("vit", "ViT", {"channels": 1}, {}),
    "ViT, not square": ("vit", "ViT", {"image_size": (24, 42)}, {"grid": (4, 7)}),
    "ViT, one head without a projection": ("vit", "ViT", {"heads": 1, "dim_head": 24}, {"heads": None}),
    "ViT, distillable": ("distill", "DistillableViT", {}, {}),
    "ViT with patch dropout, in older names": ("vit_with_patch_dropout", "ViT", {}, {}),
    "SimpleViT": ("simple_vit", "SimpleViT", {}, {"image": 24}),
    "SimpleViT, registers": ("simple_vit_with_register_tokens", "SimpleViT", {}, {"image": 24}),
    "SimpleViT, flash attention": ("simple_flash_attn_vit", "SimpleViT", {}, {"image": 24}),
}


@pytest.mark.parametrize(("module", "name", "theirs", "ours"), CASES.values(), ids=CASES.keys())
def test_theirs_is_ours(module: str, name: str, theirs: dict[str, Any], ours: dict[str, Any], tmp_path: Path) -> None:
    model = assert_equal(build(module, name, **theirs), tmp_path / "vit.pt", **{"heads": 3, **ours})
    assert model.load_report.origin == "vit_pytorch"


def test_a_simple_vit_at_another_size_has_another_table(tmp_path: Path) -> None:
    """Its positions are computed, so that they are not resized."""
    theirs = build("simple_vit", "SimpleViT", image_size=(36, 18))
    ours = assert_equal(theirs, tmp_path / "vit.pt", heads=3, image=(36, 18))
    assert isinstance(ours.config, ViTConfig)
    assert ours.config.position == "sincos2d"


class PreNorm(nn.Module):
    """A branch with its norm, as in versions before 1.2.3."""

    def __init__(self, norm: nn.Module, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = norm, fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))


class OldAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.to_out = nn.Linear(24, 72, bias=False), nn.Sequential(nn.Linear(24, 24), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.to_qkv(x), "b t (three h k) -> three b h t k", three=3, h=3)
        weights = (q @ k.mT * 8**-0.5).softmax(dim=-1)
        return self.to_out(rearrange(weights @ v, "b h t k -> b t (h k)"))


class OldViT(nn.Module):
    """The ViT of vit-pytorch 1.0: no norm of the patches, and the last norm in the head."""

    def __init__(self) -> None:
        super().__init__()
        patches = Rearrange("b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=6, p2=6)
        self.to_patch_embedding = nn.Sequential(patches, nn.Linear(108, 24))
        self.pos_embedding, self.cls_token = nn.Parameter(torch.randn(1, 17, 24)), nn.Parameter(torch.randn(1, 1, 24))
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList()
        for _ in range(2):
            mlp = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Dropout(0.0), nn.Linear(40, 24), nn.Dropout(0.0))
            net = nn.Module()
            net.net = mlp
            net.forward = mlp.forward
            branches = [PreNorm(nn.LayerNorm(24), OldAttention()), PreNorm(nn.LayerNorm(24), net)]
            self.transformer.layers.append(nn.ModuleList(branches))
        self.mlp_head = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 5))

    def forward(self, images: Tensor) -> Tensor:
        x = self.to_patch_embedding(images)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embedding
        layers: Any = self.transformer.layers
        for attention, mlp in layers:
            x = x + attention(x)
            x = x + mlp(x)
        return self.mlp_head(x[:, 0])


def test_an_old_file_is_read_with_its_pooling_assumed(tmp_path: Path) -> None:
    ours = assert_equal(randomise_sharply(OldViT()), tmp_path / "vit.pt", heads=3)
    assert any(line.startswith("the pooling cls (vit-pytorch's default") for line in ours.load_report.assumed)
    with pytest.raises(VitrailError, match="the mean of vit-pytorch includes the class token"):
        load(tmp_path / "vit.pt", heads=3, pool="gap")


def test_the_student_of_a_distillation_is_found(tmp_path: Path) -> None:
    theirs = build("distill", "DistillableViT")
    state = {f"student.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({**state, "distillation_token": torch.randn(1, 24)}, tmp_path / "distilled.pt")
    ours = load(tmp_path / "distilled.pt", heads=3)
    images = 0.01 * torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)
    assert ours.load_report.unused == ("distillation_token",)


def test_weights_in_bfloat16_are_near(tmp_path: Path) -> None:
    theirs = build("simple_vit", "SimpleViT")
    torch.save({name: tensor.bfloat16() for name, tensor in theirs.state_dict().items()}, tmp_path / "vit.pt")
    ours = load(tmp_path / "vit.pt", heads=3, image=24)
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=0.1)


def test_heads_of_64_channels_are_assumed(tmp_path: Path) -> None:
    ours = assert_equal(build(dim=128, heads=2, dim_head=64), tmp_path / "vit.pt")
    assert any(line.startswith("2 heads") for line in ours.load_report.assumed)


OTHERS = {  # models of vit-pytorch that compute something else
    "deepvit": "DeepViT",
    "learnable_memory_vit": "ViT",
    "parallel_vit": "ViT",
    "rvt": "RvT",
    "simple_vit_with_qk_norm": "SimpleViT",
    "simple_vit_with_value_residual": "SimpleViT",
    "vit_detpool": "ViTDetPool",
    "vit_with_decorr": "ViT",
}


@pytest.mark.parametrize(("module", "name"), OTHERS.items(), ids=OTHERS.keys())
def test_their_other_models_are_refused(module: str, name: str, tmp_path: Path) -> None:
    torch.save(build(module, name).state_dict(), tmp_path / "vit.pt")
    with pytest.raises(VitrailError, match=r"the file (has|lacks)|must have 2"):
        load(tmp_path / "vit.pt", heads=3, image=24)


def test_heads_of_another_total_width_are_refused(tmp_path: Path) -> None:
    torch.save(build(dim_head=64).state_dict(), tmp_path / "vit.pt")
    with pytest.raises(VitrailError, match="heads of another total width than the model's, 192 and 24"):
        load(tmp_path / "vit.pt")


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("pos_embedding", "the file lacks pos_embedding"),
        ("to_patch_embedding.3.bias", "the file lacks to_patch_embedding.3.bias"),
        ("transformer.layers.0.0.to_qkv.weight", "the file lacks the to_qkv of the first layer"),
        ("transformer.layers.1.0.to_out.0.bias", "the file lacks blocks.1.attn.proj.bias .in the names of timm"),
        ("transformer.layers.1.1.net.4.weight", "the file lacks blocks.1.mlp.fc2.weight .in the names of timm"),
    ],
)
def test_a_missing_tensor_gives_one_sentence(missing: str, sentence: str, tmp_path: Path) -> None:
    state = build().state_dict()
    del state[missing]
    torch.save(state, tmp_path / "vit.pt")
    with pytest.raises(VitrailError, match=sentence):
        load(tmp_path / "vit.pt", heads=3)
