"""Equal logits to transformers for the same random weights, in both directions, with both naming schemes and its processor."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from tests.preprocess_image import preprocess_image
from tests.reference_libraries import randomise_weights, reference_library
from tests.small_models import small_vit
from vitrail.data.preprocess import Fit, Preprocess
from vitrail.models.config import ViTConfig
from vitrail.models.variants import variant
from vitrail.weights.load import load
from vitrail.weights.save import save

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def make_reference(**options: Any) -> nn.Module:
    transformers = reference_library("transformers")
    small = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40, "num_labels": 5}
    size = {"image_size": (12, 20), "patch_size": (6, 5)}
    return randomise_weights(transformers.ViTForImageClassification(transformers.ViTConfig(**{**small, **size, **options})))


CASES: list[dict[str, Any]] = [
    {},
    {"image_size": 24, "patch_size": 6},
    {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6},
    {"qkv_bias": False, "num_channels": 2},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_theirs_is_ours_and_ours_is_theirs(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = make_reference(**options)
    theirs.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
    ours = load(tmp_path / "theirs")
    assert [item.split()[0] for item in ours.load_report.assumed] == ["images"]  # config.json has everything else
    assert ours.preprocess is not None
    assert ours.preprocess.fit == "stretch"
    images = torch.randn(2, options.get("num_channels", 3), *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images).logits, rtol=0, atol=1e-5)
        save(ours, tmp_path / "ours", format="huggingface")
        auto = import_module("transformers").AutoModelForImageClassification
        back = auto.from_pretrained(tmp_path / "ours").eval()
        assert_close(back(images).logits, theirs(images).logits, rtol=0, atol=1e-6)
    for name, weight in theirs.state_dict().items():
        assert_close(back.state_dict()[name], weight, rtol=0, atol=0)


def test_shards_and_the_names_of_transformers_5(tmp_path: Path) -> None:
    theirs = make_reference()
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="10KB")  # type: ignore[operator]
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    newer = tmp_path / "newer"
    newer.mkdir()
    save_file(theirs.state_dict(), newer / "model.safetensors")
    (newer / "config.json").write_text((tmp_path / "shards" / "config.json").read_text())
    assert any("q_proj" in name for name in theirs.state_dict())
    images = torch.randn(2, 3, 12, 20)
    with torch.inference_mode():
        for folder in (tmp_path / "shards", newer):
            assert_close(load(folder)(images), theirs(images).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(24, 42), (6, 36)])
def test_a_resized_position_table_is_theirs(size: tuple[int, int], tmp_path: Path) -> None:
    theirs = make_reference(image_size=18, patch_size=6)  # it takes the square root of the number of patches
    theirs.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
    images = torch.randn(2, 3, *size)
    with torch.inference_mode():
        reference = theirs(images, interpolate_pos_encoding=True).logits
        assert_close(load(tmp_path / "theirs", image=size)(images), reference, rtol=0, atol=1e-5)


def test_a_model_without_classifier_returns_its_pooler_output(tmp_path: Path) -> None:
    transformers = reference_library("transformers")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, image_size=12, patch_size=6
    )
    theirs = randomise_weights(transformers.ViTModel(config))
    theirs.save_pretrained(tmp_path)  # type: ignore[operator]
    ours = load(tmp_path)
    assert isinstance(ours.config, ViTConfig)
    assert (ours.config.head, ours.config.classes) == ("mlp", 0)
    images = torch.randn(2, 3, 12, 12)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images).pooler_output, rtol=0, atol=1e-5)


PROCESSORS: list[dict[str, Any]] = [
    {"size": {"height": 32, "width": 32}, "do_center_crop": True, "crop_size": {"height": 24, "width": 24}},
    {
        "size": {"shortest_edge": 28},
        "do_center_crop": True,
        "crop_size": {"height": 24, "width": 24},
        "image_mean": [0.4, 0.5, 0.6],
    },
    {"size": {"height": 24, "width": 24}, "do_normalize": False},
    {
        "size": {"height": 24, "width": 24},
        "rescale_factor": 1 / 127.5,
        "image_mean": [1.0, 1.0, 1.0],
        "image_std": [1.0, 1.0, 1.0],
    },
]


@pytest.mark.parametrize("settings", PROCESSORS, ids=str)
def test_their_processor_settings_are_read_correctly(settings: dict[str, Any], tmp_path: Path) -> None:
    """Margins are even: for odd ones it rounds the half down, torchvision to even."""
    make_reference(image_size=24, patch_size=6).save_pretrained(tmp_path)  # type: ignore[operator]
    full = {"image_processor_type": "ViTImageProcessor", "resample": 3, "do_resize": True, **settings}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(full))
    processor = import_module("transformers").AutoImageProcessor.from_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.preprocess is not None
    waves = np.sin(np.arange(50)[:, None, None] / 7 + np.arange(60)[None, :, None] / 9 + np.arange(3)) * 100 + 128
    image = Image.fromarray(waves.astype(np.uint8))
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    assert (theirs - preprocess_image(image, model.preprocess)).abs().max() < 0.04


@pytest.mark.parametrize("name", ["Ti/16", pytest.param("B/32", marks=pytest.mark.thorough)])
def test_full_sizes(name: str, tmp_path: Path) -> None:
    transformers = reference_library("transformers")
    size = variant(name)
    assert isinstance(size, ViTConfig)
    config = transformers.ViTConfig(
        hidden_size=size.width,
        num_hidden_layers=12,
        num_attention_heads=size.heads,
        intermediate_size=size.mlp,
        patch_size=size.patch[0],
    )
    theirs = randomise_weights(transformers.ViTForImageClassification(config), scale=0.02)
    theirs.save_pretrained(tmp_path)  # type: ignore[operator]
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        assert_close(load(tmp_path)(images), theirs(images).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("crop", "fit"), [(1.0, "stretch"), (0.75, "crop"), (0.75, "stretch")])
def test_the_image_processor_agrees_with_our_preprocessing(crop: float, fit: Fit, tmp_path: Path) -> None:
    """The same image through transformers' processor: resizing in the two libraries differs by a few grey levels."""
    model = small_vit(patch=(6, 6), image=(24, 24))
    model.preprocess = Preprocess((24, 24), crop, fit, interpolation="bicubic", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    model.class_names = ("cat", "dog", "owl", "eel", "ant")
    save(model, tmp_path, format="huggingface")
    reference_library("transformers")
    processor = import_module("transformers").AutoImageProcessor.from_pretrained(tmp_path)
    waves = np.sin(np.arange(50)[:, None, None] / 7 + np.arange(64)[None, :, None] / 9 + np.arange(3)) * 100 + 128
    image = Image.fromarray(waves.astype(np.uint8))
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    levels = (theirs - preprocess_image(image, model.preprocess)).abs() * 255 * torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    assert theirs.shape == (3, 24, 24)
    assert levels.max() <= 2.01
    assert levels.mean() < 0.5
    back = load(tmp_path)
    assert back.class_names == model.class_names
    assert back.preprocess is not None
    assert back.preprocess == model.preprocess
    id2label = import_module("transformers").AutoModelForImageClassification.from_pretrained(tmp_path).config.id2label
    assert id2label == dict(enumerate(model.class_names))
