"""Models pre-trained with a decoder are saved to a model folder and loaded completely."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import vitrail
from tests.disk_limit import limit_file_size
from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import decoder_state
from vitrail.models.masked_autoencoders import MaskedModel, build_masked_model
from vitrail.models.masking_config import Masking
from vitrail.models.vit import ViT
from vitrail.weights.load import load
from vitrail.weights.load_masked import load_masked
from vitrail.weights.save import save

DECODER: dict[str, Any] = {"decoder_width": 64, "decoder_depth": 2, "decoder_heads": 4}
MAE = Masking("mae", 0.7, norm_pix_target=True, **DECODER)
METHODS = [
    MAE,
    Masking("simmim", 0.5, mask_unit=3),
    Masking("masked-patch", target="mean-colour"),
    Masking("masked-patch", target="downsampled", mask_ratio=0.15),
]


def build_masked(masking: Masking = MAE, **changes: Any) -> MaskedModel:
    """Build a model of 3 x 6 patches of 4 x 2 pixels with random weights."""
    encoder = small_vit(
        **{"image": (12, 12), "patch": (4, 2), "classes": 0, "position": "sincos2d-mae", "gelu": "exact", **changes}
    )
    encoder.preprocess = Preprocess(encoder.config.image, crop_pct=0.8, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0))
    model = build_masked_model(encoder, masking)
    for weight in decoder_state(model).values():
        weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


def assert_equal(one: MaskedModel, other: MaskedModel) -> None:
    assert one.masking == other.masking
    assert one.config == other.config
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, weight in one.state_dict().items():
        assert_close(other.state_dict()[name], weight, rtol=0, atol=0)
    grid = one.config.grid
    noise = torch.rand(2, one.masking.num_noise_values(grid))
    images = torch.randn(2, one.config.channels, *one.config.image)
    assert_close(other(images, noise)[0], one(images, noise)[0], rtol=0, atol=0)


@pytest.mark.parametrize("masking", METHODS, ids=lambda masking: f"{masking.method} {masking.target}")
@pytest.mark.parametrize("position", ["sincos2d-mae", "learned1d", "rotary"])
def test_what_was_saved_is_what_is_loaded(masking: Masking, position: str, tmp_path: Path) -> None:
    model = build_masked(masking, position=position, registers=2, width=24, heads=2 if position == "rotary" else 3)
    folder = save(model, tmp_path / "mine", metadata={"metrics": {"step": 7}})
    assert sorted(os.listdir(folder)) == ["decoder.safetensors", "model.safetensors", "vitrail.json"]
    for source in (folder, folder / "model.safetensors"):
        loaded = vitrail.load_masked(source)
        assert not loaded.training
        assert (loaded.encoder.preprocess, loaded.encoder.metadata) == (model.encoder.preprocess, {"metrics": {"step": 7}})
        assert_equal(model, loaded)


def test_the_same_folder_is_an_ordinary_model_without_classes(tmp_path: Path) -> None:
    model = build_masked()
    encoder = load(save(model, tmp_path / "mine"))
    assert isinstance(encoder, ViT)
    assert encoder.config == model.config
    images = torch.randn(2, 3, 12, 12)
    assert_close(encoder(images), model.encoder(images), rtol=0, atol=0)
    assert load(tmp_path / "mine", classes=4).config.classes == 4


def test_a_run_is_loaded_as_its_best_weights(tmp_path: Path) -> None:
    model = build_masked()
    save(model, tmp_path / "best")
    (tmp_path / "recipe.json").write_text("{}")
    assert_equal(model, load_masked(tmp_path))


def test_what_was_loaded_can_be_trained(tmp_path: Path) -> None:
    model = load_masked(save(build_masked(), tmp_path / "mine")).train()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    images, noise = torch.randn(2, 3, 12, 12), torch.rand(2, 18)
    model(images, noise)[0].square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    unchanged = {name for name, weight in model.named_parameters() if torch.equal(weight, before[name])}
    assert not unchanged


@pytest.mark.parametrize("older", [build_masked, lambda: small_vit()], ids=["with a decoder", "without one"])
def test_a_folder_is_replaced_whole(older: Any, tmp_path: Path) -> None:
    save(older(), tmp_path / "mine")
    newer = build_masked(replace(MAE, decoder_depth=1))
    save(newer, tmp_path / "mine")
    assert_equal(newer, load_masked(tmp_path / "mine"))
    plain = small_vit(depth=1)
    save(plain, tmp_path / "mine")  # and no decoder of the other model remains
    assert sorted(os.listdir(tmp_path / "mine")) == ["model.safetensors", "vitrail.json"]
    assert os.listdir(tmp_path) == ["mine"]


def test_a_full_disk_leaves_the_older_one_intact(tmp_path: Path) -> None:
    """The encoder still fits on the disk, the decoder does not."""
    older = build_masked()
    save(older, tmp_path / "mine")
    with limit_file_size(100_000), pytest.raises(VitrailError, match="cannot be written"):
        save(build_masked(depth=1), tmp_path / "mine")
    assert_equal(older, load_masked(tmp_path / "mine"))
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "lacks decoder.safetensors, which its vitrail.json refers to; vitrail.load reads the encoder alone"),
        (b"", "cannot be read"),
        (b"\xff" * 100, "cannot be read"),
        (-1, "cannot be read"),
    ],
)
def test_a_damaged_decoder_is_refused_and_the_encoder_is_not(content: Any, message: str, tmp_path: Path) -> None:
    folder = save(build_masked(), tmp_path / "mine")
    file = folder / "decoder.safetensors"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if content == -1 else content)
    with pytest.raises(VitrailError, match=message):
        load_masked(folder)
    load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_depth": 10**3}, "masking.decoder_depth must be 2, as many as the blocks, got 1000"),
        ({"decoder_depth": 10**9}, "must be at most 8,192"),
        ({"decoder_width": 2**40}, "must be at most 8,192"),
        ({"decoder_width": 128}, r"decoder.blocks.0.attention.out.bias is \[64\] instead of \[128\]"),
        ({"method": "simmim"}, "do not fit their config: mask is missing"),
        ({"mask_ratio": 2.0}, "masking.mask_ratio must be above 0 and below 1"),
        ({"normalize": True}, "normalize"),
        ({"method": "dino"}, "method must be 'masked-patch', 'mae' or 'simmim'"),
    ],
)
def test_a_masking_config_that_does_not_fit_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save(build_masked(), tmp_path / "mine")
    metadata = json.loads((folder / "vitrail.json").read_text())
    metadata["masking"] |= changes
    (folder / "vitrail.json").write_text(json.dumps(metadata))
    with pytest.raises(VitrailError, match=message):
        load_masked(folder)


def test_a_decoder_for_more_patches_than_memory_is_not_built(tmp_path: Path) -> None:
    folder = save(build_masked(position="rotary", width=24, heads=2), tmp_path / "mine")
    metadata = json.loads((folder / "vitrail.json").read_text())
    metadata["model"] |= {"image": [2**17, 2**17]}
    (folder / "vitrail.json").write_text(json.dumps(metadata))
    with pytest.raises(VitrailError, match="an implausibly large position table"):
        load_masked(folder)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = build_masked()
    decoder_state(model)["decoder.mask"][3] = torch.nan
    with pytest.raises(VitrailError, match=r"decoder.mask has 1 of 64 values that are not finite"):
        load_masked(save(model, tmp_path / "mine"))


def test_an_encoder_without_a_decoder_is_refused_with_alternatives(tmp_path: Path) -> None:
    save(small_vit(gelu="exact"), tmp_path / "mine")
    save(small_vit(gelu="exact"), tmp_path / "mine.safetensors", format="timm")
    for source in ("mine", "mine.safetensors"):
        with pytest.raises(VitrailError, match=r"is an encoder without a decoder, which vitrail.load reads; try a run"):
            load_masked(tmp_path / source)
    with pytest.raises(VitrailError, match="does not exist"):
        load_masked(tmp_path / "nowhere")
