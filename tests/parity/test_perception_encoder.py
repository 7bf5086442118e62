"""The Perception Encoder in the names of its authors equals timm's with the same weights, and is never taken for CLIP."""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from tests.reference_libraries import randomise_sharply, reference_library, rename_tensors
from vitrail.errors import VitrailError
from vitrail.weights.load import load

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SHARED: dict[str, Any] = {
    "img_size": 24,
    "patch_size": 6,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 3,
    "mlp_ratio": 2,
    "attn_type": "rope",
    "use_pre_transformer_norm": True,
    "use_rot_pos_emb": True,
    "ref_feat_shape": (4, 4),
    "rope_grid_indexing": "xy",
    "norm_layer": partial(nn.LayerNorm, eps=1e-5),
}
CORE = {**SHARED, "num_classes": 7, "global_pool": "map", "attn_pool_num_heads": 8, "attn_pool_mlp_ratio": 3.0}
TOKENS = {**SHARED, "num_classes": 0, "use_post_transformer_norm": False, "use_fc_norm": False}
WITH_CLASS = {"rope_grid_offset": 1.0}
WITHOUT_CLASS = {"class_token": False}
# as in core/vision_encoder/pe.py of facebookresearch/perception_models
NAMES = {
    r"^patch_embed\.proj\.": "conv1.",
    r"^pos_embed$": "positional_embedding",
    r"^cls_token$": "class_embedding",
    r"^norm_pre\.": "ln_pre.",
    r"^norm\.": "ln_post.",
    r"^blocks\.": "transformer.resblocks.",
    r"\.norm([12])\.": r".ln_\1.",
    r"\.gamma_([12])$": r".ls_\1.gamma",
    r"^attn_pool\.(q|kv|proj)\.": r"attn_pool.attn.\1.",
    r"\.attn\.qkv\.": ".attn.in_proj_",
    r"\.attn\.proj\.": ".attn.out_proj.",
    r"^attn_pool\.norm\.": "attn_pool.layernorm.",
    r"^attn_pool\.latent$": "attn_pool.probe",
    r"\.mlp\.fc1\.": ".mlp.c_fc.",
    r"\.mlp\.fc2\.": ".mlp.c_proj.",
}
TEXT = {
    "positional_embedding": torch.ones(3, 4),
    "text_projection": torch.ones(4, 7),
    "logit_scale": torch.ones(()),
    "token_embedding.weight": torch.ones(9, 4),
    "transformer.resblocks.0.ln_1.weight": torch.ones(4),
    "ln_final.weight": torch.ones(4),
}


def build(**options: Any) -> Any:
    reference_library("timm")
    model: Any = randomise_sharply(import_module("timm.models.eva").Eva(**options))
    if options.get("num_classes"):
        nn.init.zeros_(model.head.bias)  # the authors' projection has none
    return model


def to_authors(model: Any, prefix: str = "visual.") -> dict[str, Tensor]:
    """Return the tensors of timm's model in the authors' names, with their axes."""
    state = rename_tensors(model.state_dict(), NAMES)
    state["positional_embedding"] = state["positional_embedding"][0]
    if "class_embedding" in state:
        state["class_embedding"] = state["class_embedding"][0, 0]
    if "head.weight" in state:
        state["proj"] = state.pop("head.weight").T.contiguous()
        state.pop("head.bias")
    for part in ("weight", "bias"):
        if f"attn_pool.attn.q.{part}" in state:
            joint = torch.cat([state.pop(f"attn_pool.attn.{name}.{part}") for name in ("q", "kv")])
            state[f"attn_pool.attn.in_proj_{part}"] = joint
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def write(state: dict[str, Tensor], path: Path) -> Path:
    torch.save(state, path)
    return path


