"""Line charts have round ticks, enough of them, and lines at their points."""

import math
import re

import pytest

from vitrail.plot.html_line_chart import (
    LEFT,
    MAX_POINTS_PER_LINE,
    RIGHT,
    WIDTH,
    downsample,
    legend_html,
    line_chart_html,
    ticks,
)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.9), (0.07, 0.93), (2.2, 2.5), (0, 1900), (1e-6, 3e-3), (-4, 4), (0.1, 0.100001)]
)
def test_ticks_are_round_and_between_two_and_nine(low: float, high: float) -> None:
    result = ticks(low, high)
    assert 2 <= len(result) <= 9
    gap = result[1] - result[0]
    assert round(gap / 10 ** math.floor(math.log10(gap * 1.0001)), 3) in (1, 2, 5)
    assert all(low - gap * 1e-6 <= value <= high + gap * 1e-6 for value in result)


def test_a_long_line_is_downsampled_by_means_and_nan_is_dropped() -> None:
    line = [(float(step), float(step % 2)) for step in range(10 * MAX_POINTS_PER_LINE)]
    made = downsample([*line, (1.0, math.nan)])
    assert len(made) <= MAX_POINTS_PER_LINE
    assert all(abs(y - 0.5) < 0.06 for _, y in made)
    assert line_chart_html("empty", {"a": [(1.0, math.nan)]}) == ""


def test_the_line_goes_through_its_points() -> None:
    drawn = line_chart_html("Loss <1>", {"a": [(0.0, 0.0), (10.0, 1.0)]}, percent=True)
    assert 'points="52.0,194.0 496.0,12.0"' in drawn
    assert "Loss &lt;1&gt;" in drawn
    assert "40%" in drawn


def test_the_last_tick_label_is_not_cut_off() -> None:
    drawn = line_chart_html("Loss", {"a": [(0.0, 0.0), (200_000.0, 1.0)]})
    positions = {shown: float(x) for x, shown in re.findall(r'<text x="([0-9.]+)"[^>]*middle">([^<]*)<', drawn)}
    letter = 6.2  # pixels wide at 11 pixels, in most fonts
    assert positions["200,000"] + letter * len("200,000") / 2 <= WIDTH


def test_a_flat_line_and_a_short_run_have_sensible_axes() -> None:
    drawn = line_chart_html("Accuracy", {"a": [(1.0, 0.02), (2.0, 0.02)]}, percent=True)
    shown = re.findall(r'end">(-?[0-9.]+)%<', drawn)
    assert shown
    assert all(0 <= float(value) <= 10 for value in shown)
    assert re.findall(r'middle">([^<]*)<', drawn) == ["0", "1", "2"]
    assert line_chart_html("Accuracy", {"a": [(2.0, 0.5)]}).count("<circle") == 1


def test_indices_have_a_column_and_a_dot_each_and_colours_do_not_run_out() -> None:
    lines = {f"model {number}": [(0.0, 0.1 * number), (1.0, 0.5)] for number in range(6)}
    drawn = line_chart_html("Accuracy", lines, percent=True, columns=3, y_range=(0.0, 1.0), legend=False)
    assert drawn.count("<polyline") == 6
    assert drawn.count("<circle") == 12
    assert drawn.count("stroke-dasharray") == 2
    spots = [float(x_position) for x_position in re.findall(r'cx="([\d.]+)"', drawn)[:2]]
    assert spots[1] - spots[0] == pytest.approx((WIDTH - LEFT - RIGHT) / 3, abs=0.1)
    assert spots[0] == pytest.approx(LEFT + (WIDTH - LEFT - RIGHT) / 6, abs=0.1)
    assert "model 0: 0.0%" in drawn
    assert "&#9632;" not in drawn
    assert legend_html(lines).count("&#9632;") == 4
