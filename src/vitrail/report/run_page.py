"""Report of a run (``report.html``): training curves, evaluation, and how to reproduce it. k classes."""

import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.config import to_json
from vitrail.data.decode import to_pil
from vitrail.data.sources.dataset import Dataset
from vitrail.evaluation.classification import Evaluation, SplitPredictions, summarise_predictions
from vitrail.evaluation.per_class import confusion_matrix, most_confused
from vitrail.plot.html_line_chart import line_chart_html
from vitrail.plot.markup import escape
from vitrail.plot.reliability_diagram import reliability_diagram
from vitrail.report.contact_sheet import contact_sheet, data_uri
from vitrail.report.error_saliency_section import error_saliency_section
from vitrail.report.fewshot_section import fewshot_section
from vitrail.report.html import html_page, html_table
from vitrail.report.reconstruction_section import reconstruction_section
from vitrail.tasks.classification import per_image_scores
from vitrail.training.dataset import open_training_data
from vitrail.training.recipe import Recipe
from vitrail.training.run import Run
from vitrail.training.ssl_monitor import NUM_NEIGHBOURS

MAX_CLASSES = 60  # rows of a confusion matrix
NUM_HIGHEST_LOSSES = 24


def run_page(folder: Path) -> str:
    run = Run(folder)
    return html_page(f"Run {folder.name}", _sections(run, run.recipe(), run.result() or {}, run.log_rows()))


def _sections(run: Run, recipe: Recipe, result: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[str]:
    yield f"<h1>{escape(run.folder.name)}</h1>"
    yield f'<p class="soft">recipe {escape(recipe.name)} on {escape(recipe.data)}</p>'
    evaluation = _saved_evaluation(run, recipe, result) if result else None
    if result:
        yield _headline(recipe, result, evaluation)
    yield '<div class="figures">'
    yield from _training_curves(run, result, lines)
    yield "</div>"
    if recipe.masking is not None:
        yield from reconstruction_section(run.load_reconstructions(), recipe.masking)
    if evaluation is not None:
        data = open_training_data(recipe).data
        yield from _evaluation(data.splits[evaluation.split], evaluation)
        yield from error_saliency_section(run.folder / "best", data.splits[evaluation.split], evaluation.predictions)
        yield from fewshot_section(run.folder / "best", data, evaluation.split, result["steps"] * recipe.batch_size)
    yield from _reproduction(run, recipe, result)


def _headline(recipe: Recipe, result: dict[str, Any], evaluation: Evaluation | None) -> str:
    split = result["reported_on"]
    if recipe.masking is None:
        interval = f"{_format_interval(evaluation, 'top1')}, " if evaluation is not None else ""
        return _big_number(f"{result[split]['top1']:.2%}", f"top-1 on {split}, {interval}{_weights_note(result)}")
    return _big_number(f"{result[split]['loss']:.4f}", f"loss on {split}, over masked patches, {_weights_note(result)}")


def _big_number(number: str, caption: str) -> str:
    return f'<p class="headline">{number} <span class="soft">{caption}</span></p>'


def _training_curves(run: Run, result: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[str]:
    steps, selected_on = [line for line in lines if "loss" in line], _selected_on(result)
    evaluations = [line for line in lines if "validation" in line]
    yield line_chart_html("Loss", {"training": _points(steps, "loss"), selected_on: _validation_points(evaluations, "loss")})
    # over classes, or over quantised colours
    accuracy = _validation_points(evaluations, "top1") or _validation_points(evaluations, "accuracy")
    yield line_chart_html("Accuracy", {"training": _points(steps, "accuracy"), selected_on: accuracy}, percent=True)
    yield line_chart_html("k-NN accuracy", {f"k = {NUM_NEIGHBOURS}": _validation_points(evaluations, "knn")}, percent=True)
    yield line_chart_html("Learning rate", {"lr": _points(steps, "lr")})
    yield line_chart_html("Gradient norm", {"before clipping": _points(steps, "grad_norm")})
    yield line_chart_html("Mean attention distance in pixels", _by_layer(evaluations, "distance"))
    yield line_chart_html("Attention entropy in nats", _by_layer(evaluations, "entropy"))
    lr_test = run.lr_test()
    if lr_test:
        points = [(math.log10(rate), loss) for rate, loss in zip(lr_test["rates"], lr_test["losses"], strict=True)]
        yield line_chart_html(f"Learning rate range test (suggested: {lr_test['lr']:g})", {"smoothed loss": points}, log_x=True)


def _weights_note(result: dict[str, Any]) -> str:
    best = result["best"]
    value = f"{best['top1']:.2%}" if "top1" in best else f"{best['loss']:.4f}"
    return f"weights of step {best['step']:,}, the best on {_selected_on(result)} ({value})"


def _selected_on(result: dict[str, Any]) -> str:
    return str(result.get("selected_on", "validation"))  # absent in older runs


def _points(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), float(line[name])) for line in lines if name in line]


def _validation_points(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), float(line["validation"][name])) for line in lines if name in line["validation"]]


