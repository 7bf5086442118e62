"""Predictions of a finished run: the confusion matrix, and the images behind it. b images, k classes.

A run with several labels per image has the metrics of each class in place of the matrix, one with boxes the images with the
lowest average precision.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset, as_label_sets
from vitrail.errors import VitrailError
from vitrail.evaluation.per_class import confusion_matrix
from vitrail.studio.image_library import MAX_PAGE_SIZE, ImageLibrary
from vitrail.studio.run_log import last_logged_step, to_json_value
from vitrail.tasks.classification import per_image_scores
from vitrail.tasks.detected_images import DetectedImages, load_detected_images
from vitrail.tasks.detection_metrics import image_average_precision
from vitrail.tasks.label_metrics import label_losses
from vitrail.tasks.registry import build_task
from vitrail.training.run import Run
from vitrail.weights.model_folder import is_model_folder, read_metadata

MAX_MATRIX_CLASSES = 100  # rows of a matrix
NUM_HIGHEST_LOSS = 24


@dataclass(frozen=True)
class PredictionTable:
    """Per image: index in the split, label, predicted class, its probability, and the loss.

    Of several labels per image, label and predicted class are a row of ones and zeros, and there is no probability.
    """

    split: str
    class_names: tuple[str, ...]
    fingerprint: str | None  # of the dataset
    indices: ndarray
    labels: ndarray
    predicted: ndarray
    probabilities: ndarray | None
    losses: ndarray

    def describe(self, row: int) -> dict[str, Any]:
        """Return what is predicted for an image: a class with its probability, or labels and how they differ from its own."""
        if self.probabilities is not None:
            probability = to_json_value(float(self.probabilities[row]))
            return {"predicted": self.class_names[self.predicted[row]], "probability": probability}
        actual, predicted = self.labels[row] > 0, self.predicted[row]
        return {
            "labels": self._names(predicted),
            "missed": self._names(actual & ~predicted),
            "wrong": self._names(predicted & ~actual),
        }

    def _names(self, is_selected: ndarray) -> list[str]:
        return [self.class_names[label] for label in np.flatnonzero(is_selected)]


class RunPredictions:
    """The predictions in ``predictions.npz`` of a run, cached; the images are those of a dataset of the library."""

    def __init__(self, run: Run, library: ImageLibrary, dataset_index: int) -> None:
        self.run, self.library, self.dataset_index = run, library, dataset_index
        self._lock = Lock()
        self._cached: tuple[tuple[int, int], PredictionTable] | None = None  # with the file's mtime and size

    def confusion(self) -> dict[str, Any]:
        """Return the confusion matrix: true classes in rows, predicted ones in columns. With very many classes, only the most
        confused; ``class_indices`` has the class of each row."""
        table = self._load_single_labels()
        count = len(table.class_names)
        full = confusion_matrix(torch.from_numpy(table.predicted), torch.from_numpy(table.labels), count).numpy()
        classes = np.arange(count)
        if count > MAX_MATRIX_CLASSES:
            num_errors = full.sum(0) + full.sum(1) - 2 * full.diagonal()
            classes = np.sort(np.argsort(-num_errors, kind="stable")[:MAX_MATRIX_CLASSES])
        return {
            "split": table.split,
            "class_names": [table.class_names[index] for index in classes],
            "class_indices": classes.tolist(),
            "matrix": full[np.ix_(classes, classes)].tolist(),
            "total": len(table.labels),
        }

    def class_metrics(self) -> dict[str, Any]:
        """Return the metrics of every class of a run with several labels per image, as its result has them."""
        result = self.run.result()
        if result is None or "classes" not in result:
            raise VitrailError(self._missing_reason() if result is None else f"{self.run.folder.name} has no metrics by class")
        table = self._load_table()
        return {"split": table.split, "total": len(table.labels), "classes": to_json_value(result["classes"])}

    def confused_images(self, true: int, predicted: int) -> dict[str, Any]:
        """Return the images of a cell of the matrix, most confident first."""
        table = self._load_single_labels()
        for name, index in (("true", true), ("predicted", predicted)):
            if not 0 <= index < len(table.class_names):
                raise VitrailError(f"{name} must be a class index from 0 to {len(table.class_names) - 1}, got {index}")
        rows = np.flatnonzero((table.labels == true) & (table.predicted == predicted))
        assert table.probabilities is not None
        order = rows[np.argsort(-table.probabilities[rows], kind="stable")]
        return {"total": len(rows), "images": self._describe_images(table, order[:MAX_PAGE_SIZE])}

    def highest_loss(self) -> dict[str, Any]:
        """Return the images with the highest losses."""
        table = self._load_table()
        order = np.argsort(-table.losses, kind="stable")[:NUM_HIGHEST_LOSS]
        rows = self._describe_images(table, order)
        return {
            "images": [
                {**row, "loss": to_json_value(float(table.losses[position]))} for row, position in zip(rows, order, strict=True)
            ]
        }

    def lowest_precision(self) -> dict[str, Any]:
        """Return the images with the lowest average precision of their detections, of those that have objects."""
        detected, split = self._load_boxes(), str((self.run.result() or {})["reported_on"])
        self._check_dataset(split, detected.indices.numpy(), self._fingerprint())
        matches = detected.matches()
        precision = np.array([image_average_precision(each) for each in matches])
        order = np.argsort(precision, kind="stable")[: min(int(np.isfinite(precision).sum()), NUM_HIGHEST_LOSS)]
        return {
            "images": [
                {
                    **self.library.describe(self.library.image_id(self.dataset_index, split, int(detected.indices[row]))),
                    "ap50": float(precision[row]),
                    "objects": int(matches[row].counted[:, 0].sum()),
                }
                for row in order.tolist()
            ]
        }

    def _describe_images(self, table: PredictionTable, rows: ndarray) -> list[dict[str, Any]]:
        self._check_images(table)
        return [
            {
                **self.library.describe(self.library.image_id(self.dataset_index, table.split, int(table.indices[row]))),
                **table.describe(int(row)),
            }
            for row in rows
        ]

    def _check_images(self, table: PredictionTable) -> None:
        """Raise if the indices no longer refer to the same images."""
        self._check_dataset(
            table.split,
            table.indices,
            table.fingerprint,
            lambda dataset: np.array_equal(_read_labels(dataset, table.indices, table.labels.ndim), table.labels),
        )

    def _check_dataset(
        self, split: str, indices: ndarray, fingerprint: str | None, is_same: Callable[[Dataset], bool] = lambda _: True
    ) -> None:
        data = self.library.get_dataset(self.dataset_index)
        dataset, largest = data.splits[split], indices.max(initial=-1)
        if not (largest < len(dataset) and is_same(dataset)) or fingerprint not in (None, data.fingerprint):
            raise VitrailError(
                f"the images of {data.name} are not those that {self.run.folder.name} was evaluated on, so none "
                "can be shown; restore them, or train again"
            )

    def _load_single_labels(self) -> PredictionTable:
        """Return the predictions of a run with one label per image."""
        table = self._load_table()
        if table.labels.ndim > 1:
            raise VitrailError(
                f"{self.run.folder.name} predicts several labels per image, so it has no confusion matrix; its classes are "
                "listed by their average precision"
            )
        return table

    def _load_table(self) -> PredictionTable:
        path = self.run.folder / "predictions.npz"
        with self._lock:
            if self.run.result() is None or not path.is_file() or self.run.recipe().task.several_labels is None:
                raise VitrailError(self._missing_reason())
            version = path.stat().st_mtime_ns, path.stat().st_size
            if self._cached is None or self._cached[0] != version:
                self._cached = version, _read_predictions(self.run)
            return self._cached[1]

    def _load_boxes(self) -> DetectedImages:
        """Return the detections and objects of a run's images."""
        detected = None
        if self.run.result() is not None and self.run.recipe().task.has_boxes:
            saved = {name: torch.from_numpy(array) for name, array in self.run.load_predictions().items()}
            detected = load_detected_images(saved)
        if detected is None:
            raise VitrailError(self._missing_reason())
        return detected

    def _fingerprint(self) -> str | None:
        """Return the fingerprint of the dataset that the best weights were trained on."""
        best = self.run.folder / "best"
        return read_metadata(best).get("dataset", {}).get("fingerprint") if is_model_folder(best) else None

    def _missing_reason(self) -> str:
        """Explain why there are no predictions."""
        recipe, name = self.run.recipe(), self.run.folder.name
        if recipe.task.has_targets and recipe.task.several_labels is None and not recipe.task.has_boxes:
            return (
                f"{name} predicts no class of an image, so it has no confusion matrix; its report.html and `vitrail evaluate` "
                "have more"
            )
        if not recipe.task.labelled and not recipe.task.has_boxes:
            return f"{name} trains without labels, so it has no confusion matrix; `vitrail finetune` trains a classifier on it"
        if self.run.result() is None:
            progress = f"step {last_logged_step(self.run):,} of {recipe.steps:,}"
            return f"the predictions of {name} are saved when it is finished; it is at {progress}"
        return f"{name} has no predictions.npz; `vitrail train --recipe-from` trains a run that has"


