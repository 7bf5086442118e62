"""Section of a classifier's report: per-class metrics, calibration, confusion matrix, errors, few-shot accuracy. k classes."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from vitrail.data.band_view import to_view
from vitrail.data.sources.dataset import Dataset
from vitrail.evaluation.classification import ClassificationEvaluation, SplitPredictions, summarise_predictions
from vitrail.evaluation.per_class import confusion_matrix, most_confused
from vitrail.plot.line_chart import reliability_diagram
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import contact_sheet, data_uri
from vitrail.report.error_saliency_section import error_saliency_section
from vitrail.report.fewshot_section import fewshot_section
from vitrail.report.html import html_table, matrix_table
from vitrail.report.task_section import RunReport, TaskSection
from vitrail.tasks.classification import per_image_scores

MAX_CLASSES = 60  # rows of a confusion matrix
NUM_HIGHEST_LOSSES = 24


class ClassificationSection(TaskSection):
    """Top-1 accuracy with its confidence interval, and the evaluation of the saved predictions."""

    def headline(self, report: RunReport) -> tuple[str, str]:
        split, evaluation = report.result["reported_on"], _saved_evaluation(report)
        interval = f", {_format_interval(evaluation, 'top1')}" if evaluation is not None else ""
        return report.format_metric("top1", report.result[split]["top1"]), f"top-1 on {split}{interval}"

    def body(self, report: RunReport) -> Iterator[str]:
        evaluation = _saved_evaluation(report) if report.result else None
        if evaluation is None:
            return
        weights, dataset = report.run.folder / "best", report.data.splits[evaluation.split]
        yield from _evaluation(dataset.class_names, evaluation)
        yield from _highest_losses(dataset, evaluation)
        yield from error_saliency_section(weights, dataset, evaluation.predictions)
        images_seen = report.result["steps"] * report.recipe.batch_size
        yield from fewshot_section(weights, report.data, evaluation.split, images_seen)

    def out_of_fold(self, report: RunReport, predictions: dict[str, Tensor], class_names: tuple[str, ...]) -> Iterator[str]:
        logits, labels = predictions["logits"], predictions["labels"]
        pooled = SplitPredictions(logits, labels, torch.arange(len(labels)))
        loss = report.task.config.loss
        yield from _evaluation(class_names, summarise_predictions(report.recipe.data, "test", class_names, pooled, loss))


def _saved_evaluation(report: RunReport) -> ClassificationEvaluation | None:
    """Evaluate the predictions that the run has saved."""
    path = report.run.folder / "predictions.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        logits, labels, indices = (torch.from_numpy(file[name]) for name in ("logits", "labels", "indices"))
    return summarise_predictions(
        report.recipe.data, report.result["reported_on"], (), SplitPredictions(logits, labels, indices), report.task.config.loss
    )


def _format_interval(evaluation: ClassificationEvaluation, name: str) -> str:
    low, high = evaluation.intervals[name]
    return f"95 % interval {low:.2%} to {high:.2%}"


def _evaluation(names: tuple[str, ...], evaluation: ClassificationEvaluation) -> Iterator[str]:
    per_class, predictions = evaluation.per_class, evaluation.predictions
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
    yield f'<div style="max-width: 32rem">{reliability_diagram("Reliability", evaluation.reliability).to_html()}</div>'
    if len(names) <= MAX_CLASSES:
        matrix = confusion_matrix(predictions.predicted, predictions.labels, len(names))
        yield "<h2>Confusion matrix</h2>" + matrix_table(matrix, matrix / matrix.sum(1, keepdim=True).clamp(min=1), names)
    pairs = most_confused(predictions.predicted, predictions.labels)[:10]
    confused_rows = [(escape(names[true]), escape(names[other]), f"{count:,}") for true, other, count in pairs]
    if confused_rows:
        yield "<h2>Most confused classes</h2>" + html_table(("true class", "predicted class", "#images"), confused_rows)


def _highest_losses(dataset: Dataset, evaluation: ClassificationEvaluation) -> Iterator[str]:
    names, predictions = dataset.class_names, evaluation.predictions
    losses = per_image_scores(predictions.logits, predictions.labels)["loss"]
    worst = losses.argsort(descending=True, stable=True)[:NUM_HIGHEST_LOSSES]
    images = [to_view(dataset.read(int(predictions.indices[row]))) for row in worst]
    captions = [_caption(names[predictions.labels[row]], names[predictions.predicted[row]]) for row in worst]
    sheet_uri = data_uri(contact_sheet(images, captions, columns=8))
    yield f'<h2>Highest losses</h2><img alt="Images with the highest losses" src="{sheet_uri}">'


def _caption(true: str, predicted: str) -> str:
    return true if true == predicted else f"{true}, predicted {predicted}"


def _percent(fraction: Tensor, count: Tensor) -> str:
    return f"{fraction:.1%}" if count else "&ndash;"
