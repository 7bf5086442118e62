"""Patch embedding by convolution equals flattening and multiplying, by every implementation."""

import pytest
import torch
from torch.testing import assert_close

from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.patch_embedding import (
    CONV2D,
    DTYPES,
    IMPLEMENTATIONS,
    WRONG_ORDER,
    build_result,
    embed_by_convolution,
    embed_in_wrong_order,
    relative_differences,
)
from vitrail.plot.canvas import Figure, Text


@pytest.mark.parametrize("route", [name for name in IMPLEMENTATIONS if name != WRONG_ORDER])
def test_every_implementation_equals_the_convolution(route: str) -> None:
    images, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 3, 20, 12), (7, 3, 5, 4), (7,)))
    result = IMPLEMENTATIONS[route](images, weight, bias)
    assert result.shape == (2, 4 * 3, 7)
    assert_close(result, embed_by_convolution(images, weight, bias), rtol=1e-12, atol=1e-12)


def test_the_order_of_flattening_matters_but_for_a_single_channel() -> None:
    for channels, same in ((3, False), (1, True)):
        images, weight, bias = torch.randn(2, channels, 20, 12), torch.randn(7, channels, 5, 4), torch.randn(7)
        difference = (embed_in_wrong_order(images, weight, bias) - embed_by_convolution(images, weight, bias)).abs().max()
        assert bool(difference < 1e-4) == same


def test_differences_are_relative_to_the_largest_number() -> None:
    images, weight, bias = torch.randn(1, 3, 20, 12), torch.randn(7, 3, 5, 4), torch.zeros(7)
    one, larger = (relative_differences(times * images, weight, bias, torch.float64)[WRONG_ORDER] for times in (1, 1000))
    assert one == pytest.approx(larger)
    assert one > 0.1


def test_the_page_has_the_textbook_shapes_and_every_implementation() -> None:
    result = build_result(ExperimentOptions("panes:train_size=20,size=64"), [])
    text = "".join(part for part in result.parts if isinstance(part, str))
    for shape in ("224 x 224 x 3", "196 of 16 x 16 x 3", "196 x 768", "768 x 768"):
        assert shape in text
    for kind in DTYPES:
        assert result.numbers["differences"][kind].keys() == IMPLEMENTATIONS.keys()
        assert result.numbers["differences"][kind][CONV2D] == 0
    (drawing,) = (part for part in result.parts if isinstance(part, Figure))
    lines = [shape for shape in drawing.shapes if isinstance(shape, Text)]
    assert max(line.position[0] + 6.5 * len(line.text) for line in lines) < drawing.size[0]  # none is cut off
    right = [value for name, value in result.numbers["differences"]["float64"].items() if name != WRONG_ORDER]
    assert max(right) < 1e-14