def _read_labels(dataset: Dataset, indices: ndarray, ndim: int) -> ndarray:
    """Return the labels of images, or a row of ones and zeros each."""
    if ndim == 1:
        return dataset.labels[indices]
    label_sets = as_label_sets(dataset).label_sets
    return np.zeros((0, 0)) if label_sets is None else label_sets.rows(indices)


def _read_predictions(run: Run) -> PredictionTable:
    recipe, split = run.recipe(), str((run.result() or {})["reported_on"])
    metadata = read_metadata(run.folder / "best") if is_model_folder(run.folder / "best") else {}
    task = build_task(recipe.task, recipe.model, recipe.preprocess).with_state(metadata.get("task_state", {}))
    names = "logits", task.target_name, "indices"
    try:
        # opened here, since numpy would leave a damaged file open
        with open(run.folder / "predictions.npz", "rb") as file, np.load(file, allow_pickle=False) as arrays:
            logits, labels, indices = (torch.from_numpy(arrays[name]) for name in names)
    except Exception as error:  # a damaged file can raise any exception
        raise VitrailError(f"predictions.npz of {run.folder.name} cannot be read: {error}; train the run again") from None
    class_names = metadata.get("class_names") or []
    if len(class_names) != logits.shape[1]:
        class_names = [str(index) for index in range(logits.shape[1])]
    table = partial(
        PredictionTable,
        split,
        tuple(class_names),
        metadata.get("dataset", {}).get("fingerprint"),
        indices.numpy(),
        labels.numpy(),
    )
    probabilities = task.probabilities(logits.double())
    if (thresholds := task.threshold_row()) is not None:
        return table((probabilities >= thresholds).numpy(), None, label_losses(logits, labels.bool()).numpy())
    predicted = logits.argmax(1)
    own = probabilities.gather(1, predicted[:, None])[:, 0].numpy()
    return table(predicted.numpy(), own, per_image_scores(logits, labels)["loss"].numpy())
