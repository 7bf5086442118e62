"""Model folders: what was saved is what is loaded, and nothing half-written is ever visible."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.disk_limit import limit_file_size
from tests.small_models import PUBLISHED_KINDS, small_config, small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig, ResNetConfig, RotaryConfig, StemConfig
from vitrail.models.masked_autoencoders import MAE
from vitrail.models.masking_config import Masking
from vitrail.weights.load import load
from vitrail.weights.save import save

IMAGES = torch.randn(2, 3, 12, 15)


@pytest.mark.parametrize("position", ["learned1d", "sincos2d", "rotary", "relative"])
def test_what_was_saved_is_what_is_loaded(position: str, tmp_path: Path) -> None:
    model = small_vit(position=position, registers=2, layer_scale=0.1)
    loaded = load(save(model, tmp_path / "new" / "mine"))
    assert loaded.config == model.config
    assert not loaded.training
    assert_close(loaded(IMAGES), model(IMAGES), rtol=0, atol=0)
    assert sorted(os.listdir(tmp_path / "new" / "mine")) == ["model.safetensors", "vitrail.json"]
    assert json.loads((tmp_path / "new" / "mine" / "vitrail.json").read_text())["grid"] == [2, 3]


def test_hybrids_and_resnets_are_saved_too(tmp_path: Path) -> None:
    hybrid = build(small_config(stem=StemConfig(stages=(1,)), patch=(2, 1), image=(16, 12))).eval()
    resnet = build(ResNetConfig(stages=(1, 1), width=32, image=(32, 32), classes=3)).eval()
    for model in (hybrid, resnet):
        for weight in model.parameters():
            weight.data.add_(0.1 * torch.randn_like(weight))
        images = torch.randn(1, 3, *model.config.image)
        assert_close(load(save(model, tmp_path / "mine"))(images), model(images), rtol=0, atol=0)


def test_a_loaded_model_can_be_trained_without_touching_its_file(tmp_path: Path) -> None:
    loaded = load(save(small_vit(), tmp_path / "mine"))
    before = (tmp_path / "mine" / "model.safetensors").read_bytes()
    optimiser = torch.optim.SGD(loaded.parameters(), lr=0.1)
    first = loaded(IMAGES)
    first.square().sum().backward()
    optimiser.step()
    assert (loaded(IMAGES) - first).abs().max() > 0
    assert (tmp_path / "mine" / "model.safetensors").read_bytes() == before


@pytest.mark.compile
def test_a_compiled_model_is_saved_as_its_original(tmp_path: Path) -> None:
    model = small_vit()
    save(torch.compile(model, backend="eager"), tmp_path / "mine")  # type: ignore[arg-type]
    assert_close(load(tmp_path / "mine")(IMAGES), model(IMAGES), rtol=0, atol=0)


def test_a_model_without_weights_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="it has no weights to save"):
        save(build(small_config(), device="meta"), tmp_path / "mine")


def test_preprocessing_and_class_names_are_saved(tmp_path: Path) -> None:
    model = small_vit()
    model.preprocess = Preprocess((12, 15), crop_pct=0.8, interpolation="lanczos", mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0))
    model.class_names = ("cat", "dog", "owl", "eel", "ant")
    loaded = load(save(model, tmp_path / "mine"))
    assert (loaded.preprocess, loaded.class_names) == (model.preprocess, model.class_names)


def test_a_link_is_followed(tmp_path: Path) -> None:
    save(small_vit(), tmp_path / "step-7")
    (tmp_path / "best").symlink_to("step-7")
    newer = small_vit(depth=1)
    save(newer, tmp_path / "best")
    assert (tmp_path / "best").is_symlink()
    assert load(tmp_path / "step-7").config == newer.config


def test_saving_again_replaces_the_older_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    save(small_vit(), tmp_path / "mine")
    newer = small_vit(depth=1)
    save(newer, tmp_path / "mine")
    assert load(tmp_path / "mine").config == newer.config
    assert os.listdir(tmp_path) == ["mine"]


def test_a_folder_with_other_files_is_not_overwritten(tmp_path: Path) -> None:
    save(small_vit(), tmp_path / "mine")
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(VitrailError, match="contains files other than a model's, so it is not overwritten"):
        save(small_vit(), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_a_full_disk_leaves_the_older_model_intact(tmp_path: Path) -> None:
    older = small_vit()
    save(older, tmp_path / "mine")
    with limit_file_size(10_000), pytest.raises(VitrailError, match="cannot be written"):
        save(small_vit(depth=2), tmp_path / "mine")
    assert_close(load(tmp_path / "mine")(IMAGES), older(IMAGES), rtol=0, atol=0)
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vitrail.json", None, "has our tensor names, but the vitrail.json with the model's config is not next to it"),
        ("vitrail.json", b"{", "cannot be read"),
        ("vitrail.json", b"\xff\xfe", "cannot be read"),
        ("vitrail.json", b"[]", "must hold an object, got list"),
        ("vitrail.json", b'{"format": 9}', "has format 9"),
        ("vitrail.json", b'{"format": 1}', "model must be a ViTConfig or a ResNetConfig, got None"),
        ("vitrail.json", b'{"format": 1, "model": {"family": "vit", "width": 24}}', "the field 'model.depth' is missing"),
        ("model.safetensors", None, "contains no weights"),
        ("model.safetensors", b"", "cannot be read"),
        ("model.safetensors", b"\xff" * 100, "cannot be read"),
        ("model.safetensors", b"\x80\x04\x95pickle", "cannot be read"),
    ],
)
def test_a_broken_folder_is_refused_with_a_clear_message(
    file: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    folder = save(small_vit(), tmp_path / "mine")
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    with pytest.raises(VitrailError, match=message):
        load(folder)


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    folder = save(small_vit(), tmp_path / "mine")
    other = save(small_vit(classes=7, depth=3), tmp_path / "other")
    (other / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(VitrailError, match=r"do not fit their config: blocks.3.\S+ is missing, .* and \d+ more"):
        load(folder)


def test_a_pth_that_would_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    model = small_vit(gelu="exact", image=(12, 10), qkv_bias=False)
    with pytest.raises(VitrailError, match=r"q, k and v without biases in a \.pth"):
        save(model, tmp_path / "x.pth", format="timm")
    assert load(save(model, tmp_path / "x.safetensors", format="timm")).config == model.config
    gated = small_vit(gelu="exact", image=(12, 10), mlp_kind="swiglu")
    with pytest.raises(VitrailError, match=r"a gated MLP without layer scale in a \.pth"):
        save(gated, tmp_path / "gated.pth", format="timm")
    normed = small_vit(gelu="exact", image=(12, 10), embed_norm=True, patch_bias=False)
    with pytest.raises(VitrailError, match=r"a norm before the blocks in a \.pth, whose epsilon would be read as CLIP's"):
        save(normed, tmp_path / "normed.pth", format="timm")


@pytest.mark.parametrize(
    "changes",
    [{"norm": "branch"}, {"final_norm": "none"}, {"pool": "cls+gap"}, {"embed_norm": True}, {"mlp_kind": "swiglu"}],
    ids=str,
)
@pytest.mark.parametrize("format", ["official", "timm", "huggingface", "torchvision"])
def test_what_a_format_cannot_hold_is_refused_or_held(changes: dict[str, Any], format: Any, tmp_path: Path) -> None:
    """A written file is read back to the same logits; anything else is refused."""
    model = small_vit(gelu="tanh" if format == "official" else "exact", image=(12, 10), **changes)
    name = {"official": "x.npz", "timm": "x.safetensors", "torchvision": "x.safetensors"}.get(format, "x")
    try:
        written = save(model, tmp_path / name, format=format)
    except VitrailError:
        return
    images = torch.randn(2, 3, 12, 10)
    assert_close(load(written)(images), model(images), rtol=0, atol=1e-6)


OPTIONS: list[tuple[dict[str, Any], str]] = [  # one at a time, so that nothing else is refused
    ({"rotary": RotaryConfig(coordinates="index")}, "rotary positions"),
    ({"rotary": RotaryConfig(10.0, "index", mixed=True), "position": "none"}, "rotary positions"),
    ({"relative_bias": RelativeBiasConfig()}, "a relative position bias"),
    ({"relative_bias": RelativeBiasConfig("mlp", hidden=7), "position": "none"}, "a relative position bias"),
    ({"norm_kind": "rms"}, "RMSNorm"),
    ({"patch_norm": "output"}, "a norm of the patches"),
    ({"patch_norm": "both"}, "a norm of the patches"),
    ({"attention_norm": True}, "a norm inside attention"),
    ({"mlp_norm": True}, "a norm inside the MLP"),
    ({"key_bias": False}, "keys without a bias"),
    ({"out_bias": False}, "projections without biases"),
    ({"pool": "map", "pool_heads": 4}, "attention pooling with heads of its own"),
    ({"pool": "map", "pool_mlp": 11}, "attention pooling with an MLP of its own"),
    ({"pool": "map", "pool_prefix": True, "class_token": True}, "attention pooling over the prefix tokens"),
    ({"pool": "cls+register", "registers": 1, "position_prefix": "all"}, "a head on the class token and a register"),
]
FILES = {
    "official": ["x.npz"],
    "timm": ["x.safetensors", "x.pth"],
    "torchvision": ["x.pth", "x.safetensors"],
    "huggingface": ["x"],
}


@pytest.mark.parametrize(("changes", "feature"), OPTIONS, ids=str)
@pytest.mark.parametrize("format", FILES)
def test_an_option_of_published_models_is_refused_by_its_name(
    changes: dict[str, Any], feature: str, format: Any, tmp_path: Path
) -> None:
    """No tensor shows these kinds to a reader, so a file would be read as another model."""
    model = small_vit(gelu="tanh" if format == "official" else "exact", image=(12, 12), patch=(4, 4), **changes)
    for name in FILES[format]:
        with pytest.raises(VitrailError, match=rf"the {format} format cannot hold {feature}; .*folder.*format='vitrail'"):
            save(model, tmp_path / name, format=format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", PUBLISHED_KINDS)
@pytest.mark.parametrize("format", FILES)
def test_no_kind_of_published_models_is_written_wrongly(kind: str, format: Any, tmp_path: Path) -> None:
    model = small_vit(gelu="tanh" if format == "official" else "exact", **PUBLISHED_KINDS[kind])
    for name in FILES[format]:
        with pytest.raises(VitrailError, match=f"the {format} format cannot hold"):
            save(model, tmp_path / name, format=format)
    again = load(save(model, tmp_path / "own"))
    assert again.config == model.config
    assert_close(again(IMAGES), model(IMAGES), rtol=0, atol=0)


@pytest.mark.parametrize(
    "changes",
    [
        *({**changes, "pool": "cls"} for changes, _ in OPTIONS if "pool" not in changes and "position" not in changes),
        *({"norm": "branch"}, {"final_norm": "none"}, {"embed_norm": True}, {"patch_bias": False}, {"pool": "cls+gap"}),
        {"gelu": "quick"},
    ],
    ids=str,
)
@pytest.mark.parametrize("format", ["timm", "huggingface"])
def test_an_mae_of_another_kind_is_refused(changes: dict[str, Any], format: Any, tmp_path: Path) -> None:
    encoder = small_vit(**{"gelu": "exact", "classes": 0, "image": (12, 12), "patch": (4, 4), **changes})
    masking = Masking("mae", decoder_width=8, decoder_depth=1, decoder_heads=2)
    name = "mae.safetensors" if format == "timm" else "mae"
    with pytest.raises(VitrailError, match=rf"the {format} format cannot hold .*; (save model.encoder alone|use format)"):
        save(MAE(encoder, masking), tmp_path / name, format=format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mlp_kind", ["gelu", "swiglu"])
def test_every_new_option_is_kept_in_our_own_folder(mlp_kind: str, tmp_path: Path) -> None:
    changes = {"norm": "branch", "final_norm": "none", "pool": "cls+gap", "gelu": "quick", "mlp_kind": mlp_kind}
    model = small_vit(patch_bias=False, embed_norm=True, **changes)
    images = torch.randn(2, 3, 12, 15)
    again = load(save(model, tmp_path / "x"))
    assert again.config == model.config
    assert_close(again(images), model(images), rtol=0, atol=1e-6)
    assert load(tmp_path / "x", classes=3)(images).shape == (2, 3)
