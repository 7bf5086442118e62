"""Line charts have round ticks, enough of them, and lines, dots and bars at their values."""

import math
import re
from pathlib import Path

import pytest
import torch

from tests.training.small_run import recipe
from vitrail.evaluation.calibration import compute_reliability
from vitrail.plot.canvas import Bar, Dot, Figure, Line, Text, legend_html
from vitrail.plot.line_chart import (
    FLUID_LEFT,
    FLUID_RIGHT,
    MAX_POINTS_PER_LINE,
    WIDTH,
    downsample,
    line_chart,
    line_styles,
    reliability_diagram,
    ticks,
)
from vitrail.report.run_page import run_page
from vitrail.training.run import Run
from vitrail.training.trainer import Hardware, fit


def lines_of(figure: Figure) -> list[Line]:
    """The curves of a fluid chart; grid lines have no tooltip."""
    return [shape for shape in figure.shapes if isinstance(shape, Line) and shape.tooltip]


def texts_of(figure: Figure, anchor: str) -> list[Text]:
    """The tick labels: those of the y axis have the anchor ``end``, those of the x axis ``middle``."""
    return [shape for shape in figure.shapes if isinstance(shape, Text) and shape.anchor == anchor]


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
    built = downsample([*line, (1.0, math.nan)])
    assert len(built) <= MAX_POINTS_PER_LINE
    assert all(abs(y - 0.5) < 0.06 for _, y in built)


def test_the_line_goes_through_its_points_from_corner_to_corner() -> None:
    figure = line_chart("Loss <1>", "", "", {"a": [(0.0, 0.0), (10.0, 1.0)]}, percent=True, fluid=True)
    (line,) = lines_of(figure)
    (left, bottom), (right, top) = line.points
    assert (left, right) == (FLUID_LEFT, WIDTH - FLUID_RIGHT)
    assert 0 < top < bottom < figure.size[1]
    assert "Loss &lt;1&gt;" in figure.to_html()
    assert "40%" in [text.text for text in texts_of(figure, "end")]


def test_the_last_tick_label_is_not_cut_off() -> None:
    figure = line_chart("Loss", "", "", {"a": [(0.0, 0.0), (200_000.0, 1.0)]}, fluid=True)
    positions = {text.text: text.position[0] for text in texts_of(figure, "middle")}
    letter = 6.2  # pixels wide at 11 pixels, in most fonts
    assert positions["200,000"] + letter * len("200,000") / 2 <= WIDTH


def test_a_flat_line_and_a_short_run_have_sensible_axes() -> None:
    figure = line_chart("Accuracy", "", "", {"a": [(1.0, 0.02), (2.0, 0.02)]}, x_min=0, percent=True, fluid=True)
    printed = [float(text.text.rstrip("%")) for text in texts_of(figure, "end")]
    assert printed
    assert all(0 <= value <= 10 for value in printed)
    assert [text.text for text in texts_of(figure, "middle")] == ["0", "1", "2"]
    assert line_chart("Accuracy", "", "", {"a": [(2.0, 0.5)]}, fluid=True).to_html().count("<circle") == 1


def test_indices_have_a_column_and_a_dot_each_and_colours_do_not_run_out() -> None:
    lines = {f"model {number}": [(0.0, 0.1 * number), (1.0, 0.5)] for number in range(8)}
    figure = line_chart("Accuracy", "", "", lines, columns=3, y_min=0, y_max=1, percent=True, fluid=True, legend=False)
    samples = lines_of(figure)
    assert [line.tooltip for line in samples] == list(lines)
    assert [line.dashed for line in samples] == [False] * 6 + [True] * 2
    assert len({(line.colour, line.dashed) for line in samples}) == 8
    dots = [shape for shape in figure.shapes if isinstance(shape, Dot)]
    assert len(dots) == 16
    column = (WIDTH - FLUID_LEFT - FLUID_RIGHT) / 3
    assert dots[0].position[0] == pytest.approx(FLUID_LEFT + column / 2)
    assert dots[1].position[0] - dots[0].position[0] == pytest.approx(column)
    assert dots[2].tooltip == "model 1, 0: 10%"
    assert "&#9632;" not in figure.to_html()
    assert legend_html(line_styles(lines)).count("&#9632;") == 6


def test_dots_of_a_chart_lie_at_their_values() -> None:
    drawing = line_chart("far", "pixels", "layer", dots=[(0.0, 10.0, "low"), (1.0, 20.0, "high")], columns=2, y_min=0)
    low, high = (shape for shape in drawing.shapes if isinstance(shape, Dot))
    ground = 260 - 36
    assert (ground - low.position[1]) * 2 == ground - high.position[1]
    assert low.position[0] < high.position[0]


