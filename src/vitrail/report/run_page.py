"""Report of a run (``report.html``): training curves, what its task shows, and how to reproduce it."""

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.config import to_json
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.plot.line_chart import Points, line_chart, ticks
from vitrail.plot.markup import escape
from vitrail.report.classification_section import ClassificationSection
from vitrail.report.detection_section import DetectionSection
from vitrail.report.html import html_page, html_table
from vitrail.report.multi_label_section import MultiLabelSection
from vitrail.report.reconstruction_section import MaskedImageSection
from vitrail.report.regression_section import RegressionSection
from vitrail.report.segmentation_section import SegmentationSection
from vitrail.report.task_section import RunReport, TaskSection, register_task_section, task_section
from vitrail.tasks.classification import ClassificationTask
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.masked_image import MaskedImageTask
from vitrail.tasks.multi_label import MultiLabelTask
from vitrail.tasks.regression import RegressionTask
from vitrail.tasks.segmentation import SegmentationTask
from vitrail.tasks.task import Task
from vitrail.training.monitors import NUM_NEIGHBOURS
from vitrail.training.run import Run

ACCURACIES = ("top1", "accuracy", "pixel_accuracy")  # of classes, of quantised colours, of pixels: drawn with that of training

register_task_section(ClassificationTask, ClassificationSection())
register_task_section(MultiLabelTask, MultiLabelSection())
register_task_section(RegressionTask, RegressionSection())
register_task_section(SegmentationTask, SegmentationSection())
register_task_section(DetectionTask, DetectionSection())
register_task_section(MaskedImageTask, MaskedImageSection())


def run_page(run: Run, data: DatasetSplits | None = None) -> str:
    """Return the page of a run. ``data``: the dataset that it was trained on, if it is open already."""
    report = RunReport(run, run.recipe(), run.result() or {}, data)
    return html_page(f"Run {run.folder.name}", _sections(report, task_section(report.task)))


def _sections(report: RunReport, section: TaskSection) -> Iterator[str]:
    run, recipe, result = report.run, report.recipe, report.result
    yield f"<h1>{escape(run.folder.name)}</h1>"
    yield f'<p class="soft">recipe {escape(recipe.name)} on {escape(recipe.data)}{_origin(run)}</p>'
    if result:
        number, caption = section.headline(report)
        yield _big_number(number, f"{caption}, {_weights_note(report)}")
    yield '<div class="figures">'
    yield from _training_curves(run, report.task, result, run.log_rows())
    yield "</div>"
    yield from section.body(report)
    yield from _reproduction(report, section)


def _origin(run: Run) -> str:
    """Say which run this one continues, and with what changes."""
    origin = run.origin().get("continued_from")
    if origin is None:
        return ""
    return f", continued from step {origin['step']:,} of {escape(origin['run'])} with {escape('; '.join(origin['changes']))}"


def _big_number(number: str, caption: str) -> str:
    return f'<p class="headline">{number} <span class="soft">{caption}</span></p>'


