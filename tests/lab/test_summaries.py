"""Summaries of scores: differences, significance, selection on validation."""

import math

import pytest

from vitrail.lab.summaries import (
    difference_of_differences,
    line_plot,
    mean_score,
    paired_difference,
    score_cell,
    select_on_validation,
)
from vitrail.lab.trials import JobResult


def make_results(*values: float | None, first: int = 0) -> list[JobResult]:
    return [
        JobResult({"seed": first + index}, "", 1, 1, 1, 1, scores=_scores(value), failure=None if value else "diverged")
        for index, value in enumerate(values)
    ]


def _scores(value: float | None) -> dict[str, dict[str, float]]:
    return {} if value is None else {"test": {"top1": value}, "validation": {"top1": 1 - value}}


def test_a_difference_is_paired_with_student_s_interval() -> None:
    result = paired_difference(make_results(0.62, 0.65, 0.63), make_results(0.6, 0.6, 0.6))
    assert result is not None
    assert result.mean == pytest.approx(1 / 30)
    assert result.ci_half_width == pytest.approx(4.303 * 0.0152753 / 3**0.5, rel=1e-4)
    assert not result.significant
    assert result.text == "+3.3 ± 3.8 points"
    level = paired_difference(
        make_results(0.7, 0.8, 0.9), make_results(0.6, 0.7, 0.8)
    )  # seeds differ, but not the paired differences
    assert level is not None
    assert level.significant
    assert paired_difference(make_results(0.5), make_results(0.5, first=1)) is None
    alone = paired_difference(make_results(0.6), make_results(0.5))
    assert alone is not None
    assert (alone.ci_half_width, alone.significant) == (None, False)


def test_a_cell_counts_the_diverged_runs() -> None:
    assert score_cell(make_results(None, None)) == '<span class="bad">diverged</span>'
    assert "1 of 3 diverged" in score_cell(make_results(0.5, None, 0.6))
    assert math.isnan(mean_score(make_results(None)))


def test_the_best_is_selected_on_validation() -> None:
    assert select_on_validation({1: make_results(0.9), 2: make_results(0.2), 3: make_results(None)}) == 2
    assert select_on_validation({1: make_results(None)}) is None


def test_a_setting_that_diverges_for_some_seeds_is_not_selected() -> None:
    assert select_on_validation({1: make_results(0.1, None, None), 2: make_results(0.3, 0.3, 0.3)}) == 2
    assert select_on_validation({1: make_results(0.1, None, None), 2: make_results(0.3, None, None)}) == 1


def test_a_difference_of_differences_is_paired_by_seed() -> None:
    result = difference_of_differences(
        (make_results(0.5, 0.6, 0.7), make_results(0.6, 0.7, 0.8)), (make_results(0.8, 0.8, 0.8), make_results(0.7, 0.7, 0.7))
    )
    assert result is not None
    assert result.mean == pytest.approx(0.2)
    assert result.significant
    assert difference_of_differences((make_results(0.5), make_results(None)), (make_results(0.5), make_results(0.5))) is None


def test_lines_over_a_log_axis_have_tick_labels() -> None:
    samples = line_plot(
        "t",
        "learning rate",
        {"a": {1e-3: make_results(0.5), 1e-2: make_results(0.6)}, "b": {1e-3: make_results(None)}},
        lambda x: f"{x:g}",
    ).to_svg()
    assert ">0.001<" in samples
    assert ">0.01<" in samples
    assert "a, 0.01: 60.0%" in samples
