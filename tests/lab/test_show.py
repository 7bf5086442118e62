"""Summaries of scores: differences, significance, selection on validation."""

import math

import pytest

from vitrail.lab.show import best, cell, gain, gap, middle, over
from vitrail.lab.trial import Row


def rows(*values: float | None, first: int = 0) -> list[Row]:
    return [
        Row({"seed": first + place}, "", 1, 1, 1, 1, scores=_told(value), failed=None if value else "diverged")
        for place, value in enumerate(values)
    ]


def _told(value: float | None) -> dict[str, dict[str, float]]:
    return {} if value is None else {"test": {"top1": value}, "validation": {"top1": 1 - value}}


def test_a_difference_is_paired_with_student_s_interval() -> None:
    found = gap(rows(0.62, 0.65, 0.63), rows(0.6, 0.6, 0.6))
    assert found is not None
    assert found.mean == pytest.approx(1 / 30)
    assert found.half == pytest.approx(4.303 * 0.0152753 / 3**0.5, rel=1e-4)
    assert not found.clear
    assert found.words == "+3.3 ± 3.8 points"
    level = gap(rows(0.7, 0.8, 0.9), rows(0.6, 0.7, 0.8))  # seeds differ, but not the paired differences
    assert level is not None
    assert level.clear
    assert gap(rows(0.5), rows(0.5, first=1)) is None
    alone = gap(rows(0.6), rows(0.5))
    assert alone is not None
    assert (alone.half, alone.clear) == (None, False)


def test_a_cell_counts_the_diverged_runs() -> None:
    assert cell(rows(None, None)) == '<span class="bad">diverged</span>'
    assert "1 of 3 diverged" in cell(rows(0.5, None, 0.6))
    assert math.isnan(middle(rows(None)))


def test_the_best_is_selected_on_validation() -> None:
    assert best({1: rows(0.9), 2: rows(0.2), 3: rows(None)}) == 2
    assert best({1: rows(None)}) is None


def test_a_setting_that_diverges_for_some_seeds_is_not_selected() -> None:
    assert best({1: rows(0.1, None, None), 2: rows(0.3, 0.3, 0.3)}) == 2
    assert best({1: rows(0.1, None, None), 2: rows(0.3, None, None)}) == 1


def test_a_difference_of_differences_is_paired_by_seed() -> None:
    found = gain((rows(0.5, 0.6, 0.7), rows(0.6, 0.7, 0.8)), (rows(0.8, 0.8, 0.8), rows(0.7, 0.7, 0.7)))
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    assert found.clear
    assert gain((rows(0.5), rows(None)), (rows(0.5), rows(0.5))) is None


def test_lines_over_a_log_axis_have_tick_labels() -> None:
    drawn = over(
        "t", "learning rate", {"a": {1e-3: rows(0.5), 1e-2: rows(0.6)}, "b": {1e-3: rows(None)}}, lambda x: f"{x:g}"
    ).svg()
    assert ">0.001<" in drawn
    assert ">0.01<" in drawn
    assert "a, 0.01: 60.0%" in drawn
