"""Cross-validation: one run per fold of a dataset, what they score together, and the prediction for every image.

Each fold is an ordinary run of the same recipe in a folder of its own, ``fold-1`` and so on: it trains on the other folds, and
is reported on its own. What was finished is never trained again, so that the folder is resumed like a run.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import IGNORED, Dataset, DatasetSplits, label_name
from vitrail.data.sources.fold import Fold
from vitrail.errors import VitrailError
from vitrail.evaluation.fold_scores import Interval, mean_interval, pooled_scores
from vitrail.inference.csv_lines import csv_line
from vitrail.io import atomic_path
from vitrail.tasks.task import Loss, Prediction, Task
from vitrail.training.autotune import AutoTune
from vitrail.training.build import recipe_task
from vitrail.training.dataset import check_training_data
from vitrail.training.prepare import PreparedRun
from vitrail.training.process_group import ProcessGroup
from vitrail.training.run import FoldPlan, Run
from vitrail.training.run_log import finite_or_text
from vitrail.training.trained_run import TrainedRun
from vitrail.training.trainer import open_run
from vitrail.weights.model_folder import read_metadata

TrainFold = Callable[[PreparedRun, AutoTune], TrainedRun]
OUT_OF_FOLD_FILE = "out_of_fold.csv"
BASELINE_TITLES = {
    "majority_class": "always predicting the largest class",
    "random_ranking": "mAP of a random ranking",
}  # of those that tasks have
TOP_K = 5  # most probable labels of an image, as of ``vitrail predict``


@dataclass(frozen=True)
class CrossValidation:
    """A finished cross-validation: ``folds`` are its runs, ``result`` is the content of ``result.json``."""

    run: Run
    folds: list[TrainedRun]
    result: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def report(self) -> Path:
        """The page with the scores of all folds: ``report.html``."""
        return self.folder / "report.html"

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each metric over the folds."""
        return {name: float(value) for name, value in self.result["mean"].items()}  # NaN is text in JSON

    @property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of each mean, by Student's t over the folds."""
        return {name: (float(low), float(high)) for name, (low, high) in self.result["intervals"].items()}

    @property
    def out_of_fold(self) -> Path | None:
        """A CSV file with a row per image: the prediction of the one model that was not trained on it. None if the task
        saves no predictions."""
        path = self.folder / OUT_OF_FOLD_FILE
        return path if path.is_file() else None

    def load_predictions(self) -> dict[str, Tensor]:
        """Load the outputs, targets and indices of all folds, one after the other; empty if the task saves none."""
        return _concatenate([fold.run.load_predictions() for fold in self.folds])


def cross_validate(
    prepared: PreparedRun,
    train_fold: TrainFold,
    autotune: AutoTune,
    loss: Loss | None,
    group: ProcessGroup,
    on_message: Callable[[str], None],
) -> CrossValidation:
    """Train a run per fold by ``train_fold``, and write what they score together. Finished folds are not trained again.

    A time budget is for all folds, an equal part of it for each. ``loss``: the user's own that the folds are trained with.
    """
    recipe = replace(prepared.recipe, fold=None)
    assert prepared.folds is not None
    with open_run(recipe.name, prepared.folder, group) as run:
        plan, result = _find_plan(run, FoldPlan(prepared.folds, autotune.minutes, autotune.find_lr)), run.result()
        group.barrier()  # all have read the folder before the main process writes to it
        if run.fold_plan() is None:
            run.save_fold_plan(plan)  # before the recipe: it tells the folder from that of a single run
        run.record_recipe(recipe)
        folds = [_fold_run(prepared, run, Fold(number, plan.folds)) for number in range(1, plan.folds + 1)]
        if result is not None:
            on_message(f"{run.folder} is finished: nothing to do")
            return CrossValidation(run, [_finished_run(fold) for fold in folds], result)
        minutes = None if plan.minutes is None else plan.minutes / plan.folds
        trained: list[TrainedRun] = []
        predictions: list[_FoldPredictions] = []
        for fold in folds:
            trained.append(train_fold(fold, AutoTune(minutes, plan.find_lr)))
            if group.is_main:
                predictions.append(_load_predictions(fold, trained[-1], loss))
        if group.is_main:
            run.save_result(_summarise(run, predictions, trained))
        group.barrier()  # for the result
        return CrossValidation(run, trained, run.result() or {})


def _find_plan(run: Run, plan: FoldPlan) -> FoldPlan:
    """Return the plan that the folder was started with, which must have as many folds; of a new folder, this one."""
    saved = run.fold_plan()
    if saved is None and run.saved_recipe() is not None:
        raise VitrailError(f"{run.folder} is a run without folds; name another folder for a cross-validation")
    if saved is not None and saved.folds != plan.folds:
        raise VitrailError(
            f"folds must be {saved.folds}, which {run.folder} was started with, got {plan.folds}; name another folder"
        )
    return saved or plan


def _fold_run(prepared: PreparedRun, run: Run, fold: Fold) -> PreparedRun:
    """Return the run of a fold: the recipe with that fold, in a folder below."""
    recipe = replace(prepared.recipe, fold=fold)
    return PreparedRun(recipe, prepared.data, folder=run.folder / f"fold-{fold.number}")


def _finished_run(fold: PreparedRun) -> TrainedRun:
    assert fold.folder is not None
    run = Run(fold.folder)
    result = run.result()
    if result is None:
        raise VitrailError(f"{run.folder} is missing, although the cross-validation is finished; delete result.json above it")
    return TrainedRun(run, result)


