"""Images, masks and boxes are warped as by torchvision, and stay aligned."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from PIL.Image import Resampling

from tests.reference_libraries import reference_library
from vitrail.augment.affine import Affine, rotation, shear, translation, warp_boxes, warp_image, warp_mask

parity = pytest.mark.parity
WIDTH, HEIGHT = 53, 37
WARPS: list[tuple[str, float]] = [
    *(("rotate", degrees) for degrees in (-45.0, -30.0, 0.0, 7.3, 60.0, 90.0, 180.0, 270.0)),
    *(("shear_x", by) for by in (-0.45, -0.3, 0.1, 0.6)),
    *(("shear_y", by) for by in (-0.6, -0.25, 0.3)),
    *(("translate_x", by) for by in (-20.0, 11.0, 60.0)),
    *(("translate_y", by) for by in (-9.0, 17.0)),
]


def make_image(mode: str = "RGB", width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


def our_affine(name: str, by: float, width: int = WIDTH, height: int = HEIGHT) -> Affine:
    return {
        "rotate": rotation(by, width, height),
        "shear_x": shear(x=by),
        "shear_y": shear(y=by),
        "translate_x": translation(right=int(by)),
        "translate_y": translation(down=int(by)),
    }[name]


def warp_with_torchvision(what: Any, name: str, by: float, **options: Any) -> Any:
    """Warp as torchvision's RandAugment does."""
    functional: ModuleType = reference_library("torchvision.transforms.v2.functional")
    if name == "rotate":
        return functional.rotate(what, by, **options)
    plain: dict[str, Any] = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    tilt, offset = math.degrees(math.atan(by)), int(by)
    special: dict[str, dict[str, Any]] = {
        "shear_x": {"shear": [tilt, 0.0], "center": [0, 0]},
        "shear_y": {"shear": [0.0, tilt], "center": [0, 0]},
        "translate_x": {"translate": [offset, 0]},
        "translate_y": {"translate": [0, offset]},
    }
    return functional.affine(what, **{**plain, **special[name], **options})


@parity
@pytest.mark.parametrize(("name", "by"), WARPS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("resample", [Resampling.NEAREST, Resampling.BILINEAR])
@pytest.mark.parametrize("size", [(WIDTH, HEIGHT), (41, 41)])
def test_an_image_is_warped_as_in_torchvision(
    name: str, by: float, mode: str, resample: Resampling, size: tuple[int, int]
) -> None:
    moved = warp_image(make_image(mode, *size), our_affine(name, by, *size), resample=resample)
    expected = warp_with_torchvision(make_image(mode, *size), name, by, fill=128, interpolation=int(resample))
    assert_array_equal(np.asarray(moved), np.asarray(expected))


@parity
@pytest.mark.parametrize(("name", "by"), WARPS)
def test_a_mask_is_warped_as_in_torchvision(name: str, by: float) -> None:
    moved = np.asarray(warp_mask(make_image("L"), our_affine(name, by)))
    assert_array_equal(moved, np.asarray(warp_with_torchvision(make_image("L"), name, by, fill=0)))


@parity
@pytest.mark.parametrize(("name", "by"), WARPS)
def test_a_mask_is_warped_as_torchvisions_tensors_but_for_ties(name: str, by: float) -> None:
    """torchvision samples in single precision: ties between two pixels, or at the border, may be decided differently."""
    mask = reference_library("torchvision.tv_tensors").Mask(torch.from_numpy(np.array(make_image("L"))))
    differs: np.ndarray = (
        np.asarray(warp_mask(make_image("L"), our_affine(name, by))) != warp_with_torchvision(mask, name, by, fill=0).numpy()
    )
    assert differs.mean() <= (0.0 if name.startswith("translate") or by % 90 == 0 else 0.06)


@parity
@pytest.mark.parametrize(("name", "by"), WARPS)
def test_boxes_are_warped_as_in_torchvision(name: str, by: float) -> None:
    corners = np.random.default_rng(1).uniform(0, (WIDTH, HEIGHT), (11, 2, 2))
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    wrapped = reference_library("torchvision.tv_tensors").BoundingBoxes(
        torch.from_numpy(boxes), format="XYXY", canvas_size=(HEIGHT, WIDTH)
    )
    moved = warp_boxes(boxes, our_affine(name, by), WIDTH, HEIGHT)
    assert_allclose(moved, warp_with_torchvision(wrapped, name, by).numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "by"), WARPS)
def test_a_box_is_where_its_mask_is(name: str, by: float) -> None:
    left, top, right, bottom = 19, 13, 34, 24
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[top:bottom, left:right] = 7
    affine = our_affine(name, by)
    moved = np.asarray(warp_mask(Image.fromarray(mask), affine))
    box = warp_boxes(np.array([[left, top, right, bottom]], np.float32), affine, WIDTH, HEIGHT)[0]
    if not moved.any():
        assert (box[2] - box[0]) * (box[3] - box[1]) == 0
        return
    rows, columns = np.flatnonzero(moved.any(1)), np.flatnonzero(moved.any(0))
    around = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    assert_allclose(box, around, rtol=0, atol=1)  # a corner that misses a pixel's centre is not sampled


@pytest.mark.parametrize(("name", "by"), WARPS)
def test_a_mask_is_warped_like_its_image(name: str, by: float) -> None:
    grey = make_image("L").point([value // 2 + 100 for value in range(256)])  # no value equals the fill
    moved, mask = (np.asarray(move(grey, our_affine(name, by))) for move in (lambda p, h: warp_image(p, h, fill=0), warp_mask))
    assert_array_equal(moved, mask)


def test_a_mask_of_many_classes_keeps_them() -> None:
    mask = np.random.default_rng(2).integers(0, 70_000, (HEIGHT, WIDTH), dtype=np.int32)
    moved = np.asarray(warp_mask(Image.fromarray(mask), translation(right=5)))
    assert_array_equal(moved[:, 5:], mask[:, :-5])
    assert not moved[:, :5].any()


def test_no_boxes_stay_no_boxes() -> None:
    assert warp_boxes(np.zeros((0, 4)), rotation(20.0, WIDTH, HEIGHT), WIDTH, HEIGHT).shape == (0, 4)
