"""Section of a report on several labels per image: classes, precision-recall curves, co-occurrence, worst images. k classes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.data.decode import to_pil
from vitrail.data.sources.dataset import Dataset
from vitrail.evaluation.bootstrap import bias_corrected_interval
from vitrail.evaluation.multi_label import absence_notes, bootstrap_label_metrics
from vitrail.plot.line_chart import Points, line_chart
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import contact_sheet, data_uri
from vitrail.report.html import html_table, matrix_table
from vitrail.report.task_section import RunReport, TaskSection
from vitrail.tasks.multi_label import MultiLabelTask

MAX_CLASSES = 300  # rows of the table
MAX_PAIRED = 24  # classes of the co-occurrence table, the most frequent ones
NUM_CURVES = 4  # classes with a precision-recall curve, besides the micro average
NUM_WORST_CLASSES, NUM_WORST_IMAGES = 8, 4  # per class so many missed and so many false alarms


class MultiLabelSection(TaskSection):
    """Mean average precision with its interval, and the evaluation of the saved predictions."""

    def headline(self, report: RunReport) -> tuple[str, str]:
        split, caption = report.result["reported_on"], "mean average precision on"
        value = float(report.result[split]["map"])
        saved = _saved_predictions(report)
        if saved is None:
            return report.format_metric("map", value), f"{caption} {split}"
        low, high = bias_corrected_interval(bootstrap_label_metrics(_task(report), *saved[:2])["map"], value)
        return report.format_metric("map", value), f"{caption} {split}, 95 % interval {low:.2%} to {high:.2%}"

    def body(self, report: RunReport) -> Iterator[str]:
        saved = _saved_predictions(report) if report.result else None
        if saved is None:
            return
        outputs, positive, indices = saved
        dataset, rows = report.data.splits[report.result["reported_on"]], report.result["classes"]
        yield from _classes(rows, absence_notes([row["name"] for row in rows], [row["support"] for row in rows]))
        yield from _curves(outputs, positive, rows)
        yield from _co_occurrence(positive, [row["name"] for row in rows])
        yield from _worst_images(dataset, outputs, positive, indices, rows)


def _task(report: RunReport) -> MultiLabelTask:
    task = report.task.with_state({"thresholds": [float(row["threshold"]) for row in report.result["classes"]]})
    assert isinstance(task, MultiLabelTask)
    return task


def _saved_predictions(
    report: RunReport,
) -> tuple[Float[Tensor, "b k"], Bool[Tensor, "b k"], Int[Tensor, " b"]] | None:
    path = report.run.folder / "predictions.npz"
    if not path.is_file() or "classes" not in report.result:
        return None
    with np.load(path, allow_pickle=False) as file:
        outputs, targets, indices = (torch.from_numpy(file[name]) for name in ("logits", "targets", "indices"))
    return outputs, targets.bool(), indices


def _classes(rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> Iterator[str]:
    columns = ("class", "#images", "#average precision", "#threshold", "#precision", "#recall", "#F1", "#calibration error")
    cells = [
        (
            escape(row["name"]), f"{row['support']:,}", f"{row['ap']:.1%}" if row["support"] else "", f"{row['threshold']:.3f}",
            f"{row['precision']:.1%}", f"{row['recall']:.1%}" if row["support"] else "", f"{row['f1']:.1%}",
            f"{row['ece']:.1%}",
        )
        for row in sorted(rows, key=lambda row: -row["support"])[:MAX_CLASSES]
    ]  # fmt: skip
    yield "<h2>Classes</h2>"
    note = "".join(f" {escape(each[0].upper() + each[1:])}." for each in notes)
    yield (
        "<p>An image is predicted to have a class if its probability reaches the class's threshold, which was chosen on "
        f"validation for the largest F1. Average precision depends on no threshold.{note}</p>"
    )
    yield html_table(columns, cells)


def _curves(outputs: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"], rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Draw the curve over all pairs of image and class, and those of the most frequent classes."""
    frequent = sorted(range(len(rows)), key=lambda label: -rows[label]["support"])[:NUM_CURVES]
    lines = {"all (micro)": precision_recall_points(outputs.flatten(), positive.flatten())}
    lines |= {
        rows[label]["name"]: precision_recall_points(outputs[:, label], positive[:, label])
        for label in frequent
        if rows[label]["support"]
    }
    chart = line_chart("Precision over recall", "", "recall", lines, x_min=0, y_min=0, y_max=1, percent=True)
    yield f'<h2>Precision and recall</h2><div style="max-width: 40rem">{chart.to_html()}</div>'


def precision_recall_points(scores: Float[Tensor, " b"], positive: Bool[Tensor, " b"]) -> Points:
    """Return recall and precision at every threshold, the highest first; images of equal scores count together."""
    order = scores.argsort(descending=True, stable=True)
    ordered, found = scores[order], positive[order].cumsum(0).double()
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones(1, dtype=torch.bool)])
    precision, recall = found / torch.arange(1, len(order) + 1), found / found[-1].clamp(min=1)
    return list(zip(recall[last].tolist(), precision[last].tolist(), strict=True))


def _co_occurrence(positive: Bool[Tensor, "b k"], names: Sequence[str]) -> Iterator[str]:
    """Count the images with both of two labels, for the most frequent ones."""
    support = positive.sum(0)
    labels = support.argsort(descending=True, stable=True)[:MAX_PAIRED]
    labels = labels[support[labels] > 0]
    if len(labels) < 2:
        return
    table = positive[:, labels].double()
    yield "<h2>Labels that occur together</h2>"
    yield "<p>Number of images with both labels, shaded by the fraction of the row's images that have the column's too.</p>"
    counts = table.T @ table
    yield matrix_table(counts.long(), counts / counts.diagonal()[:, None], [names[label] for label in labels])


def _worst_images(
    dataset: Dataset,
    outputs: Float[Tensor, "b k"],
    positive: Bool[Tensor, "b k"],
    indices: Int[Tensor, " b"],
    rows: Sequence[dict[str, Any]],
) -> Iterator[str]:
    """Draw the images that have a class and score lowest, and those without it that score highest."""
    candidates = [label for label, row in enumerate(rows) if 0 < row["support"] < len(outputs)]
    lowest = sorted(candidates, key=lambda label: rows[label]["ap"])[:NUM_WORST_CLASSES]
    if not lowest:
        return
    yield "<h2>Worst images of the classes of lowest average precision</h2>"
    yield "<p>Left: images with the label and the lowest probabilities. Right: images without it and the highest.</p>"
    for label in lowest:
        scores, has_label = outputs[:, label], positive[:, label]
        missed = scores.masked_fill(~has_label, torch.inf).argsort()[: min(NUM_WORST_IMAGES, int(has_label.sum()))]
        alarms = scores.masked_fill(has_label, -torch.inf).argsort(descending=True)
        shown_rows = [*missed.tolist(), *alarms[: min(NUM_WORST_IMAGES, int((~has_label).sum()))].tolist()]
        images = [to_pil(dataset.read(int(indices[row]))) for row in shown_rows]
        captions = [f"{'has it' if has_label[row] else 'without'}, {float(scores[row].sigmoid()):.1%}" for row in shown_rows]
        sheet = data_uri(contact_sheet(images, captions, columns=2 * NUM_WORST_IMAGES, side=112))
        name = escape(rows[label]["name"])
        yield f'<h3>{name}, average precision {rows[label]["ap"]:.1%}</h3><img alt="Worst images of {name}" src="{sheet}">'
