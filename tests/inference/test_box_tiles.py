"""Boxes from tiles are those of the image, with a model that sees every object exactly, of which tiles show parts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

import vitrail
from tests.small_models import small_config
from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.inference.predictor import Predictor
from vitrail.models.config import ModelConfig
from vitrail.recipes.task_config import Detection

INPUT = (32, 48)
CELL = 2  # pixels
NAMES = ("disc", "square", "star")
Box = tuple[int, int, int, int]


class ExactDetector(Predictor):
    """Finds the visible part of each object, which has a colour of its own: its number in red, its class and 1 in green."""

    backend = "torch"

    def __init__(self, preprocess: Preprocess | None = None, **metadata: Any) -> None:
        config: ModelConfig = replace(small_config(classes=0), image=INPUT, patch=(8, 8))
        recorded = {"recipe": {"task": to_dict(Detection(classes=3, upscale_blocks=2))}, **metadata}
        preprocess = preprocess or Preprocess(INPUT, 1.0, "stretch", "nearest")
        super().__init__("exact", config, preprocess, NAMES, recorded, has_decoder=True)
        self.num_inputs: list[int] = []

    def outputs(self, images: ndarray) -> ndarray:
        self.num_inputs.append(len(images))
        rows, columns = images.shape[1] // CELL, images.shape[2] // CELL
        outputs = np.zeros((len(images), 7, rows, columns), np.float32)
        outputs[:, :3] = -30.0
        for output, pixels in zip(outputs, images, strict=True):
            for number in np.unique(pixels[..., 0][pixels[..., 0] > 0]):
                ys, xs = np.nonzero(pixels[..., 0] == number)
                left, top, right, bottom = xs.min(), ys.min(), xs.max() + 1, ys.max() + 1
                column, row = int((left + right) / 2 / CELL), int((top + bottom) / 2 / CELL)
                x, y = (column + 0.5) * CELL, (row + 0.5) * CELL
                output[int(pixels[ys[0], xs[0], 1]) - 1, row, column] = 3.0
                output[3:, row, column] = x - left, y - top, right - x, bottom - y
        return outputs

    def hash(self) -> str:
        return "exact"


def draw(size: tuple[int, int], boxes: list[Box], labels: list[int]) -> ndarray:
    pixels = np.zeros((*size, 3), np.uint8)
    for number, ((left, top, right, bottom), label) in enumerate(zip(boxes, labels, strict=True), 1):
        pixels[top:bottom, left:right] = number, label + 1, 0
    return pixels


def random_objects(seed: int, size: tuple[int, int], sides: tuple[int, int], gap: int = 0) -> tuple[list[Box], list[int]]:
    """Objects that do not overlap; many of them touch."""
    generator = np.random.default_rng(seed)
    taken, boxes = np.zeros(size, bool), list[Box]()
    for _ in range(400):
        height, width = generator.integers(*sides, 2)
        left, top = int(generator.integers(0, size[1] - width + 1)), int(generator.integers(0, size[0] - height + 1))
        if boxes and generator.random() < 0.5:
            left = boxes[-1][2]  # right beside another
            top = boxes[-1][1]
        box = left, top, left + int(width), top + int(height)
        if box[2] > size[1] or box[3] > size[0] or taken[top : box[3], left : box[2]].any():
            continue
        taken[top : box[3], left : box[2]] = True
        boxes.append(box)
    return boxes[:250], generator.integers(0, 3, len(boxes[:250])).tolist()


def found(prediction: Any) -> list[tuple[str, tuple[float, ...]]]:
    return sorted((box.label, box.box) for box in prediction.boxes)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sides", [(5, 12), (5, 30), (20, 45)])
@pytest.mark.parametrize("overlap", [0.25, 0.5])
def test_every_object_is_found_once(seed: int, sides: tuple[int, int], overlap: float) -> None:
    size = 150, 211
    boxes, labels = random_objects(seed, size, sides)
    prediction = vitrail.predict(ExactDetector(), draw(size, boxes, labels), tile=INPUT, overlap=overlap)[0]
    expected = sorted((NAMES[label], tuple(map(float, box))) for box, label in zip(boxes, labels, strict=True))
    assert found(prediction) == expected
