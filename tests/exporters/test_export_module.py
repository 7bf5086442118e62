"""The exported module equals the model: positions are resized to any image size, pixels are normalised inside."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import normalise
from vitrail.errors import VitrailError
from vitrail.exporters.export_module import ExportModule, interpolation_matrix, to_flexible, with_dynamic_positions
from vitrail.layers.position import PositionResize, resize_table
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig, StemConfig

RULES: tuple[PositionResize, ...] = get_args(PositionResize)
POSITIONS: list[dict[str, Any]] = [
    {"position": "learned1d", "position_resize": "official", "position_at": "every-layer"},
    {"position": "learned1d", "position_resize": "timm", "registers": 2, "position_prefix": "all"},
    {"position": "learned1d", "position_resize": "huggingface", "registers": 1},
    {"position": "learned1d", "position_resize": "torchvision", "pool": "gap"},
    {"position": "learned2d", "position_prefix": "none"},
    {"position": "learned2d-sum", "pool": "map", "position_at": "every-layer-shared"},
    {"position": "sincos1d"},
    {"position": "sincos2d", "position_grid": (3, 7)},
    {"position": "sincos2d-mae", "position_resize": "huggingface"},
    {"position": "sincos2d-moco"},
    {"position": "learned1d", "position_resize": "dino"},
    {"position": "rotary", "heads": 2, "registers": 1},
    {"position": "none", "pool": "map"},
    {"stem": StemConfig((1, 2), 32), "patch": 1, "image": (16, 24)},
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("old", [1, 2, 3, 7, 14])
def test_the_matrices_interpolate_as_the_model_does(rule: PositionResize, old: int) -> None:
    table = torch.eye(old)[:, None].expand(old, 5, old).contiguous()  # each unit vector, the same in five columns
    for new in (1, 2, 3, 5, 8, 14, 31):
        matrix = interpolation_matrix(old, new, rule, torch.tensor([new == old]))
        assert_close(matrix, resize_table(table, (new, 5), rule)[:, 2], rtol=0, atol=5e-6)


@pytest.mark.parametrize("options", POSITIONS, ids=str)
def test_dynamic_positions_equal_the_flexible_model_at_any_size(options: dict[str, Any]) -> None:
    model = small_vit(**options)
    flexible, dynamic = to_flexible(model), with_dynamic_positions(model)
    stride_y, stride_x = model.config.patch_stride
    for rows, columns in ((2, 3), (1, 1), (5, 2), (3, 8), (9, 9)):
        images = torch.randn(2, 3, rows * stride_y, columns * stride_x)
        with torch.inference_mode():
            assert_close(dynamic(images), flexible(images), rtol=0, atol=1e-5)


def test_relative_positions_have_one_fixed_size() -> None:
    with pytest.raises(VitrailError, match="leave --dynamic out"):
        with_dynamic_positions(small_vit(position="relative"))


def test_a_resnet_accepts_any_size_unchanged() -> None:
    model = build(ResNetConfig((1, 1), width=32, image=(40, 48)))
    assert with_dynamic_positions(model) is model


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_pixels_are_normalised_inside_and_probabilities_match_the_loss(loss: str) -> None:
    model = small_vit()
    model.preprocess = Preprocess((12, 15), mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4))
    model.metadata = {"recipe": {"task": {"kind": "classification", "loss": loss}}}
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 12, 15, 3), np.uint8))
    with torch.inference_mode():
        logits, probabilities = ExportModule(model)(pixels)
        expected = model(normalise(pixels.permute(0, 3, 1, 2).float().contiguous(), model.preprocess))
    assert_close(logits, expected, rtol=0, atol=1e-6)
    assert_close(probabilities, expected.sigmoid() if loss == "sigmoid" else expected.softmax(1))


def test_without_a_classifier_the_module_returns_features() -> None:
    model = small_vit(classes=0)
    model.preprocess = Preprocess((12, 15))
    pixels = torch.randint(0, 256, (2, 12, 15, 3), dtype=torch.uint8)
    with torch.inference_mode():
        (features,) = ExportModule(model)(pixels)
        images = normalise(pixels.permute(0, 3, 1, 2).float().contiguous(), model.preprocess)
        assert_close(features, model.features(images), rtol=0, atol=1e-6)
