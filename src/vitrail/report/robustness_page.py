"""Robustness page: the score of models under image corruptions. v versions of an image."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vitrail.data.decode import to_pil
from vitrail.evaluation.corruptions import MAX_SEVERITIES, Corruption
from vitrail.evaluation.robustness import (
    ALL,
    CLEAN,
    CorruptionScore,
    RobustnessDifference,
    RobustnessResult,
    compare_robustness,
)
from vitrail.plot.canvas import legend_html
from vitrail.plot.line_chart import FLUID_LEFT, FLUID_RIGHT, WIDTH, line_chart, line_styles
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import data_uri
from vitrail.report.html import html_page, html_table
from vitrail.tasks.task import ImageScore

EXAMPLE_SIDE = 112  # pixels of an example image
STYLE = f"""<style>
.strip {{ display: grid; grid-template-columns: repeat({MAX_SEVERITIES + 1}, minmax(0, 1fr)); text-align: center;
          margin: 0 {FLUID_RIGHT / WIDTH:.2%} 0 {FLUID_LEFT / WIDTH:.2%}; }}
.strip div, .unit {{ font-size: .72rem; color: var(--soft); line-height: 1.25; padding: 0 2px; }}
.strip img {{ display: block; width: 100%; margin-bottom: 2px; }} .pixels img {{ image-rendering: pixelated; }}
th, td {{ overflow-wrap: break-word; }} .panels {{ gap: 1.8rem 2rem; }}
.unit {{ text-align: right; margin: 2px {FLUID_RIGHT / WIDTH:.2%} 0 0; }}
</style>"""


def robustness_page(results: Mapping[str, RobustnessResult], notes: Sequence[str] = ()) -> str:
    """Build the page. ``results``: by model name; the first model is the one that the others are compared with."""
    return html_page("Robustness", _sections(results, notes))


def _sections(results: Mapping[str, RobustnessResult], notes: Sequence[str]) -> Iterator[str]:
    first = next(iter(results.values()))
    rows, columns = first.grid
    yield STYLE + "<h1>Robustness</h1>"
    yield (
        f'<p class="soft">{escape(first.dataset)}, {first.split}: {len(first.indices):,} images'
        + (f"; {first.unreadable_images:,} unreadable" if first.unreadable_images else "")
        + f"; {rows}×{columns} cells</p>"
    )
    yield from (f'<p class="soft">{escape(note)}</p>' for note in (*first.notes, *notes))
    yield _summary_table(results)
    yield f"<h2>{first.image_score.title.capitalize()} by severity</h2>"
    yield f"<p>{legend_html(line_styles(results))}</p>"
    yield (
        "<p>Severity 0 is the original image. Every model is evaluated on the same corrupted images; below each panel is one "
        "of them.</p>"
    )
    yield '<div class="figures panels">'
    version = 1
    for corruption in first.corruptions:
        yield _panel(corruption, results, _examples(first.example_images, version, len(corruption.strengths)))
        version += len(corruption.strengths)
    yield "</div>"
    yield "<h2>Table</h2>" + _results_table(results)
    yield from _method(first)


def _summary_table(results: Mapping[str, RobustnessResult]) -> str:
    measure = next(iter(results.values())).image_score
    title, interval = measure.title, "#95 % interval"
    columns = ("model", f"#clean {title}", interval, f"#mean corrupted {title}", interval, f"#{_ratio_name(measure)}")
    rows = []
    for name, result in results.items():
        clean, mean = result.scores[CLEAN], result.scores[ALL]
        cells = [cell for each in (clean, mean) for cell in (measure.format(each.mean), _format_interval(each, measure))]
        rows.append((escape(name), *cells, f"{mean.retained:.1%}"))
    return html_table(columns, rows)


def _ratio_name(measure: ImageScore) -> str:
    return "of clean" if measure.lower_is_better else "retained"


def _panel(corruption: Corruption, results: Mapping[str, RobustnessResult], examples: Sequence[Image.Image]) -> str:
    is_fraction = next(iter(results.values())).image_score.is_fraction
    lines = {
        model: [
            (0.0, result.clean),
            *((float(severity), value) for severity, value in enumerate(result.scores[corruption.name].by_severity, 1)),
        ]
        for model, result in results.items()
    }
    chart = line_chart(
        corruption.title,
        "",
        "",
        lines,
        columns=MAX_SEVERITIES + 1,
        y_min=0.0,
        y_max=1.0 if is_fraction else _largest_score(results),  # one scale for all corruptions
        percent=is_fraction,
        fluid=True,
        legend=False,
    ).to_html()
    captions = ["original", *corruption.captions]
    small = max(examples[0].size) <= EXAMPLE_SIDE
    cells = "".join(
        f'<div><img alt="{escape(corruption.title)}" src="{data_uri(image, lossless=small)}">{escape(caption)}</div>'
        for image, caption in zip(examples, captions, strict=True)
    )
    unit = f'<div class="unit">{escape(corruption.unit)}</div>'
    return f'<div>{chart}<div class="strip{" pixels" if small else ""}">{cells}</div>{unit}</div>'


def _largest_score(results: Mapping[str, RobustnessResult]) -> float:
    curves = (score.by_severity for result in results.values() for score in result.scores.values())
    return max(*(value for curve in curves for value in curve), *(result.clean for result in results.values()))


def _examples(versions: UInt8[Tensor, "v c h w"], first: int, count: int) -> list[Image.Image]:
    """Return the original image, then its versions under one corruption."""
    selected = versions[[0, *range(first, first + count)]]
    images = [to_pil(np.ascontiguousarray(one.permute(1, 2, 0).numpy())) for one in selected]
    scale = 2 * EXAMPLE_SIDE / max(images[0].size)  # sharp on a high-resolution screen, and no larger
    if scale >= 1:
        return images
    size = (max(1, round(images[0].width * scale)), max(1, round(images[0].height * scale)))
    return [one.resize(size, Image.Resampling.LANCZOS) for one in images]


def _results_table(results: Mapping[str, RobustnessResult]) -> str:
    first = next(iter(results.values()))
    comparisons, several = [compare_robustness(first, each) for each in results.values()], len(results) > 1
    measure = first.image_score
    columns = [
        "corruption",
        "model",
        *(f"#{severity}" for severity in range(1, MAX_SEVERITIES + 1)),
        "#mean",
        "#95 % interval",
        f"#{_ratio_name(measure)}",
    ]
    columns += ["#difference in points" if measure.is_fraction else "#difference", "#95 % interval"] if several else []
    rows = []
    for name in first.scores:
        for number, ((model, result), by_corruption) in enumerate(zip(results.items(), comparisons, strict=True)):
            score = result.scores[name]
            title = "" if number else f"<b>{escape(score.title)}</b>"
            cells = [measure.format(value) for value in score.by_severity]
            cells += [""] * (MAX_SEVERITIES - len(score.by_severity))
            retained = "" if name == CLEAN else f"{score.retained:.1%}"
            row = [title, escape(model), *cells, measure.format(score.mean), _format_interval(score, measure), retained]
            rows.append(row + (_difference_cells(by_corruption[name] if number else None, measure) if several else []))
    return html_table(columns, rows)


def _difference_cells(difference: RobustnessDifference | None, measure: ImageScore) -> list[str]:
    """Return the difference and its interval, coloured if significant."""
    if difference is None:
        return ["", ""]
    low, high = difference.interval
    is_higher, is_lower = low > 0, high < 0
    is_better, is_worse = (is_lower, is_higher) if measure.lower_is_better else (is_higher, is_lower)
    css_class = "good" if is_better else "bad" if is_worse else "soft"
    value, low_text, high_text = map(measure.format_difference, (difference.difference, low, high))
    return [f'<span class="{css_class}">{value}</span>', f"{low_text} to {high_text}"]


def _format_interval(score: CorruptionScore, measure: ImageScore) -> str:
    low, high = map(measure.format, score.interval)
    return f"{low} to {high}"


def _method(first: RobustnessResult) -> Iterator[str]:
    title = first.image_score.title
    yield "<h2>Corruptions</h2>"
    yield (
        "<p>Noise, blur, contrast and JPEG are those of ImageNet-C (Hendrycks and Dietterich 2019) at its five severities, "
        "applied to the image after the model's own resizing and cropping. Blur radii are in pixels of a 224-pixel image and "
        "scale with the image size; noise is per pixel and JPEG blocks are eight pixels wide, so both are harsher on small "
        "images.</p>"
    )
    yield (
        f"<p>The image is divided into {first.grid[0]}×{first.grid[1]} cells. Dropped cells and the occluding block are black, "
        "the same for every model; shuffling permutes whole cells, or squares of several (Naseer et al. 2021).</p>"
    )
    yield (
        f"<p>{_ratio_name(first.image_score).capitalize()}: mean corrupted {title} as a fraction of clean {title}"
        f"{'' if first.image_score.lower_is_better else '; random guessing retains some, too'}. Difference: "
        f"the mean minus that of the first model, on the same {len(first.indices):,} images. Intervals are bootstrap intervals "
        "over images; they do not cover the variation between training runs.</p>"
    )
