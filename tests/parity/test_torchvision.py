"""Equal logits to torchvision for the same random weights, in both directions, also at another size."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.reference_libraries import randomise_weights, reference_library
from vitrail.weights.load import load
from vitrail.weights.save import save

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]


def make_reference(**options: Any) -> nn.Module:
    reference_library("torchvision")
    small = {
        "image_size": 24,
        "patch_size": 6,
        "num_layers": 3,
        "num_heads": 3,
        "hidden_dim": 24,
        "mlp_dim": 40,
        "num_classes": 5,
    }
    return randomise_weights(import_module("torchvision.models.vision_transformer").VisionTransformer(**{**small, **options}))


@pytest.mark.parametrize("options", [{}, {"representation_size": 13}, {"image_size": 36}], ids=str)
def test_theirs_is_ours_and_ours_is_theirs(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = make_reference(**options)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load(tmp_path / "theirs.pth", heads=3)
    images = torch.randn(2, 3, *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    save(ours, tmp_path / "back.pth", format="torchvision")
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert set(back) == set(theirs.state_dict())
    for name, weight in theirs.state_dict().items():
        assert_close(back[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("side", [36, 12])
def test_a_resized_position_table_is_torchvisions(side: int, tmp_path: Path) -> None:
    theirs = make_reference()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    interpolate = import_module("torchvision.models.vision_transformer").interpolate_embeddings
    larger = make_reference(image_size=side)
    larger.load_state_dict(interpolate(side, 6, theirs.state_dict()))
    ours = load(tmp_path / "theirs.pth", image=side, heads=3)
    images = torch.randn(2, 3, side, side)
    with torch.inference_mode():
        assert_close(ours(images), larger(images), rtol=0, atol=1e-5)


def test_names_from_before_torchvision_0_13_are_read(tmp_path: Path) -> None:
    theirs = make_reference()
    older = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): w for name, w in theirs.state_dict().items()
    }
    torch.save(older, tmp_path / "older.pth")
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(load(tmp_path / "older.pth", heads=3)(images), theirs(images), rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_a_full_size_model(tmp_path: Path) -> None:
    torchvision = reference_library("torchvision")
    theirs = randomise_weights(torchvision.models.vit_b_32(num_classes=10), scale=0.02)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load(tmp_path / "theirs.pth")
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)
