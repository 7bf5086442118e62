"""CLIP in the names of OpenAI and open_clip equals transformers' CLIP with the same weights."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

from tests.parity.test_huggingface_towers import SMALL, build
from vitrail.errors import VitrailError
from vitrail.weights.load import load

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
RENAMES = [
    (r"^vision_model\.", "visual."),
    (r"embeddings\.class_embedding", "class_embedding"),
    (r"embeddings\.position_embedding\.weight", "positional_embedding"),
    (r"embeddings\.patch_embedding", "conv1"),
    (r"pre_layrnorm", "ln_pre"),
    (r"post_layernorm", "ln_post"),
    (r"encoder\.layers\.", "transformer.resblocks."),
    (r"layer_norm([12])", r"ln_\1"),
    (r"self_attn\.out_proj", "attn.out_proj"),
    (r"mlp\.fc1", "mlp.c_fc"),
    (r"mlp\.fc2", "mlp.c_proj"),
]


def clip(**options: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return transformers' CLIP tower with a projection, and its tensors in OpenAI's names, as its papers' code has them."""
    theirs = build("CLIPVisionModelWithProjection", "CLIPVisionConfig", **{**SMALL, "projection_dim": 7, **options})
    state: dict[str, Tensor] = {}
    for name, tensor in theirs.state_dict().items():
        renamed = name
        for old, new in RENAMES:
            renamed = re.sub(old, new, renamed)
        state[renamed] = tensor
    state["visual.proj"] = state.pop("visual_projection.weight").T.contiguous()
    for name in [name for name in state if ".self_attn.q_proj." in name]:
        parts = [state.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        state[re.sub(r"self_attn\.q_proj\.(weight|bias)", r"attn.in_proj_\1", name)] = torch.cat(parts)
    return theirs, state


def assert_equal(theirs: Any, ours: Any) -> None:
    images = 0.01 * torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), theirs(pixel_values=images).image_embeds, rtol=1e-5, atol=1e-5)


def test_openais_own_file_has_the_quick_gelu(tmp_path: Path) -> None:
    theirs, state = clip()
    text = {"text_projection": torch.ones(3, 3), "logit_scale": torch.ones(()), "input_resolution": torch.tensor(24)}
    torch.save({**state, **text}, tmp_path / "clip.pt")
    ours = load(tmp_path / "clip.pt", heads=3)
    assert_equal(theirs, ours)
    assert set(ours.load_report.unused) == set(text)
    assert ours.preprocess is not None
    assert (ours.preprocess.mean[0], ours.preprocess.resize_to) == (0.48145466, (24, 24))


def test_a_tower_alone_asks_for_its_gelu(tmp_path: Path) -> None:
    theirs, state = clip(hidden_act="gelu")
    save_file(state, tmp_path / "clip.safetensors")
    with pytest.raises(VitrailError, match="does not show its GELU; give gelu='quick'"):
        load(tmp_path / "clip.safetensors", heads=3)
    assert_equal(theirs, load(tmp_path / "clip.safetensors", heads=3, gelu="exact"))


@pytest.mark.parametrize("quick", [True, False])
def test_a_folder_of_open_clip_says_the_rest(quick: bool, tmp_path: Path) -> None:
    theirs, state = clip(hidden_act="quick_gelu" if quick else "gelu")
    save_file(state, tmp_path / "open_clip_model.safetensors")
    vision: dict[str, Any] = {"image_size": 24, "layers": 2, "width": 24, "head_width": 8, "patch_size": 6}
    preprocess = {"mean": [0.1] * 3, "std": [0.2] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}
    config = {"model_cfg": {"vision_cfg": vision, **({"quick_gelu": True} if quick else {})}, "preprocess_cfg": preprocess}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    ours = load(tmp_path)
    assert_equal(theirs, ours)
    assert ours.preprocess is not None
    assert ours.preprocess.mean[0] == 0.1
    vision["attentional_pool"] = True
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(VitrailError, match="attentional_pool=True in vision_cfg"):
        load(tmp_path)