def test_lines_of_a_chart_have_names_and_baselines_are_dashed() -> None:
    lines = {"random": [(0.0, 0.5), (1.0, 0.4)], "rollout": [(0.0, 0.5), (1.0, float("nan"))]}
    drawing = line_chart("curves", "probability", "fraction", lines, dashed=["random"], percent=True)
    assert drawing.to_svg().count('stroke-dasharray="5 4"') == 2  # the line, and its legend entry
    assert ">rollout<" in drawing.to_svg()
    assert ">50%<" in drawing.to_svg()
    assert drawing.to_image(1).size == drawing.framed_size


def test_a_line_may_have_a_colour_of_its_own() -> None:
    lines = {"one": [(0.0, 1.0), (1.0, 2.0)], "other": [(0.0, 2.0), (1.0, 1.0)]}
    plain, coloured = (line_chart("t", "", "", lines, colours=colours, fluid=True) for colours in (None, {"other": "#123456"}))
    assert coloured.legend[0] == plain.legend[0]
    assert coloured.legend[1].colour == "#123456" != plain.legend[1].colour
    assert [line.colour for line in lines_of(coloured)] == [entry.colour for entry in coloured.legend]


def test_one_chart_has_its_legend_in_a_page_in_svg_and_in_png() -> None:
    lines = {"training": [(0.0, 0.5), (1.0, 0.4)], "validation": [(0.0, 0.6), (1.0, 0.5)]}
    fluid, plain = (line_chart("Loss", "", "", lines if named else {}, fluid=True) for named in (True, False))
    assert fluid.to_html().count("&#9632;") == 2
    assert all(f">{name}<" in fluid.to_svg() for name in lines)
    assert fluid.to_svg(standalone=False).count("validation") == 1  # the line's tooltip; the caption has the legend
    first_row = fluid.to_image(1).crop((0, 0, fluid.framed_size[0], 30))
    assert first_row.tobytes() != plain.to_image(1).crop((0, 0, fluid.framed_size[0], 30)).tobytes()


def test_ticks_of_small_percentages_differ() -> None:
    samples = line_chart(
        "small", "probability", "layer", {"a": [(0.0, 0.0), (1.0, 4e-4)]}, columns=2, y_min=0, percent=True
    ).to_svg()
    assert ">0.02%<" in samples
    long = line_chart("long", "probability", "layer", {"x" * 40: [(0.0, 1.0)], "y": [(0.0, 2.0)]}, columns=1).to_svg()
    assert f">{'x' * 19}…<" in long


def test_a_chart_of_one_value_has_an_axis_around_it() -> None:
    drawing = line_chart("flat", "accuracy", "learning rate", {"a": [(-2.0, 0.25)], "b": [(-2.0, 0.25)]}, percent=True)
    printed = [float(text.text.rstrip("%")) for text in texts_of(drawing, "end")]
    assert min(printed) < 25 < max(printed)
    (line, _) = (shape for shape in drawing.shapes if isinstance(shape, Line) and len(shape.points) == 1)
    assert line.points[0] == ((48 + 520 - 164) / 2, (26 + 260 - 36) / 2)


def test_a_chart_without_points_is_empty() -> None:
    assert line_chart("none", "y", "x", {"a": []}).to_image(1).size[0] > 500


def test_a_reliability_diagram_has_a_bar_for_every_bin_with_images() -> None:
    labels = torch.arange(40) % 7
    result = compute_reliability(3 * torch.randn(40, 7), labels)
    figure = reliability_diagram("Confidence & accuracy", result)
    bars = [shape for shape in figure.shapes if isinstance(shape, Bar)]
    assert [int(bar.tooltip.split()[0]) for bar in bars] == [count for count in result.counts.tolist() if count]
    for bar in bars:
        accuracy = float(re.findall(r"accuracy ([\d.]+)%", bar.tooltip)[0]) / 100
        assert bar.box[3] == pytest.approx(max(accuracy * (300 - 40 - 26), 1), abs=0.2)
    assert figure.to_html().count("<rect") == len(bars)
    assert figure.to_image(1).size == figure.framed_size


def test_the_report_of_a_run_has_confidence_intervals(tmp_path: Path) -> None:
    fit(recipe(steps=4), tmp_path / "run", hardware=Hardware("cpu", 1, 0))
    page = run_page(Run(tmp_path / "run"))
    for text in ("95 % interval", "Reliability", '<th class="number">F1</th>', "Expected calibration error"):
        assert text in page
