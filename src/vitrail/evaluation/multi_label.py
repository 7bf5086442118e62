"""Evaluation of several labels per image: average precision, F1 and others with intervals. b images, k classes."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import Dataset, DatasetSplits, as_label_sets
from vitrail.errors import VitrailError
from vitrail.evaluation.bootstrap import bias_corrected_interval
from vitrail.evaluation.label_matching import match_classes
from vitrail.evaluation.resampled import ResampledEvaluation
from vitrail.evaluation.split_runner import SplitRunner, check_outputs
from vitrail.tasks.label_metrics import average_precision, count_labels, coverage, label_losses
from vitrail.tasks.multi_label import MultiLabelTask
from vitrail.tasks.resampling import NUM_RESAMPLES, iter_resamples

MAX_BOOTSTRAP_NUMEL = 2**32  # images times classes times resamples; of larger splits there are fewer resamples
MIN_RESAMPLES = 100
MAX_NAMES = 3  # classes that a note lists


def evaluate_multi_label(
    task: MultiLabelTask, runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset
) -> ResampledEvaluation:
    """Evaluate a model on labels that are matched with its classes by name."""
    targets = label_matrix(runner, source, data.name)
    outputs, indices, unreadable = runner.run(source, split)
    check_outputs(task, outputs, indices, source, data.name)
    targets = targets[indices]
    metrics = task.metrics(outputs, targets)
    metrics["nll"] = metrics.pop("loss")
    bootstrap = bootstrap_label_metrics(task, outputs, targets.bool())
    return ResampledEvaluation(
        dataset=data.name,
        split=split,
        num_images=len(indices),
        unreadable_images=unreadable,
        metrics=metrics,
        notes=tuple(absence_notes(task.class_names, targets.sum(0).tolist())),
        intervals={name: bias_corrected_interval(samples, metrics[name]) for name, samples in bootstrap.items()},
        bootstrap=bootstrap,
        outputs=outputs,
        targets=targets,
        indices=indices,
        details={split: task.metrics(outputs, targets), **task.details(outputs, targets)},  # as a run's result has it
    )


def label_matrix(runner: SplitRunner, source: Dataset, data: str) -> UInt8[Tensor, "b k"]:
    """Return the labels of a split as zeros and ones, by the model's classes."""
    source = as_label_sets(source)
    if source.label_sets is None:
        raise VitrailError(f"{data} has no labels to evaluate on; name a labelled dataset")
    numbering = match_classes(source, runner.predictor, data)
    label_sets = source.label_sets.renumbered(numbering, len(runner.predictor.class_names))
    return torch.from_numpy(label_sets.rows(np.arange(len(source))))


def absence_notes(class_names: Sequence[str], support: Sequence[int]) -> list[str]:
    """Return a note on classes that no image has: their average precision is 0, as scikit-learn has it."""
    absent = [name for name, count in zip(class_names, support, strict=True) if not count]
    if not absent:
        return []
    listed = f"{', '.join(absent[:MAX_NAMES])}{f' and {len(absent) - MAX_NAMES} more' if len(absent) > MAX_NAMES else ''}"
    count = f"{len(absent)} of {len(class_names)} classes {'has' if len(absent) == 1 else 'have'} no image here ({listed})"
    return [f"{count}, and {'counts' if len(absent) == 1 else 'count'} as 0 in macro averages, as in scikit-learn"]


def bootstrap_label_metrics(
    task: MultiLabelTask, outputs: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"], resamples: int = NUM_RESAMPLES
) -> dict[str, ndarray]:
    """Return the metrics of each resample. A class that a resample happens to miss is left out of its macro averages."""
    affordable = max(MAX_BOOTSTRAP_NUMEL // max(outputs.numel(), 1), MIN_RESAMPLES)
    probabilities = task.probabilities(outputs.double())
    predicted = task.decisions(probabilities)
    per_image = torch.stack(
        [
            (predicted != positive).double().mean(1),
            (predicted == positive).all(1).double(),
            coverage(outputs, positive),
            label_losses(outputs, positive),
        ],
        dim=1,
    )
    is_absent = ~positive.any(0)
    chunks: list[dict[str, Tensor]] = []
    for drawn in iter_resamples(len(outputs), min(resamples, affordable)):
        counts = torch.from_numpy(drawn).int()
        precisions = torch.stack([average_precision(*column, counts) for column in zip(outputs.T, positive.T, strict=True)], 1)
        labels = count_labels(predicted, positive, counts)
        occurring = (labels.support > 0) | is_absent
        means = counts.double() @ per_image / len(outputs)
        chunks.append(
            {
                "map": (precisions * occurring).sum(1) / occurring.sum(1),
                "map_micro": _micro_precision(outputs, positive, counts),
                "map_weighted": (precisions * labels.support).sum(1) / labels.support.sum(1).clamp(min=1),
                "f1_macro": (labels.f1 * occurring).sum(1) / occurring.sum(1),
                "f1_micro": labels.f1_micro,
                **dict(zip(("hamming", "subset_accuracy", "coverage", "nll"), means.T, strict=True)),
            }
        )
    return {name: torch.cat([chunk[name] for chunk in chunks]).numpy() for name in chunks[0]}


def _micro_precision(
    outputs: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"], counts: Int[Tensor, "r b"]
) -> Float[Tensor, " r"]:
    """Return the average precision over all pairs of image and class, of a few resamples at a time."""
    at_a_time = max(2**24 // max(outputs.numel(), 1), 1)
    return torch.cat(
        [
            average_precision(outputs.flatten(), positive.flatten(), part.repeat_interleave(outputs.shape[1], dim=1))
            for part in counts.split(at_a_time)
        ]
    )