@dataclass(frozen=True)
class _FoldPredictions:
    """The images of a fold, and what its run has saved about them."""

    fold: Fold
    task: Task
    data: DatasetSplits
    arrays: dict[str, ndarray]  # outputs, targets and indices; empty if the task saves none


def _summarise(run: Run, predictions: Sequence[_FoldPredictions], trained: Sequence[TrainedRun]) -> dict[str, Any]:
    """Write the out-of-fold predictions, and return the result: the scores of each fold, their means and intervals, and the
    scores of all predictions together."""
    fractions = predictions[0].task.fractions
    scores = {name: [one.metrics[name] for one in trained] for name in trained[0].metrics}
    means = {name: mean_interval(values) for name, values in scores.items()}
    baselines = [each.task.baseline(each.data.train, each.data.test) for each in predictions]
    result = {
        "run": str(run.folder),
        "folds": [_fold_entry(each, one) for each, one in zip(predictions, trained, strict=True)],
        "mean": {name: mean for name, (mean, _) in means.items()},
        "intervals": {name: _clip(interval) if name in fractions else interval for name, (_, interval) in means.items()},
        **{name: mean_interval([scores[name] for scores in baselines])[0] for name in baselines[0]},
        "seconds": math.fsum(one.result["seconds"] for one in trained),
    }
    if all(each.arrays for each in predictions):
        with atomic_path(run.folder / OUT_OF_FOLD_FILE, locked=True) as temporary, open(temporary, "wb") as file:
            file.writelines(_csv_lines(predictions))
        result["out_of_fold"] = str(run.folder / OUT_OF_FOLD_FILE)
        result["pooled"] = _pooled(predictions)
    return finite_or_text(result)


def _load_predictions(fold: PreparedRun, trained: TrainedRun, loss: Loss | None) -> _FoldPredictions:
    data, metadata = trained.data or check_training_data(fold.data, fold.recipe).data, read_metadata(trained.folder / "best")
    if metadata["dataset"]["fingerprint"] != data.fingerprint:  # of a fold that was finished before
        raise VitrailError(f"{trained.folder} was trained on other images or labels; use another folder for this dataset")
    assert fold.recipe.fold is not None
    task = recipe_task(fold.recipe, data, loss).with_state(metadata.get("task_state", {}))
    return _FoldPredictions(fold.recipe.fold, task, data, trained.run.load_predictions())


def _fold_entry(predictions: _FoldPredictions, trained: TrainedRun) -> dict[str, Any]:
    result, counts = trained.result, {split: len(part) for split, part in predictions.data.splits.items()}
    names = ("best", "steps", "seconds", "unreadable_images")
    return {
        "run": str(trained.folder),
        "images": counts,
        "metrics": trained.metrics,
        **{name: result[name] for name in names},
    }


def _clip(interval: Interval) -> Interval:
    """Return the interval of a fraction, which is from 0 to 1."""
    return max(interval[0], 0.0), min(interval[1], 1.0)


def _pooled(folds: Sequence[_FoldPredictions]) -> dict[str, Any]:
    """Return the metrics of all predictions together."""
    task, pooled = folds[0].task, _concatenate([each.arrays for each in folds])
    metrics, intervals = pooled_scores(task, pooled)
    return {"images": len(pooled["indices"]), **metrics, "intervals": intervals}


def _concatenate(folds: Sequence[dict[str, ndarray]]) -> dict[str, Tensor]:
    names = folds[0] if all(folds) else ()
    return {name: torch.cat([torch.from_numpy(arrays[name]) for arrays in folds]) for name in names}


def _csv_lines(folds: Sequence[_FoldPredictions]) -> Iterator[bytes]:
    """Yield a line per image: its file, what is true, its fold, and what ``vitrail predict`` writes about it."""
    first = folds[0]
    has_predictions = first.task.prediction_class is not Prediction
    truths, columns = list(_truth(first.data.test, 0)), first.task.columns(TOP_K) if has_predictions else []
    yield csv_line(["file", *truths, "fold", *columns])
    for each in folds:
        indices, saved = each.arrays["indices"].tolist(), _concatenate([each.arrays])
        predictions = each.task.saved_predictions(saved, TOP_K) if has_predictions else [Prediction()] * len(indices)
        for index, prediction in zip(indices, predictions, strict=True):
            cells, test = prediction.cells(), each.data.test
            yield csv_line(
                [test.describe(index), *_truth(test, index).values(), each.fold.number, *(cells.get(name) for name in columns)]
            )


def _truth(dataset: Dataset, index: int) -> dict[str, Any]:
    """Return what is true of an image by column: its class, its classes separated by semicolons, its numbers, its objects, or
    the fraction of its counted pixels that each class has."""
    if (label_sets := dataset.label_sets) is not None:
        return {"true_labels": ";".join(dataset.class_names[label] for label in label_sets.classes_of(index))}
    if dataset.has_mask_targets:
        mask = dataset.mask(index)
        counted = max(int((mask != IGNORED).sum()), 1)
        return {f"true_{name}": float((mask == label).sum() / counted) for label, name in enumerate(dataset.class_names)}
    if dataset.has_box_targets:
        labels = dataset.objects(index).labels.tolist()
        return {"true_objects": len(labels), "true_labels": ";".join(dataset.class_names[label] for label in labels)}
    if dataset.target_names:
        numbers = np.atleast_1d(dataset.target(index)).tolist()
        return {f"true_{name}": number for name, number in zip(dataset.target_names, numbers, strict=True)}
    if dataset.class_names:
        return {"true_label": label_name(dataset, index)}
    return {"true_target": np.asarray(dataset.target(index)).tolist()}