def assert_equal(theirs: Any, ours: Any) -> None:
    images = 0.01 * torch.randn(2, 3, *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


CASES: dict[str, dict[str, Any]] = {
    "core": {**CORE, **WITH_CLASS},
    "core, without a class token": {**CORE, **WITHOUT_CLASS},
    "spatial": {**TOKENS, **WITH_CLASS},
    "lang": {**TOKENS, **WITH_CLASS, "init_values": 0.1},
    "lang, without a class token": {**TOKENS, **WITHOUT_CLASS, "init_values": 0.1},
}


@pytest.mark.parametrize("prefix", ["visual.", "", "module.visual."])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_the_authors_files_are_timms(options: dict[str, Any], prefix: str, tmp_path: Path) -> None:
    theirs = build(**options)
    ours = load(write(to_authors(theirs, prefix), tmp_path / "PE.pt"), heads=3)
    assert_equal(theirs, ours)
    assert ours.load_report.origin == "perception_encoder"
    assert any(line.startswith("rotary positions") for line in ours.load_report.assumed) == (
        "attn_pool_num_heads" not in options
    )


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_timm_reads_the_same_names(options: dict[str, Any]) -> None:
    theirs = build(**options)
    read = import_module("timm.models.eva").checkpoint_filter_fn(to_authors(theirs), theirs)
    assert set(read) == set(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert_close(read[name], tensor, rtol=0, atol=0)


def test_the_text_tower_is_left_aside(tmp_path: Path) -> None:
    theirs = build(**CORE, **WITH_CLASS)
    ours = load(write({**to_authors(theirs), **TEXT}, tmp_path / "PE-Core.pt"), heads=3)
    assert_equal(theirs, ours)
    assert set(ours.load_report.unused) == set(TEXT)
    assert ours.preprocess is not None
    assert ours.preprocess.fit == "stretch"


@pytest.mark.parametrize("options", [CASES["core"], CASES["lang, without a class token"]], ids=["core", "lang"])
def test_larger_images_are_taken_as_by_the_authors(options: dict[str, Any], tmp_path: Path) -> None:
    """They interpolate the table linearly, and count rows and columns on, without rescaling."""
    theirs = build(**options)
    ours = load(write(to_authors(theirs), tmp_path / "PE.pt"), heads=3, image=(30, 42))
    larger = build(**{**options, "img_size": (30, 42), "ref_feat_shape": (5, 7)})
    table = theirs.pos_embed.data
    prefix = table.shape[1] - 16
    grid = F.interpolate(table[:, prefix:].reshape(1, 4, 4, 48).permute(0, 3, 1, 2), (5, 7), mode="bilinear")
    resized = torch.cat([table[:, :prefix], grid.flatten(2).transpose(1, 2)], dim=1)
    larger.load_state_dict({**theirs.state_dict(), "pos_embed": resized})
    assert_equal(larger, ours)


def test_weights_in_bfloat16_are_near(tmp_path: Path) -> None:
    theirs = build(**CORE, **WITH_CLASS)
    state = {name: tensor.bfloat16() for name, tensor in to_authors(theirs).items()}
    ours = load(write(state, tmp_path / "PE.pt"), heads=3)
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=0.1)


def test_the_size_g_has_16_heads(tmp_path: Path) -> None:
    theirs = build(**{**TOKENS, **WITHOUT_CLASS, "embed_dim": 1536, "depth": 1, "num_heads": 16, "mlp_ratio": 0.01})
    assert_equal(theirs, load(write(to_authors(theirs), tmp_path / "PE.pt")))


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("visual.positional_embedding", "the file lacks visual.positional_embedding"),
        ("visual.ln_post.weight", "the file lacks visual.ln_post.weight"),
        ("visual.transformer.resblocks.1.attn.out_proj.bias", "the file lacks blocks.1.attn.proj.bias .in the names of timm"),
        ("visual.attn_pool.attn.in_proj_weight", "the file lacks attn_pool.q.weight, attn_pool.kv.weight"),
    ],
)
def test_a_missing_tensor_gives_one_sentence(missing: str, sentence: str, tmp_path: Path) -> None:
    state = to_authors(build(**CORE, **WITH_CLASS))
    del state[missing]
    with pytest.raises(VitrailError, match=sentence):
        load(write(state, tmp_path / "PE.pt"), heads=3)


def test_a_clip_without_its_last_norm_is_not_taken_for_one(tmp_path: Path) -> None:
    state = to_authors(build(**TOKENS, **WITH_CLASS))
    with pytest.raises(VitrailError, match="a text tower and an image tower without a last norm"):
        load(write({**state, **TEXT}, tmp_path / "clip.pt"), heads=3)
    with pytest.raises(VitrailError, match=r"the file lacks ln_post.weight, which every CLIP tower has"):
        load(write({**state, "visual.proj": torch.ones(48, 7)}, tmp_path / "clip.pt"), heads=3, gelu="quick")


def test_the_attention_pooling_cannot_be_replaced(tmp_path: Path) -> None:
    path = write(to_authors(build(**CORE, **WITH_CLASS)), tmp_path / "PE.pt")
    with pytest.raises(VitrailError, match="pool must be 'map' for a model with attention pooling, got 'gap'"):
        load(path, heads=3, pool="gap")
