"""Section of a report on numbers: scores of each target, predicted against true, errors, worst images. b images, m targets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.data.decode import to_pil
from vitrail.data.sources.dataset import Dataset, evenly_spaced
from vitrail.evaluation.regression import bootstrap_targets, with_intervals
from vitrail.plot.markup import escape
from vitrail.plot.scatter import agreement_scatter, histogram
from vitrail.report.contact_sheet import contact_sheet, data_uri
from vitrail.report.html import html_table
from vitrail.report.task_section import RunReport, TaskSection
from vitrail.tasks.regression import VALUES
from vitrail.tasks.resampling import finite_interval

MAX_POINTS = 1500  # of a scatter plot
MAX_PLOTTED = 12  # targets
NUM_WORST_IMAGES = 16


@dataclass(frozen=True)
class SavedNumbers:
    """The predictions of a run, in the units of the targets."""

    values: Float[Tensor, "b m"]
    targets: Float[Tensor, "b m"]
    indices: Int[Tensor, " b"]


class RegressionSection(TaskSection):
    """The primary metric with its interval, and the evaluation of the saved predictions."""

    def headline(self, report: RunReport) -> tuple[str, str]:
        number, caption = super().headline(report)
        split, names, saved = report.result["reported_on"], report.task.output_names, _saved_numbers(report)
        if len(names) > 1:
            caption = f"mean absolute error on {split} in standard deviations, over {len(names)} targets"
            saved = None
        else:
            caption = f"mean absolute error of {escape(names[0])} on {split}"
        r2 = f", R² {report.format_metric('r2', report.result[split]['r2'])}"
        if saved is None:
            return number, caption + r2
        low, high = finite_interval(bootstrap_targets(saved.values, saved.targets)["mae"][:, 0])
        baseline = report.format_metric("mae", report.result["mean_prediction"])
        return number, f"{caption}, 95 % interval {low:.4g} to {high:.4g} (predicting the mean: {baseline}){r2}"

    def body(self, report: RunReport) -> Iterator[str]:
        saved = _saved_numbers(report) if report.result else None
        if saved is None:
            return
        dataset = report.data.splits[report.result["reported_on"]]
        rows = with_intervals(report.result["targets"], bootstrap_targets(saved.values, saved.targets))
        yield from _scores(rows)
        yield from _plots(rows, dataset, saved)
        yield from _worst_images(rows, dataset, saved)


def _saved_numbers(report: RunReport) -> SavedNumbers | None:
    path = report.run.folder / "predictions.npz"
    if not path.is_file() or "targets" not in report.result:
        return None
    with np.load(path, allow_pickle=False) as file:
        return SavedNumbers(*(torch.from_numpy(file[name]) for name in (VALUES, "targets", "indices")))


def _scores(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = ("target", "#MAE", "#95 %", "#RMSE", "#95 %", "#R²", "#95 %")
    cells = [
        (escape(row["name"]), *(cell for name in ("mae", "rmse", "r2") for cell in _score_cells(row, name))) for row in rows
    ]
    yield "<h2>Targets</h2>" + html_table(columns, cells)


def _score_cells(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    low, high = row["interval"][name]
    return f"{float(row[name]):.4g}", f"{low:.4g} to {high:.4g}"


def _plots(rows: Sequence[Mapping[str, Any]], dataset: Dataset, saved: SavedNumbers) -> Iterator[str]:
    shown = evenly_spaced(len(saved.values), MAX_POINTS)
    values, targets, indices = saved.values.numpy(), saved.targets.numpy(), saved.indices.tolist()
    yield "<h2>Predicted and true numbers</h2>"
    if len(rows) > MAX_PLOTTED:
        yield f"<p>The first {MAX_PLOTTED} of {len(rows)} targets.</p>"
    if len(shown) < len(values):
        yield f"<p>{len(shown):,} of {len(values):,} images, evenly spaced, in each scatter plot; all in the errors.</p>"
    yield '<div class="figures">'
    for number, row in list(enumerate(rows))[:MAX_PLOTTED]:
        points = [(float(targets[image, number]), float(values[image, number])) for image in shown]
        tooltips = [
            f"{dataset.title(indices[image])}: true {x:.4g}, predicted {y:.4g}"
            for image, (x, y) in zip(shown, points, strict=True)
        ]
        yield agreement_scatter(f"{row['name']}: predicted against true", points, tooltips).to_html()
        errors = values[:, number] - targets[:, number]
        yield histogram(f"{row['name']}: errors", "predicted minus true", errors).to_html()
    yield "</div>"


def _worst_images(rows: Sequence[Mapping[str, Any]], dataset: Dataset, saved: SavedNumbers) -> Iterator[str]:
    """Draw the images of largest error; of several targets, relative to the spread of each."""
    errors = (saved.values - saved.targets).abs()
    spread = saved.targets.std(0, correction=0)
    relative = errors / torch.where(spread > 0, spread, 1)
    worst = relative.amax(1).argsort(descending=True, stable=True)[:NUM_WORST_IMAGES].tolist()
    images = [to_pil(dataset.read(int(saved.indices[image]))) for image in worst]
    captions = []
    for image in worst:
        number = int(relative[image].argmax())
        name = f"{rows[number]['name']} " if len(rows) > 1 else ""
        captions.append(f"{name}{saved.targets[image, number]:.4g}, pred. {saved.values[image, number]:.4g}")
    note = ", of the target with the largest error in standard deviations" if len(rows) > 1 else ""
    yield f"<h2>Largest errors</h2><p>The true number and the predicted one{note}.</p>"
    yield f'<img alt="Images with the largest errors" src="{data_uri(contact_sheet(images, captions, columns=8))}">'
