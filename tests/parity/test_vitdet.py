"""Equal patch tokens to transformers' VitDet with the same random weights, in windows that divide the grid or do not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

from tests.reference_libraries import randomise_sharply, reference_library, rename_tensors
from tests.tiers import quick_first
from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.models.vit import ViT
from vitrail.weights.load import load

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "mlp_ratio": 2,
    "patch_size": 6,
    "image_size": [36, 30],
    "pretrain_image_size": 18,
    "window_size": 3,
    "window_block_indices": [0, 2],
    "use_relative_position_embeddings": True,
}
CASES: dict[str, dict[str, Any]] = {
    "ViTDet": {},
    "no relative positions": {"use_relative_position_embeddings": False, "layer_norm_eps": 1e-2},
    "no windows": {"window_size": 0, "window_block_indices": []},
    "windows only": {"window_block_indices": [0, 1, 2, 3], "hidden_act": "gelu_new", "qkv_bias": False},
    "size of the pre-training": {"image_size": 18},
}
SIZES = ((36, 30), (24, 36), (30, 54), (12, 6))  # the last one is smaller than a window
DETECTRON2 = {
    r"^embeddings\.position_embeddings$": "backbone.net.pos_embed",
    r"^embeddings\.projection\.": "backbone.net.patch_embed.proj.",
    r"^encoder\.layer\.": "backbone.net.blocks.",
    r"\.attention\.": ".attn.",
}


def their_model(name: str = "VitDetModel", **changes: Any) -> nn.Module:
    transformers: Any = reference_library("transformers")
    model: nn.Module = getattr(transformers, name)(transformers.VitDetConfig(**{**SMALL, **changes}))
    randomise_sharply(model)
    for name, weight in model.named_parameters():
        if "rel_pos" in name:
            nn.init.normal_(weight)
    return model.eval()


def patch_tokens(model: ViT, images: Tensor) -> Tensor:
    return model.encode(model.embed_patches(images), model.grid(images))


@pytest.mark.parametrize("case", quick_first(CASES, 2))
def test_tokens_equal_transformers_at_every_size(case: str, tmp_path: Path) -> None:
    theirs: Any = their_model(**CASES[case])
    theirs.save_pretrained(tmp_path)
    for size in SIZES:
        ours, images = load(tmp_path, image=size), torch.randn(2, 3, *size)
        assert isinstance(ours, ViT)
        with torch.no_grad():
            expected = theirs(images).last_hidden_state
            assert_close(patch_tokens(ours, images), expected.flatten(2).mT, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_what_is_read_is_what_config_json_says(tmp_path: Path) -> None:
    their_model("VitDetBackbone").save_pretrained(tmp_path)  # type: ignore[operator]
    model = load(tmp_path)
    c = model.config
    assert isinstance(c, ViTConfig)
    assert (c.windows, c.relative_axes, c.table_grid, c.image) == ((3, None, 3, None), True, (3, 3), (36, 30))
    assert (c.prefix_tokens, c.classes, c.final_norm, c.pool) == (0, 0, "none", "gap")
    assert model.preprocess is not None
    assert (model.preprocess.fit, model.preprocess.image_size) == ("pad", (36, 30))


def test_detectron2s_names_show_windows_and_heads(tmp_path: Path) -> None:
    theirs: Any = their_model()
    tensors = rename_tensors(theirs.state_dict(), DETECTRON2)
    tensors["backbone.simfp_2.0.weight"] = torch.zeros(24, 12, 2, 2)
    save_file(tensors, tmp_path / "x.safetensors")
    theirs.save_pretrained(tmp_path / "theirs")
    ours, expected = load(tmp_path / "x.safetensors"), load(tmp_path / "theirs")
    assert ours.config == expected.config
    images = torch.randn(2, 3, 36, 30)
    with torch.no_grad():
        assert_close(ours(images), expected(images), rtol=0, atol=0)
    assert ours.load_report.unused == ("backbone.simfp_2.0.weight",)


def test_another_image_size_resizes_the_relative_positions_of_global_blocks_alone(tmp_path: Path) -> None:
    their_model().save_pretrained(tmp_path)  # type: ignore[operator]
    report = load(tmp_path, image=(24, 30)).load_report
    assert report.resized == tuple(f"blocks.{layer}.attention.relative.rows: 11 offsets to 7, linearly" for layer in (1, 3))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"residual_block_indices": [2]}, r"residual blocks of convolutions \(blocks\.2\.residual\.conv1\.weight\)"),
        ({"hidden_act": "relu"}, "hidden_act in config.json must be one of"),
        ({"config.window_size": 2}, "the relative positions of block 0 are those of 3x3 patches, instead of 2x2"),
        ({"config.image_size": "large"}, "image_size in config.json must be a whole number or a pair"),
        ({"config.num_attention_heads": 7}, "width must be a multiple of heads"),
    ],
    ids=str,
)
def test_what_vitrail_does_not_have_is_refused_by_name(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    model: Any = their_model(**{name: value for name, value in changes.items() if not name.startswith("config.")})
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {name.removeprefix("config."): value for name, value in changes.items() if name.startswith("config.")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(VitrailError, match=text):
        load(tmp_path)
