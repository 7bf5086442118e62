"""Scatter of predicted against true numbers, and the histogram of their differences."""

import re

import numpy as np
import pytest

from vitrail.plot.canvas import Bar, Dot, Line
from vitrail.plot.scatter import agreement_scatter, histogram


def test_equal_numbers_are_on_the_diagonal() -> None:
    figure = agreement_scatter("ages", [(3.0, 3.0), (70.0, 70.0), (20.0, 40.0)], ["a", "b", "c"])
    (diagonal,) = [shape for shape in figure.shapes if isinstance(shape, Line) and shape.dashed]
    (x0, y0), (x1, y1) = diagonal.points
    dots = [shape for shape in figure.shapes if isinstance(shape, Dot)]
    heights = [dot.position[1] - (y0 + (y1 - y0) * (dot.position[0] - x0) / (x1 - x0)) for dot in dots]
    assert heights[:2] == pytest.approx([0, 0], abs=1e-9)
    assert heights[2] < -1  # predicted too high: above the diagonal
    assert [dot.tooltip for dot in dots] == ["a", "b", "c"]


@pytest.mark.parametrize("values", [np.random.default_rng(0).normal(size=57), np.zeros(4)])
def test_a_histogram_counts_every_value(values: np.ndarray) -> None:
    bars = [shape for shape in histogram("errors", "predicted minus true", values).shapes if isinstance(shape, Bar)]
    counts = [int(found[1]) for bar in bars if (found := re.match(r"(\d+) images", bar.tooltip))]
    assert sum(counts) == len(values)


def test_a_single_value_is_drawn() -> None:
    assert agreement_scatter("one", [(5.0, 5.0)], ["a"]).to_svg()
