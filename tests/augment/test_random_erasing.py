"""Random Erasing draws and erases as torchvision does, and its noise depends on the image."""

import math

import numpy as np
import pytest
import torch
from numpy import ndarray
from numpy.testing import assert_array_equal
from scipy.stats import ks_2samp, kstest  # type: ignore[import-untyped]
from torch import Tensor
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from vitrail.augment.counter_rng import random_bits, uniforms
from vitrail.augment.random_erasing import ERASE_SLOTS, draw_erase, erase

AREA, RATIO = (0.02, 0.33), (0.3, 3.3)
SIZE = (31, 45)


def draw_boxes(n: int, probability: float = 1.0, area: tuple[float, float] = AREA, size: tuple[int, int] = SIZE) -> ndarray:
    return draw_erase(uniforms(1, 0, np.arange(n), ERASE_SLOTS), probability, area, RATIO, size)


def images(n: int = 6) -> Tensor:
    return torch.rand(n, 3, *SIZE, generator=torch.Generator().manual_seed(0)) + 1


def keys(n: int = 6) -> ndarray:
    return random_bits(1, 0, np.arange(n), 99)[:, 0]


@pytest.mark.parity
@pytest.mark.parametrize("area", [AREA, (0.6, 1.0)])
def test_rectangles_are_drawn_as_by_torchvision(area: tuple[float, float]) -> None:
    reference = reference_library("torchvision.transforms.v2").RandomErasing(p=1.0, scale=area, ratio=RATIO)
    params = [reference.make_params([torch.zeros(3, *SIZE)]) for _ in range(3000)]
    expected = np.array([[p["i"], p["j"], p["h"], p["w"]] if p["v"] is not None else [0, 0, 0, 0] for p in params])
    boxes = draw_boxes(20_000, area=area)
    for side in range(4):
        assert ks_2samp(boxes[:, side], expected[:, side]).pvalue > 1e-3
    assert ks_2samp(boxes[:, 2] * boxes[:, 3], expected[:, 2] * expected[:, 3]).pvalue > 1e-3


def test_the_first_shape_that_fits_is_used() -> None:
    """The same numbers, one sample at a time."""
    u = uniforms(1, 0, np.arange(200), ERASE_SLOTS)
    sizes = np.random.default_rng(0).integers(5, 60, (200, 2))
    boxes = draw_erase(u, 0.7, (0.3, 0.9), RATIO, sizes)
    late = 0
    for row, (height, width), box in zip(u, sizes.tolist(), boxes, strict=True):
        expected = [0, 0, 0, 0]
        for attempt in range(10) if row[0] < 0.7 else ():
            pixels = height * width * (0.3 + 0.6 * row[3 + 2 * attempt])
            aspect = math.exp(math.log(0.3) + (math.log(3.3) - math.log(0.3)) * row[4 + 2 * attempt])
            high, wide = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
            if high < height and wide < width:
                expected = [int(row[1] * (height - high + 1)), int(row[2] * (width - wide + 1)), high, wide]
                late += attempt > 0
                break
        assert box.tolist() == expected
    assert late > 20


def test_a_rectangle_lies_inside_and_one_that_never_fits_is_none() -> None:
    boxes = draw_boxes(5000)
    assert (boxes >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= SIZE).all()
    assert not draw_boxes(50, area=(1.0, 1.0), size=(7, 7)).any()


def test_the_fraction_of_erased_images_is_the_probability() -> None:
    fraction = (draw_boxes(20_000, probability=0.25)[:, 2] > 0).mean()
    assert fraction == pytest.approx(0.25, abs=0.01)
    assert not draw_boxes(300, probability=0.0).any()


@pytest.mark.parity
def test_zeros_are_torchvisions() -> None:
    functional = reference_library("torchvision.transforms.v2.functional")
    boxes = draw_boxes(6, probability=0.6)
    assert 0 < (boxes[:, 2] > 0).sum() < 6
    expected = [
        functional.erase(image, *box, v=torch.zeros(1, 1, 1)) for image, box in zip(images(), boxes.tolist(), strict=True)
    ]
    assert_close(erase(images(), boxes), torch.stack(expected), rtol=0, atol=0)


def test_noise_depends_on_the_image_not_on_its_position_in_the_batch() -> None:
    boxes, order = draw_boxes(6), np.array([3, 1, 5, 0, 2, 4])
    together = erase(images(), boxes, keys())
    shuffled = erase(images()[order], boxes[order], keys()[order])
    assert_close(shuffled, together[order], rtol=0, atol=0)
    assert not torch.equal(erase(images(), boxes, keys()[::-1].copy()), together)


def test_noise_is_only_inside_the_rectangle() -> None:
    boxes = draw_boxes(6)
    noisy, empty = erase(images(), boxes, keys()), erase(images(), boxes)
    assert_array_equal((noisy != images()).numpy(), (empty == 0).numpy())


def test_noise_is_normal_and_differs_between_images_and_channels() -> None:
    whole = np.tile([0, 0, 101, 57], (4, 1))
    noise = erase(torch.zeros(4, 3, 101, 57), whole, keys(4)).flatten(2).double()
    assert kstest(noise.numpy().ravel(), "norm").pvalue > 1e-3
    between = torch.corrcoef(noise.flatten(0, 1)) - torch.eye(12)
    assert between.abs().max() < 0.06
    along = torch.corrcoef(torch.stack([noise.ravel()[:-1], noise.ravel()[1:]]))[0, 1]
    assert abs(along) < 0.02


def test_half_precision_is_erased_too() -> None:
    boxes = draw_boxes(6)
    assert_close(erase(images().bfloat16(), boxes, keys()), erase(images(), boxes, keys()).bfloat16(), rtol=0, atol=0)
