"""Patch embedding by convolution equals flattening and multiplying, by every implementation."""

import pytest
import torch
from torch.testing import assert_close

from vitrail.lab.experiment import Asked
from vitrail.lab.patches import CONVOLUTION, KINDS, ROUTES, WRONG, by_convolution, differences, in_wrong_order, tell
from vitrail.report.drawing import Drawing, Words


@pytest.mark.parametrize("route", [name for name in ROUTES if name != WRONG])
def test_every_implementation_equals_the_convolution(route: str) -> None:
    images, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 3, 20, 12), (7, 3, 5, 4), (7,)))
    found = ROUTES[route](images, weight, bias)
    assert found.shape == (2, 4 * 3, 7)
    assert_close(found, by_convolution(images, weight, bias), rtol=1e-12, atol=1e-12)


def test_the_order_of_flattening_matters_but_for_a_single_channel() -> None:
    for channels, same in ((3, False), (1, True)):
        images, weight, bias = torch.randn(2, channels, 20, 12), torch.randn(7, channels, 5, 4), torch.randn(7)
        difference = (in_wrong_order(images, weight, bias) - by_convolution(images, weight, bias)).abs().max()
        assert bool(difference < 1e-4) == same


def test_differences_are_relative_to_the_largest_number() -> None:
    images, weight, bias = torch.randn(1, 3, 20, 12), torch.randn(7, 3, 5, 4), torch.zeros(7)
    one, larger = (differences(times * images, weight, bias, torch.float64)[WRONG] for times in (1, 1000))
    assert one == pytest.approx(larger)
    assert one > 0.1


def test_the_page_has_the_textbook_shapes_and_every_implementation() -> None:
    result = tell(Asked("panes:count=20,size=64"), [])
    words = "".join(part for part in result.parts if isinstance(part, str))
    for shape in ("224 x 224 x 3", "196 of 16 x 16 x 3", "196 x 768", "768 x 768"):
        assert shape in words
    for kind in KINDS:
        assert result.numbers["differences"][kind].keys() == ROUTES.keys()
        assert result.numbers["differences"][kind][CONVOLUTION] == 0
    (drawing,) = (part for part in result.parts if isinstance(part, Drawing))
    lines = [shape for shape in drawing.shapes if isinstance(shape, Words)]
    assert max(line.at[0] + 6.5 * len(line.words) for line in lines) < drawing.size[0]  # none is cut off
    right = [value for name, value in result.numbers["differences"]["float64"].items() if name != WRONG]
    assert max(right) < 1e-14
