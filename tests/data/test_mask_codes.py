"""Run lengths and polygons are those of COCO's own tools, to the pixel and to the byte."""

from typing import Any

import numpy as np
import pytest
from numpy import ndarray
from pycocotools import mask as coco  # type: ignore[import-untyped]
from scipy.ndimage import label  # type: ignore[import-untyped]

from vitrail.data.mask_codes import (
    decode_rle,
    encode_rle,
    encode_uncompressed_rle,
    mask_area,
    mask_box,
    polygons_of,
    rasterise,
    rle_area,
)
from vitrail.errors import VitrailError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools itself

SIZES = ((1, 1), (1, 7), (9, 1), (13, 22), (31, 17), (40, 64))


def _random_mask(seed: int, size: tuple[int, int]) -> ndarray:
    rng = np.random.default_rng(seed)
    return rng.random(size) < rng.random()


def _by_coco(polygons: list[list[float]], size: tuple[int, int]) -> ndarray:
    return coco.decode(coco.merge(coco.frPyObjects(polygons, *size))).astype(bool)


def _random_polygon(rng: np.random.Generator, size: tuple[int, int], digits: int) -> list[float]:
    """Corners also outside the image, some of them twice; edges cross."""
    points = rng.uniform(-8, np.array(size[::-1]) + 8, (rng.integers(3, 12), 2)).round(digits)
    return np.concatenate([points, points[-1:], points[:1]])[: rng.integers(3, 14)].ravel().tolist()


@pytest.mark.parity
@pytest.mark.parametrize("size", SIZES)
def test_run_lengths_are_those_of_coco(size: tuple[int, int]) -> None:
    for seed in range(20):
        mask = _random_mask(seed, size)
        expected = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        rle = encode_rle(mask)
        assert rle == {"size": list(size), "counts": expected["counts"].decode()}
        assert coco.frPyObjects(encode_uncompressed_rle(mask), *size)["counts"] == expected["counts"]
        assert rle_area(rle) == mask_area(mask) == coco.area(expected)
        if mask.any():
            assert mask_box(mask) == coco.toBbox(expected).tolist()


@pytest.mark.parametrize("size", [*SIZES, (0, 0), (300, 2000)])
def test_run_lengths_decode_to_the_mask(size: tuple[int, int]) -> None:
    masks = [_random_mask(1, size), np.zeros(size, bool), np.ones(size, bool)]
    for mask in masks:
        np.testing.assert_array_equal(decode_rle(encode_rle(mask)), mask)
        np.testing.assert_array_equal(decode_rle(encode_uncompressed_rle(mask)), mask)


@pytest.mark.parity
@pytest.mark.parametrize("digits", [0, 1, 6])
def test_polygons_are_filled_as_coco_fills_them(digits: int) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, 45)), int(rng.integers(1, 45))
        polygons = [_random_polygon(rng, size, digits) for _ in range(rng.integers(1, 4))]
        np.testing.assert_array_equal(rasterise(polygons, size), _by_coco(polygons, size), err_msg=f"{size} {polygons}")


@pytest.mark.parity
def test_long_edges_are_filled_as_coco_fills_them() -> None:
    """They are walked in parts."""
    size = (30, 50)
    zigzag = np.random.default_rng(3).uniform(-30_000, 30_000, (40, 2)).ravel().tolist()
    np.testing.assert_array_equal(rasterise([zigzag], size), _by_coco([zigzag], size))


@pytest.mark.parity
@pytest.mark.parametrize("size", SIZES)
def test_the_polygons_of_a_mask_are_filled_to_it(size: tuple[int, int]) -> None:
    for seed in range(20):
        mask = _random_mask(seed, size)
        polygons = polygons_of(mask)
        np.testing.assert_array_equal(rasterise(polygons, size), mask)
        if polygons:
            np.testing.assert_array_equal(_by_coco(polygons, size), mask)
        assert sum(map(_area, polygons)) == mask.sum()  # holes count against their region
        assert len(polygons) == label(mask)[1]  # one per region


def _area(polygon: list[float]) -> float:
    x, y = np.array(polygon).reshape(-1, 2).T
    return float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum() / 2)


def test_a_hole_is_cut_in_from_the_left() -> None:
    ring = np.ones((3, 3), bool)
    ring[1, 1] = False
    outline, hole = [0, 0, 3, 0, 3, 3, 0, 3, 0, 1], [1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 0, 1]
    assert polygons_of(ring) == [[*outline, *hole]]


def test_polygons_without_an_inside_are_empty() -> None:
    assert not rasterise([[], [3, 4], [1, 1, 9, 9], [2, 2, 2, 2, 2, 2]], (12, 10)).any()
    assert polygons_of(np.zeros((4, 5))) == []


@pytest.mark.parametrize(
    ("rle", "sentence"),
    [
        ({}, "size of height and width"),
        ({"size": [2, 3], "counts": [1, 2]}, r"add up to 2 x 3 = 6 pixels, got 3"),
        ({"size": [2, 3], "counts": [8, -2]}, "add up"),
        ({"size": [2, 3], "counts": None}, "a text or a list"),
        ({"size": [2, 3], "counts": [6.0]}, "a text or a list"),
        ({"size": [2, 3], "counts": [10**30]}, "a text or a list"),
        ({"size": [2, 3], "counts": "\x01"}, "characters that COCO does not write"),
        ({"size": [2, 3], "counts": "é"}, "add up|characters"),
        ({"size": [2, 3], "counts": "o"}, "characters"),
        ({"size": [2, 3], "counts": "oooooooo0"}, "35 bits"),
        ({"size": [10**6, 10**6], "counts": [10**12]}, "at most"),
    ],
)
def test_damaged_run_lengths_are_refused(rle: dict[str, Any], sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        decode_rle(rle)


@pytest.mark.parametrize(
    "polygon", [[1, 2, 3], ["a", "b"], [[1, 2], [3, 4]], [0, 0, 1, float("nan"), 2, 2], [0, 0, 1e9, 0, 5, 5]]
)
def test_damaged_polygons_are_refused(polygon: Any) -> None:
    with pytest.raises(VitrailError, match=r"a polygon"):
        rasterise([polygon], (4, 5))
