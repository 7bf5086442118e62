"""Crops are drawn as by torchvision, and an image, its mask and its boxes are cropped consistently."""

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats  # type: ignore[import-untyped]
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from vitrail.augment.counter_rng import uniforms
from vitrail.augment.crop import (
    CROP_SLOTS,
    crop_boxes,
    crop_mask,
    crop_resize,
    crop_resize_batch,
    draw_letterbox,
    draw_padded_crop,
    draw_random_resized_crop,
    padded_crop,
)

parity = pytest.mark.parity
RATIO = (3 / 4, 4 / 3)
PIXELS = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)


def draw_crops(count: int, size: tuple[int, int], area: tuple[float, float] = (0.08, 1.0)) -> Any:
    u = uniforms(0, 0, np.arange(count), CROP_SLOTS)
    return draw_random_resized_crop(u, np.broadcast_to(np.array(size), (count, 2)), area, RATIO)


def functional() -> Any:
    reference_library("torchvision")
    return import_module("torchvision.transforms.v2.functional")


@parity
@pytest.mark.parametrize("size", [(240, 320), (40, 400), (333, 20)])
def test_random_resized_crops_are_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    reference_library("torchvision")
    v2 = import_module("torchvision.transforms.v2")
    torch.manual_seed(0)
    theirs = [v2.RandomResizedCrop(8).make_params([torch.empty(3, *size)]) for _ in range(3000)]
    ours = draw_crops(3000, size)
    for column, name in enumerate(("top", "left", "height", "width")):
        assert stats.ks_2samp(ours[:, column], [one[name] for one in theirs], method="asymp").pvalue > 1e-3, name


@pytest.mark.parametrize("size", [(300, 400), (50, 200), (333, 111), (1, 20_000), (20_000, 1), (4, 5)])
def test_a_letterbox_is_a_box_of_the_canvas_with_the_images_aspect_ratio(size: tuple[int, int]) -> None:
    canvas, scale, ratio = (96, 120), (0.2, 0.9), (0.8, 1.25)
    u = uniforms(0, 0, np.arange(400), CROP_SLOTS)
    boxes = draw_letterbox(u, np.broadcast_to(np.array(size), (400, 2)), canvas, scale, ratio)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= canvas).all()
    if max(size) > 1000:  # a line is never thinner than a pixel
        assert (boxes[:, 2:].min(1) == 1).all()
        return
    aspect = size[1] / size[0]
    largest = min(96 * 96 * aspect, 120 * 120 / aspect)
    areas, aspects = boxes[:, 2] * boxes[:, 3], boxes[:, 3] / boxes[:, 2]
    assert ((0.93 * scale[0] < areas / largest) & (areas / largest < 1.07 * scale[1])).all()  # whole pixels
    assert ((0.93 * ratio[0] < aspects / aspect) & (aspects / aspect < 1.07 * ratio[1])).all()
    assert len(np.unique(boxes, axis=0)) > 300


def test_an_image_of_the_canvas_aspect_ratio_fills_the_boxes_that_a_crop_cuts_out() -> None:
    u, ratio = uniforms(0, 0, np.arange(50), CROP_SLOTS), (0.8, 1.25)
    boxes = draw_letterbox(u, np.full((50, 2), 31), (96, 96), (0.1, 1.0), ratio)
    assert np.array_equal(boxes, draw_random_resized_crop(u, np.full((50, 2), 96), (0.1, 1.0), ratio))


@pytest.mark.parametrize("size", [(9, 1), (1, 1), (1, 9), (31, 47), (5, 2000)])
def test_every_crop_lies_inside_the_image(size: tuple[int, int]) -> None:
    crops = draw_crops(500, size)
    assert (crops[:, :2] >= 0).all()
    assert (crops[:, 2:] >= 1).all()
    assert (crops[:, :2] + crops[:, 2:] <= size).all()


def test_if_nothing_fits_the_centre_is_cropped_at_the_nearest_aspect_ratio() -> None:
    assert draw_crops(3, (10, 1000), (0.9, 1.0)).tolist() == [[0, 493, 10, 13]] * 3
    assert draw_crops(3, (1000, 10), (0.9, 1.0)).tolist() == [[493, 0, 13, 10]] * 3


def test_a_crop_drawn_alone_is_the_one_drawn_in_a_batch() -> None:
    sizes = np.array([[30, 40], [100, 20], [7, 7]])
    u = uniforms(0, 2, np.arange(3), CROP_SLOTS)
    alone = [draw_random_resized_crop(u[i : i + 1], sizes[i : i + 1], (0.05, 1.0), RATIO)[0] for i in range(3)]
    assert np.array_equal(draw_random_resized_crop(u, sizes, (0.05, 1.0), RATIO), np.stack(alone))