def _training_curves(run: Run, task: Task, result: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[str]:
    steps, selected_on = [line for line in lines if "loss" in line], _selected_on(result)
    evaluations = [line for line in lines if "validation" in line]
    yield _step_chart("Loss", {"training": _points(steps, "loss"), selected_on: _validation_points(evaluations, "loss")})
    name = next((name for name in ACCURACIES if _validation_points(evaluations, name)), "accuracy")
    accuracies = {"training": _points(steps, "accuracy"), selected_on: _validation_points(evaluations, name)}
    yield _step_chart(task.metric_titles.get(name, "accuracy"), accuracies, percent=True)
    yield _step_chart("k-NN accuracy", {f"k = {NUM_NEIGHBOURS}": _validation_points(evaluations, "knn")}, percent=True)
    for name in _other_metrics(evaluations) if task.curves is None else task.curves:
        title = task.metric_titles.get(name, name.replace("_", " "))
        yield _step_chart(title, {selected_on: _validation_points(evaluations, name)}, percent=name in task.fractions)
    yield _step_chart("Learning rate", {"lr": _points(steps, "lr")})
    yield _step_chart("Gradient norm", {"before clipping": _points(steps, "grad_norm")})
    yield _step_chart("Mean attention distance in pixels", _by_layer(evaluations, "distance"))
    yield _step_chart("Attention entropy in nats", _by_layer(evaluations, "entropy"))
    lr_test = run.lr_test()
    if lr_test:
        exponents = [math.log10(rate) for rate in lr_test["rates"]]
        points = list(zip(exponents, lr_test["losses"], strict=True))
        x_ticks = {exponent: f"{10**exponent:.1g}" for exponent in ticks(min(exponents), max(exponents))}
        title = f"Learning rate range test (suggested: {lr_test['lr']:g})"
        yield line_chart(title, "", "", {"smoothed loss": points}, x_ticks=x_ticks, fluid=True).to_html()


def _step_chart(title: str, lines: Mapping[str, Points], percent: bool = False) -> str:
    """Draw curves over training steps, or nothing if they have no points."""
    lines = {name: line for name, line in lines.items() if any(math.isfinite(y) for _, y in line)}
    if not lines:
        return ""
    title = title[0].upper() + title[1:] if title[1:2].islower() else title  # mAP stays as it is
    return line_chart(title, "", "", lines, x_min=0, percent=percent, fluid=True).to_html()


def _weights_note(report: RunReport) -> str:
    result = report.result
    best = result["best"]
    value = next(report.format_metric(name, number) for name, number in best.items() if name != "step")
    return f"weights of step {best['step']:,}, the best on {_selected_on(result)} ({value})"


def _selected_on(result: dict[str, Any]) -> str:
    return str(result.get("selected_on", "validation"))  # absent in older runs


def _points(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), float(line[name])) for line in lines if name in line]


def _validation_points(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), float(line["validation"][name])) for line in lines if name in line["validation"]]


def _other_metrics(lines: list[dict[str, Any]]) -> list[str]:
    """Return the validation metrics that have no chart of their own."""
    names = dict.fromkeys(name for line in lines for name in line["validation"])
    return [name for name in names if name not in ("loss", "top5", "knn", *ACCURACIES)]


def _by_layer(lines: list[dict[str, Any]], name: str) -> dict[str, list[tuple[float, float]]]:
    """Return the curves of a few layers from the first to the last."""
    rows = [(float(line["step"]), line["attention_stats"][name]) for line in lines if "attention_stats" in line]
    depth = len(rows[0][1]) if rows else 0
    layers = sorted({round(part * (depth - 1) / 3) for part in range(4)}) if depth else []
    return {f"layer {layer}": [(step, float(values[layer])) for step, values in rows] for layer in layers}


def _reproduction(report: RunReport, section: TaskSection) -> Iterator[str]:
    run, recipe, result = report.run, report.recipe, report.result
    yield "<h2>Reproduce this run</h2>"
    init_note = "" if recipe.init_from is None else f" and the same initial weights, <code>{escape(recipe.init_from)}</code>"
    yield f"<p>The saved recipe with the same dataset, <code>{escape(recipe.data)}</code>{init_note}, repeats the run:</p>"
    yield f"<pre>vitrail train --recipe-from {escape(shlex.quote(str(run.folder)))}</pre>"
    yield from section.next_steps(report)
    if result:
        rows = [
            (escape(name), escape(json.dumps(value))) for name, value in result.items() if not isinstance(value, dict | list)
        ]
        yield html_table(("result", "value"), rows)
    yield f"<details><summary>Complete recipe</summary><pre>{escape_lines(to_json(recipe))}</pre></details>"


def escape_lines(content: str) -> str:
    return "\n".join(escape(line) for line in content.splitlines())
