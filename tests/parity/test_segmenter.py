"""Segmenter in its published layout equals the paper's equations with the same weights, read and written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.reference_libraries import randomise_sharply, rename_tensors
from vitrail.errors import VitrailError
from vitrail.tasks.segmentation_model import LinearSegmenter, MaskTransformerSegmenter
from vitrail.weights.convert.segmenter import parse_variant

pytestmark = pytest.mark.parity
SIZE, PATCH, WIDTH, HEADS, DEPTH, CLASSES = (24, 40), 8, 128, 2, 3, 7
VARIANT = """\
algorithm_kwargs:
  batch_size: 8
dataset_kwargs:
  dataset: ade20k
  normalization: NORMALIZATION
net_kwargs:
  backbone: vit_tiny_patch16_384
  d_model: 128
  decoder:
    drop_path_rate: 0.0
    dropout: 0.1
    n_layers: 2
    name: mask_transformer
  image_size: !!python/tuple
  - 24
  - 40
  n_cls: 7
  n_heads: 2
  n_layers: 3
  normalization: NORMALIZATION
optimizer_kwargs:
  lr: 0.001
"""


class Layer(nn.Module):
    """x + MSA(LN(x)), then x + MLP(LN(x)), in the names of the published files."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.attn["qkv"](self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(2, 3) / (d // self.heads) ** 0.5, dim=-1)
        x = x + self.attn["proj"]((weights @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, distilled: bool) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, WIDTH, PATCH, PATCH)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.dist_token = nn.Parameter(torch.zeros(1, 1, WIDTH)) if distilled else None
        self.pos_embed = nn.Parameter(torch.zeros(1, 15 + 1 + distilled, WIDTH))
        self.blocks = nn.ModuleList(Layer(WIDTH, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1000)
        self.head_dist = nn.Linear(WIDTH, 1000) if distilled else None

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed["proj"](images)
        grid = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        extra = [token.expand(len(x), -1, -1) for token in (self.cls_token, self.dist_token) if token is not None]
        table = self.pos_embed[:, len(extra) :].transpose(1, 2).reshape(1, WIDTH, SIZE[0] // PATCH, SIZE[1] // PATCH)
        if grid != table.shape[2:]:
            table = F.interpolate(table, grid, mode="bilinear")
        positions = torch.cat([self.pos_embed[:, : len(extra)], table.flatten(2).transpose(1, 2)], dim=1)
        x = torch.cat([*extra, x], dim=1) + positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, len(extra) :]


class LinearDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class MaskDecoder(nn.Module):
    """The paper's section 3.2: masks are the products of normalised patch and class embeddings."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.cls_emb = nn.Parameter(torch.zeros(1, CLASSES, width))
        self.proj_dec = nn.Linear(WIDTH, width)
        self.blocks = nn.ModuleList(Layer(width, width // 64) for _ in range(2))
        self.decoder_norm, self.mask_norm = nn.LayerNorm(width), nn.LayerNorm(CLASSES)
        self.proj_patch = nn.Parameter(torch.zeros(width, width))
        self.proj_classes = nn.Parameter(torch.zeros(width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.proj_dec(x), self.cls_emb.expand(len(x), -1, -1)], dim=1)
        for block in self.blocks:
            x = block(x)
        x = self.decoder_norm(x)
        patches, classes = x[:, :-CLASSES] @ self.proj_patch, x[:, -CLASSES:] @ self.proj_classes
        products = torch.einsum("bne,bke->bnk", patches, classes)
        lengths = patches.pow(2).sum(-1).sqrt()[:, :, None] * classes.pow(2).sum(-1).sqrt()[:, None]
        return self.mask_norm(products / lengths)


class Reference(nn.Module):
    def __init__(self, decoder: nn.Module, distilled: bool = False) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(distilled), decoder

    def forward(self, images: Tensor) -> Tensor:
        size = images.shape[2:]
        masks = self.decoder(self.encoder(images)).transpose(1, 2)
        return F.interpolate(masks.unflatten(2, (size[0] // PATCH, size[1] // PATCH)), size, mode="bilinear")


def build(decoder: str = "mask", distilled: bool = False, width: int = WIDTH) -> Any:
    torch.manual_seed(0)
    return randomise_sharply(Reference(MaskDecoder(width) if decoder == "mask" else LinearDecoder(), distilled))


def write(model: nn.Module, folder: Path, normalization: str | None = "vit", **entries: Any) -> Path:
    folder.mkdir(parents=True)
    if normalization:
        (folder / "variant.yml").write_text(VARIANT.replace("NORMALIZATION", normalization))
    content = {"model": model.state_dict(), "n_cls": CLASSES, "epoch": 63, **entries}
    torch.save(content, folder / "checkpoint.pth")
    return folder / "checkpoint.pth"


def assert_equal(theirs: Any, ours: Any) -> None:
    images = torch.randn(2, 3, *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize("decoder", ["mask", "linear"])
def test_a_published_file_is_read_with_its_decoder(decoder: str, distilled: bool, tmp_path: Path) -> None:
    theirs = build(decoder, distilled)
    ours: Any = vitrail.load(write(theirs, tmp_path / "seg", "deit" if distilled else "vit"))
    kind: Any = MaskTransformerSegmenter if decoder == "mask" else LinearSegmenter
    assert isinstance(ours, kind)
    assert_equal(theirs, ours)
    assert ours.preprocess.fit == "stretch"
    assert ours.preprocess.mean[0] == (0.485 if distilled else 0.5)
    assert ours.class_names == tuple("0123456")
    assert all("head" in name for name in ours.load_report.unused)


@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize("decoder", ["mask", "linear"])
def test_a_written_file_is_the_published_one(decoder: str, distilled: bool, tmp_path: Path) -> None:
    theirs = build(decoder, distilled)
    ours: Any = vitrail.load(write(theirs, tmp_path / "seg"))
    ours.encoder.class_names = ours.class_names = ("sky", 'a "b"', "ü", "d", "e", "f", "g: 1")
    vitrail.save(ours, tmp_path / "out", format="segmenter")
    content = torch.load(tmp_path / "out/checkpoint.pth", weights_only=True)
    other = build(decoder, distilled)
    other.load_state_dict(content["model"])  # every name and shape of theirs
    assert content["n_cls"] == CLASSES
    for source in (tmp_path / "out", tmp_path / "out/checkpoint.pth"):
        again: Any = vitrail.load(source)
        assert again.class_names == ours.class_names
        assert again.preprocess == ours.preprocess
        assert_equal(other, again)
    vitrail.save(ours, tmp_path / "out", format="segmenter")  # in its own place


def test_a_saved_model_of_ours_keeps_the_decoder(tmp_path: Path) -> None:
    theirs = build()
    vitrail.save(vitrail.load(write(theirs, tmp_path / "seg")), tmp_path / "ours")
    assert_equal(theirs, vitrail.load(tmp_path / "ours"))


MMSEGMENTATION = {  # as in mmseg/models/backbones/vit.py and decode_heads/segmenter_mask_head.py
    r"^encoder\.": "backbone.",
    r"^decoder\.": "decode_head.",
    r"^backbone\.norm\.": "backbone.ln1.",
    r"patch_embed\.proj\.": "patch_embed.projection.",
    r"\.blocks\.": ".layers.",
    r"\.norm([12])\.": r".ln\1.",
    r"\.attn\.qkv\.": ".attn.attn.in_proj_",
    r"\.attn\.proj\.": ".attn.attn.out_proj.",
    r"\.mlp\.fc1\.": ".ffn.layers.0.0.",
    r"\.mlp\.fc2\.": ".ffn.layers.1.",
    r"\.proj_dec\.": ".dec_proj.",
    r"\.proj_(patch|classes)$": r".\1_proj.weight",
}


def test_mmsegmentations_file_has_the_same_model(tmp_path: Path) -> None:
    theirs = build()
    for module in theirs.encoder.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    state = {name: tensor for name, tensor in theirs.state_dict().items() if not name.startswith("encoder.head")}
    state = {name: tensor.mT if "proj_patch" in name or "proj_cl" in name else tensor for name, tensor in state.items()}
    torch.save({"meta": {"iter": 9}, "state_dict": rename_tensors(state, MMSEGMENTATION)}, tmp_path / "segmenter.pth")
    ours: Any = vitrail.load(tmp_path / "segmenter.pth", grid=(3, 5))
    assert_equal(theirs, ours)
    assert ours.load_report.unused == ("meta",)


def test_another_image_size_resizes_the_table_as_the_authors_do(tmp_path: Path) -> None:
    theirs = build()
    ours = vitrail.load(write(theirs, tmp_path / "seg"), image=(32, 24))
    assert ours.config.image == (32, 24)
    assert_equal(theirs, ours)


def test_without_the_variant_what_is_assumed_is_said(tmp_path: Path) -> None:
    theirs = build(distilled=True)
    ours: Any = vitrail.load(write(theirs, tmp_path / "seg", None), grid=(3, 5))
    assert_equal(theirs, ours)
    said = " ".join(ours.load_report.assumed)
    for part in ("2 heads (64 channels per head", "2 heads in the mask transformer", "normalisation deit", "stretched"):
        assert part in said


def test_a_wider_mask_transformer_has_heads_of_its_own(tmp_path: Path) -> None:
    theirs = build(width=192)
    ours: Any = vitrail.load(write(theirs, tmp_path / "seg"))
    assert_equal(theirs, ours)
    with pytest.raises(VitrailError, match="cannot hold a mask transformer with another width than the encoder's"):
        vitrail.save(ours, tmp_path / "out", format="segmenter")


def test_wrong_files_and_models_are_refused(tmp_path: Path) -> None:
    state = build().state_dict()
    for number, (change, message) in enumerate(
        {
            "decoder.extra": "the file has decoder.extra, which Vitrail's Vision Transformers do not have",
            "decoder.proj_dec.weight": "the file lacks decoder.proj_dec.weight",
            "encoder.norm.extra": "the file has norm.extra, which",
        }.items()
    ):
        changed = {name: tensor for name, tensor in state.items() if name != change}
        changed |= {change: torch.zeros(3)} if change not in state else {}
        path = tmp_path / f"{number}.pth"
        torch.save({"model": changed}, path)
        with pytest.raises(VitrailError, match=message):
            vitrail.load(path, grid=(3, 5))
    with pytest.raises(VitrailError, match=r"normalization in variant.yml must be vit or deit, got 'clip'"):
        vitrail.load(write(build(), tmp_path / "clip", "clip"))
    with pytest.raises(VitrailError, match="cannot hold a model without a head of segmentation"):
        vitrail.save(vitrail.build("mu/8", image=32, classes=3), tmp_path / "out", format="segmenter")
    assert not (tmp_path / "out").exists()


def test_the_variant_is_written_as_yaml(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    ours: Any = vitrail.load(write(build(), tmp_path / "seg"))
    ours.encoder.class_names = names = ("sky", 'a "b"', "ü", "d", "e", "f", "g: 1")
    vitrail.save(ours, tmp_path / "out", format="segmenter")
    variant = yaml.load((tmp_path / "out/variant.yml").read_text(), Loader=yaml.FullLoader)
    assert variant["class_names"] == list(names)
    assert variant["net_kwargs"]["image_size"] == SIZE
    assert variant["net_kwargs"]["decoder"]["n_layers"] == 2
    assert not variant["net_kwargs"]["distilled"]


def test_the_variant_is_read_as_yaml() -> None:
    values = parse_variant(VARIANT.replace("NORMALIZATION", "vit"))
    assert values["net_kwargs.image_size"] == ["24", "40"]
    assert values["net_kwargs.decoder.name"] == ["mask_transformer"]
    assert values["net_kwargs.n_cls"] == ["7"]
    assert parse_variant("") == parse_variant("- 3\n?\x00: {\n") == {}