def _by_layer(lines: list[dict[str, Any]], name: str) -> dict[str, list[tuple[float, float]]]:
    """Return the curves of a few layers from the first to the last."""
    rows = [(float(line["step"]), line["attention_stats"][name]) for line in lines if "attention_stats" in line]
    depth = len(rows[0][1]) if rows else 0
    layers = sorted({round(part * (depth - 1) / 3) for part in range(4)}) if depth else []
    return {f"layer {layer}": [(step, values[layer]) for step, values in rows] for layer in layers}


def _saved_evaluation(run: Run, recipe: Recipe, result: dict[str, Any]) -> Evaluation | None:
    """Evaluate the predictions that the run has saved."""
    path = run.folder / "predictions.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        logits, labels, indices = (torch.from_numpy(file[name]) for name in ("logits", "labels", "indices"))
    return summarise_predictions(recipe.data, result["reported_on"], (), SplitPredictions(logits, labels, indices))


def _format_interval(evaluation: Evaluation, name: str) -> str:
    low, high = evaluation.intervals[name]
    return f"95 % interval {low:.2%} to {high:.2%}"


def _evaluation(dataset: Dataset, evaluation: Evaluation) -> Iterator[str]:
    names, per_class, predictions = dataset.class_names, evaluation.per_class, evaluation.predictions
    columns = ("class", "#images", "#recall", "#precision", "#F1")
    rows = [
        (
            escape(name), f"{per_class.support[k]:,}", _percent(per_class.recall[k], per_class.support[k]),
            _percent(per_class.precision[k], per_class.predicted[k]), _percent(per_class.f1[k], per_class.support[k]),
        )
        for k, name in list(enumerate(names))[: 3 * MAX_CLASSES]
    ]  # fmt: skip
    yield "<h2>Classes</h2>" + html_table(columns, rows)
    yield f"<h2>Calibration</h2><p>Expected calibration error {evaluation.ece:.2%} ({_format_interval(evaluation, 'ece')}).</p>"
    yield f'<div style="max-width: 32rem">{reliability_diagram("Reliability", evaluation.reliability)}</div>'
    if len(names) <= MAX_CLASSES:
        matrix = confusion_matrix(predictions.predicted, predictions.labels, len(names))
        yield "<h2>Confusion matrix</h2>" + _confusion_matrix(matrix, names)
    pairs = most_confused(predictions.predicted, predictions.labels)[:10]
    confused_rows = [(escape(names[true]), escape(names[other]), f"{count:,}") for true, other, count in pairs]
    if confused_rows:
        yield "<h2>Most confused classes</h2>" + html_table(("true class", "predicted class", "#images"), confused_rows)
    losses = per_image_scores(predictions.logits, predictions.labels)["loss"]
    worst = losses.argsort(descending=True, stable=True)[:NUM_HIGHEST_LOSSES]
    images = [to_pil(dataset.read(int(predictions.indices[row]))) for row in worst]
    captions = [_caption(names[predictions.labels[row]], names[predictions.predicted[row]]) for row in worst]
    sheet_uri = data_uri(contact_sheet(images, captions, columns=8))
    yield f'<h2>Highest losses</h2><img alt="Images with the highest losses" src="{sheet_uri}">'


def _caption(true: str, predicted: str) -> str:
    return true if true == predicted else f"{true}, predicted {predicted}"


def _percent(fraction: Tensor, count: Tensor) -> str:
    return f"{fraction:.1%}" if count else "&ndash;"


def _confusion_matrix(matrix: Int[Tensor, "k k"], names: tuple[str, ...]) -> str:
    """Draw the confusion matrix: rows are true classes, columns predicted ones, shaded by the fraction of the row."""
    fraction = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
    head = "".join(f"<th><span>{escape(name)}</span></th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(
            f'<td style="--fraction:{fraction[true, predicted]:.3f}">{int(matrix[true, predicted]) or ""}</td>'
            for predicted in range(len(names))
        )
        + "</tr>"
        for true, name in enumerate(names)
    )
    return f'<div class="wide"><table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _reproduction(run: Run, recipe: Recipe, result: dict[str, Any]) -> Iterator[str]:
    yield "<h2>Reproduce this run</h2>"
    init_note = "" if recipe.init_from is None else f" and the same initial weights, <code>{escape(recipe.init_from)}</code>"
    yield f"<p>The saved recipe with the same dataset, <code>{escape(recipe.data)}</code>{init_note}, repeats the run:</p>"
    yield f"<pre>vitrail train --recipe-from {escape(shlex.quote(str(run.folder)))}</pre>"
    if recipe.masking is not None:
        folder = escape(shlex.quote(str(run.folder)))
        yield "<p>Its encoder is an ordinary model: fine-tune it on classes, or evaluate its features with a probe.</p>"
        yield f"<pre>vitrail finetune {folder} DATA\nvitrail probe {folder} DATA</pre>"
    if result:
        rows = [(escape(name), escape(json.dumps(value))) for name, value in result.items() if not isinstance(value, dict)]
        yield html_table(("result", "value"), rows)
    yield f"<details><summary>Complete recipe</summary><pre>{escape_lines(to_json(recipe))}</pre></details>"


def escape_lines(content: str) -> str:
    return "\n".join(escape(line) for line in content.splitlines())
