"""The exported module equals the model: positions are resized to any image size, pixels are normalised inside."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.small import vit
from vitrail.data.prepare import normalise
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.export.graph import Graph, flexible, following, matrix
from vitrail.layers.position import Resize, resize_table
from vitrail.models.build import build
from vitrail.models.settings import ResNetConfig, Stem

RULES: list[Resize] = ["official", "timm", "huggingface", "torchvision"]
POSITIONS: list[dict[str, Any]] = [
    {"position": "learned1d", "resize": "official", "position_at": "every-layer"},
    {"position": "learned1d", "resize": "timm", "registers": 2, "position_covers": "all"},
    {"position": "learned1d", "resize": "huggingface", "registers": 1},
    {"position": "learned1d", "resize": "torchvision", "pool": "gap"},
    {"position": "learned2d", "position_covers": "none"},
    {"position": "learned2d-sum", "pool": "map", "position_at": "every-layer-shared"},
    {"position": "sincos1d"},
    {"position": "sincos2d", "position_grid": (3, 7)},
    {"position": "sincos2d-mae", "resize": "huggingface"},
    {"position": "sincos2d-moco"},
    {"position": "rotary", "heads": 2, "registers": 1},
    {"position": "none", "pool": "map"},
    {"stem": Stem((1, 2), 32), "patch": 1, "image": (16, 24)},
]


@pytest.mark.parametrize("how", RULES)
@pytest.mark.parametrize("old", [1, 2, 3, 7, 14])
def test_the_matrices_interpolate_as_the_model_does(how: Resize, old: int) -> None:
    table = torch.eye(old)[:, None].expand(old, 5, old).contiguous()  # each unit vector, the same in five columns
    for new in (1, 2, 3, 5, 8, 14, 31):
        assert_close(matrix(old, new, how), resize_table(table, (new, 5), how)[:, 2], rtol=0, atol=5e-6)


@pytest.mark.parametrize("options", POSITIONS, ids=str)
def test_dynamic_positions_equal_the_flexible_model_at_any_size(options: dict[str, Any]) -> None:
    model = vit(**options)
    free, graph = flexible(model), following(model)
    down, across = model.config.stride
    for rows, columns in ((2, 3), (1, 1), (5, 2), (3, 8), (9, 9)):
        images = torch.randn(2, 3, rows * down, columns * across)
        with torch.inference_mode():
            assert_close(graph(images), free(images), rtol=0, atol=1e-5)


def test_relative_positions_have_one_fixed_size() -> None:
    with pytest.raises(VitrailError, match="leave --dynamic out"):
        following(vit(position="relative"))


def test_a_resnet_accepts_any_size_unchanged() -> None:
    model = build(ResNetConfig((1, 1), width=32, image=(40, 48)))
    assert following(model) is model


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_pixels_are_normalised_inside_and_probabilities_match_the_loss(loss: str) -> None:
    model = vit()
    model.preprocess = Preprocess((12, 15), mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4))
    model.facts = {"recipe": {"loss": loss}}
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 12, 15, 3), np.uint8))
    with torch.inference_mode():
        logits, probabilities = Graph(model)(pixels)
        wanted = model(normalise(pixels.permute(0, 3, 1, 2).float().contiguous(), model.preprocess))
    assert_close(logits, wanted, rtol=0, atol=1e-6)
    assert_close(probabilities, wanted.sigmoid() if loss == "sigmoid" else wanted.softmax(1))


def test_without_a_classifier_the_module_returns_features() -> None:
    model = vit(classes=0)
    model.preprocess = Preprocess((12, 15))
    pixels = torch.randint(0, 256, (2, 12, 15, 3), dtype=torch.uint8)
    with torch.inference_mode():
        (features,) = Graph(model)(pixels)
        images = normalise(pixels.permute(0, 3, 1, 2).float().contiguous(), model.preprocess)
        assert_close(features, model.features(images), rtol=0, atol=1e-6)
