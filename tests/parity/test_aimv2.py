"""AIMv2 in the names of its own code equals timm's with the same weights."""

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from tests.reference_libraries import randomise_sharply, reference_library, rename_tensors
from vitrail.errors import VitrailError
from vitrail.weights.load import load

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
# as in aim-v2/aim/v2/torch/models.py of apple/ml-aim
NAMES = {
    r"^patch_embed\.": "preprocessor.patchifier.",
    r"^pos_embed$": "preprocessor.pos_embed",
    r"^blocks\.": "trunk.blocks.",
    r"^norm\.": "trunk.post_trunk_norm.",
    r"\.norm([12])\.": r".norm_\1.",
    r"\.mlp\.fc1_g\.": ".mlp.fc1.",
    r"\.mlp\.fc1_x\.": ".mlp.fc3.",
}


def build(**options: Any) -> Any:
    reference_library("timm")
    layers = import_module("timm.layers")
    norm = partial(layers.RmsNorm, eps=1e-5)
    small = {"img_size": 24, "patch_size": 6, "num_classes": 0, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
    aimv2 = {"class_token": False, "fc_norm": False, "global_pool": "avg", "qkv_bias": False, "proj_bias": False}
    layer_types = {"act_layer": "silu", "norm_layer": norm, "embed_norm_layer": norm, "mlp_layer": layers.SwiGLU}
    vision_transformer = import_module("timm.models.vision_transformer").VisionTransformer
    return randomise_sharply(vision_transformer(**{**small, **aimv2, **layer_types, **options}))


def write(state: dict[str, Tensor], folder: Path, **config: Any) -> Path:
    save_file(state, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.safetensors"


def assert_equal(theirs: Any, ours: Any) -> None:
    images = 0.01 * torch.randn(2, 3, *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


def test_the_authors_file_is_timms(tmp_path: Path) -> None:
    theirs = build()
    ours = load(write(rename_tensors(theirs.state_dict(), NAMES), tmp_path), heads=3)
    assert_equal(theirs, ours)
    assert ours.load_report.origin == "aimv2"
    assert ours.preprocess is not None
    assert ours.preprocess.mean[0] == 0.48145466


def test_timm_reads_the_same_names() -> None:
    theirs = build()
    file = rename_tensors(theirs.state_dict(), NAMES)
    read = import_module("timm.models.vision_transformer").checkpoint_filter_fn(file, theirs)
    assert set(read) == set(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert_close(read[name], tensor, rtol=0, atol=0)


def test_heads_are_128_wide(tmp_path: Path) -> None:
    theirs = build(embed_dim=256, num_heads=2, mlp_ratio=0.5)
    assert_equal(theirs, load(write(rename_tensors(theirs.state_dict(), NAMES), tmp_path)))


def test_the_config_of_a_folder_says_its_heads(tmp_path: Path) -> None:
    theirs = build()
    state = rename_tensors(theirs.state_dict(), NAMES)
    write(state, tmp_path, model_type="aimv2", num_attention_heads=3, auto_map={"AutoModel": "modeling_aimv2.AIMv2Model"})
    assert_equal(theirs, load(tmp_path))
    with pytest.raises(VitrailError, match="must be of an aimv2 with these tensors, got 'other'"):
        load(write(state, tmp_path, model_type="other"))


def test_another_image_size_resizes_the_table(tmp_path: Path) -> None:
    theirs = build()
    ours = load(write(rename_tensors(theirs.state_dict(), NAMES), tmp_path), heads=3, image=(18, 42))
    larger = build(img_size=(18, 42))
    square = theirs.pos_embed.data.reshape(1, 4, 4, 24).permute(0, 3, 1, 2)
    table = F.interpolate(square, (3, 7), mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    larger.load_state_dict({**theirs.state_dict(), "pos_embed": table})
    assert_equal(larger, ours)


def test_weights_in_bfloat16_are_near(tmp_path: Path) -> None:
    theirs = build()
    state = {name: tensor.bfloat16() for name, tensor in rename_tensors(theirs.state_dict(), NAMES).items()}
    ours = load(write(state, tmp_path), heads=3)
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"preprocessor.pos_embed": None}, "no preprocessor.pos_embed, as AIMv2's model for images of any size"),
        ({"trunk.post_trunk_norm.weight": None}, "the file lacks trunk.post_trunk_norm.weight"),
        ({"trunk.blocks.1.attn.proj.weight": None}, "the file lacks blocks.1.attn.proj.weight .in the names of timm"),
        ({"trunk.blocks.1.mlp.fc3.weight": None}, "the file lacks blocks.1.mlp.fc1.weight .in the names of timm"),
        ({f"trunk.blocks.{layer}.mlp.fc3.weight": None for layer in range(2)}, "only AIMv2 can be read"),
        ({"trunk.blocks.1.mlp.fc3.weight": torch.ones(48, 20)}, r"of one shape, got \[48, 24\] and \[48, 20\]"),
        ({"head.cls_token": torch.ones(1, 1, 24)}, "the attention pooling of AIMv2's LiT model"),
    ],
)
def test_another_model_gives_one_sentence(changes: dict[str, Tensor | None], sentence: str, tmp_path: Path) -> None:
    state: dict[str, Any] = {**rename_tensors(build().state_dict(), NAMES), **changes}
    with pytest.raises(VitrailError, match=sentence):
        load(write({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path), heads=3)


def test_a_width_without_a_usual_number_of_heads_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="AIMv2's heads are 128 wide, got a model 24 wide; give heads="):
        load(write(rename_tensors(build().state_dict(), NAMES), tmp_path))