@parity
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("crop", [(0, 0, 37, 53), (5, 11, 20, 9), (30, 2, 3, 50), (36, 52, 1, 1)])
def test_cropping_and_resizing_is_torchvisions_and_pillows(crop: tuple[int, int, int, int], flip: bool, mode: str) -> None:
    f = functional()
    top, left, high, wide = crop
    ours = crop_resize(PIXELS, crop, (24, 16), flip, mode)
    tensor = torch.from_numpy(PIXELS).permute(2, 0, 1)
    theirs = f.resized_crop(tensor, top, left, high, wide, [24, 16], f.InterpolationMode[mode.upper()], antialias=True)
    assert torch.equal(ours, f.horizontal_flip(theirs) if flip else theirs)
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    pillow = Image.fromarray(PIXELS).crop((left, top, left + wide, top + high)).resize((16, 24), filters[mode])
    values = np.asarray(pillow)[:, ::-1] if flip else np.asarray(pillow)
    assert np.abs(values.astype(int) - ours.permute(1, 2, 0).numpy().astype(int)).max() <= 1


@parity
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_equals_its_images_one_by_one(mode: str, channels: int) -> None:
    f = functional()
    images = np.random.default_rng(1).integers(0, 256, (40, 19, 23, channels), dtype=np.uint8)
    crops = draw_crops(40, (19, 23), (0.05, 1.0))
    flips = np.arange(40) % 3 == 0
    together = crop_resize_batch(images, crops, flips, (14, 17), mode)
    for image, crop, flip, ours in zip(images, crops.tolist(), flips, together, strict=True):
        planes = torch.from_numpy(image).permute(2, 0, 1).float()
        theirs = f.resized_crop(planes, *crop, [14, 17], f.InterpolationMode[mode.upper()], antialias=True).clamp(0, 255)
        assert_close(ours, f.horizontal_flip(theirs) if flip else theirs, rtol=0, atol=2e-3)


@parity
def test_a_padded_crop_is_torchvisions_pad_and_crop() -> None:
    f = functional()
    images = np.random.default_rng(1).integers(0, 256, (30, 9, 12, 3), dtype=np.uint8)
    crops = draw_padded_crop(uniforms(0, 0, np.arange(30), CROP_SLOTS), (9, 12), 4)
    assert {*crops[:, 0].tolist()} == set(range(-4, 5))
    flips = np.arange(30) % 2 == 0
    for image, crop, flip, ours in zip(images, crops.tolist(), flips, padded_crop(images, crops, flips, 4), strict=True):
        theirs = f.crop(f.pad(torch.from_numpy(image).permute(2, 0, 1), [4]), crop[0] + 4, crop[1] + 4, 9, 12)
        assert np.array_equal(ours, (f.horizontal_flip(theirs) if flip else theirs).permute(1, 2, 0).numpy())


@parity
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("crop", [(5, 11, 20, 9), (0, 0, 37, 53), (30, 2, 3, 50)])
def test_a_mask_and_boxes_are_cropped_as_in_torchvision(crop: tuple[int, int, int, int], flip: bool) -> None:
    f, tv = functional(), import_module("torchvision.tv_tensors")
    size = (24, 16)
    mask = np.random.default_rng(2).integers(0, 5, (37, 53), dtype=np.uint8)
    # torchvision resizes masks by the older "nearest", which is half a pixel off against the image
    theirs = f.resized_crop(torch.from_numpy(mask)[None], *crop, list(size), f.InterpolationMode.NEAREST_EXACT)
    theirs = f.horizontal_flip(theirs) if flip else theirs
    assert np.array_equal(crop_mask(mask, crop, size, flip), theirs[0].numpy())
    boxes = np.array([[3.0, 4.0, 20.0, 30.0], [40.0, 1.0, 53.0, 9.0]])
    marked = tv.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(37, 53))
    moved = f.clamp_bounding_boxes(f.resized_crop(marked, *crop, list(size)))
    moved = f.horizontal_flip(moved) if flip else moved
    assert_close(crop_boxes(boxes, crop, size, flip), moved.numpy(), rtol=0, atol=1e-5)  # torchvision's scales are float32


@pytest.mark.parametrize("crop", [(4, 6, 20, 30), (-3, 2, 37, 53), (10, 10, 37, 53)])
def test_a_flipped_box_is_where_the_flipped_mask_is(crop: tuple[int, int, int, int]) -> None:
    mask = np.zeros((37, 53), np.uint8)
    mask[8:20, 12:40] = 1
    size = (crop[2], crop[3])
    cropped = crop_mask(mask, crop, size, flip=True)
    left, top, right, bottom = crop_boxes(np.array([[12.0, 8.0, 40.0, 20.0]]), crop, size, flip=True)[0]
    rows, columns = np.flatnonzero(cropped.any(1)), np.flatnonzero(cropped.any(0))
    assert (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1) == (left, top, right, bottom)
    assert math.isclose(cropped.sum(), (right - left) * (bottom - top))
