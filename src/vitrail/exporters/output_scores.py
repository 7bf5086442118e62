"""How well the outputs of an exported file agree with its model's, and what both score where the targets are known.

Outputs are reduced batch by batch to what these need: those of every pixel would not fit in memory for all images.
b images, k classes, m detections; the model's input is height by width.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int16, Num
from numpy import ndarray
from torch import Tensor

from vitrail.exporters.sample_images import SampleImages
from vitrail.tasks.dense import restored_bands
from vitrail.tasks.detected_images import stack_detected_images
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.detection_metrics import detection_scores
from vitrail.tasks.segmentation import SegmentationTask
from vitrail.tasks.segmentation_metrics import confusion_matrix, segmentation_scores
from vitrail.tasks.task import Task

MAX_BATCH_SIZE = 8
MAX_BATCH_NUMEL = 2**25  # numbers of a batch of outputs: 128 MiB


@dataclass(frozen=True)
class ReducedMasks:
    """The class of each pixel of the model's input, and the confusion matrices of the images with known masks."""

    classes: Int16[ndarray, "b height width"]
    confusion: Int[Tensor, "k k"]


class OutputScorer:
    """Reduces outputs, and compares those of a file with those of its model."""

    metric = "top1"  # of ``scores``, in the fields of ``ParityReport``

    def __init__(self, task: Task, samples: SampleImages, has_outputs: bool) -> None:
        self.task, self.samples, self.has_outputs = task, samples, has_outputs
        if samples.label_sets is not None:
            self.metric = "map"

    def parts(self, outputs: Float32[ndarray, "b ..."]) -> tuple[Float32[ndarray, "b ..."], ...]:
        """Return the outputs in parts that have a scale each, by which differences are measured."""
        return (outputs,)

    def decoding_difference(self, named: Mapping[str, Num[ndarray, "b ..."]]) -> float:
        """Return the largest difference of what a file computes from its first output to what the task computes from it."""
        first, *others = named
        expected = self.task.export_outputs(torch.from_numpy(named[first]))
        return max((float(np.abs(named[name] - expected[name].numpy()).max()) for name in others), default=0.0)

    def reduce(self, outputs: Float32[ndarray, "b ..."], start: int) -> Any:
        """Return what is kept of the outputs of a batch, whose first image has the index ``start``."""
        return outputs

    def join(self, batches: Iterable[Any]) -> Any:
        """Return what is kept of all images."""
        return np.concatenate(list(batches))

    def agreement(self, outputs: Any, expected: Any) -> float:
        """Return how well outputs agree by the task of the model; for features, the mean cosine similarity."""
        return compute_agreement(self.task, outputs, expected, self.has_outputs)

    def scores(self, outputs: Any, expected: Any) -> tuple[float, float] | None:
        """Return what the outputs and the expected ones score by ``metric``; None if the targets are not known."""
        return labelled_scores(self.task, outputs, expected, self.samples)


class MaskScorer(OutputScorer):
    """Compares the class of each pixel at the model's input size, and mean IoU at the sizes of the images."""

    metric = "miou"
    task: SegmentationTask

    def reduce(self, outputs: Float32[ndarray, "b k height width"], start: int) -> ReducedMasks:
        confusion = torch.zeros(outputs.shape[1], outputs.shape[1], dtype=torch.int64)
        if self.samples.masks is not None:
            for index, logits in enumerate(torch.from_numpy(outputs), start):
                target = torch.from_numpy(self.samples.masks(index)).long()
                for band, restored in restored_bands(logits, self.task.preprocess, (target.shape[0], target.shape[1])):
                    confusion += confusion_matrix(restored.argmax(0), target[band], len(confusion))
        return ReducedMasks(outputs.argmax(1).astype(np.int16), confusion)

    def join(self, batches: Iterable[ReducedMasks]) -> ReducedMasks:
        batches = list(batches)
        return ReducedMasks(
            np.concatenate([batch.classes for batch in batches]), torch.stack([batch.confusion for batch in batches]).sum(0)
        )

    def agreement(self, outputs: ReducedMasks, expected: ReducedMasks) -> float:
        """Return the fraction of the pixels with the same class."""
        return float((outputs.classes == expected.classes).mean())

    def scores(self, outputs: ReducedMasks, expected: ReducedMasks) -> tuple[float, float] | None:
        if not expected.confusion.any():
            return None
        miou = [float(segmentation_scores(reduced.confusion)["miou"]) for reduced in (outputs, expected)]
        return miou[0], miou[1]


class BoxScorer(OutputScorer):
    """Compares the detections in each image, and their average precision at the sizes of the images."""

    metric = "ap"
    task: DetectionTask

    def parts(self, outputs: Float32[ndarray, "b channels rows columns"]) -> tuple[Float32[ndarray, "b ..."], ...]:
        """Return the logits and the distances; those that reach out of any image are equal."""
        side = max(self.task.preprocess.image_size)
        return outputs[:, :-4], outputs[:, -4:].clip(-side, side)

    def decoding_difference(self, named: Mapping[str, Num[ndarray, "b ..."]]) -> float:
        """Return the largest difference of the scores, boxes and labels; equal scores may be in any order."""
        expected = self.task.export_outputs(torch.from_numpy(named[self.task.output_name]))
        scores = expected["scores"].numpy()
        gaps = -np.diff(scores, axis=1, prepend=2, append=-1)
        is_alone = (scores > 0) & (np.minimum(gaps[:, 1:], gaps[:, :-1]) > 1e-6)
        differences = [np.abs(named["scores"] - scores)]
        differences += [np.abs(named[name] - expected[name].numpy())[is_alone] for name in ("boxes", "labels")]
        return max(float(each.max(initial=0)) for each in differences)

    def reduce(self, outputs: Float32[ndarray, "b channels rows columns"], start: int) -> list[Float[Tensor, "_ 6"]]:
        sizes = [self.task.preprocess.image_size] * len(outputs)
        if self.samples.objects is not None:
            sizes = [size for _, size in self.samples.objects[start : start + len(outputs)]]
        return [self.task.detect(torch.from_numpy(output), size) for output, size in zip(outputs, sizes, strict=True)]

    def join(self, batches: Iterable[list[Float[Tensor, "_ 6"]]]) -> list[Float[Tensor, "_ 6"]]:
        return [rows for batch in batches for rows in batch]

    def agreement(self, outputs: Sequence[Float[Tensor, "_ 6"]], expected: Sequence[Float[Tensor, "_ 6"]]) -> float:
        return self.task.box_agreement(outputs, expected)

    def scores(
        self, outputs: Sequence[Float[Tensor, "_ 6"]], expected: Sequence[Float[Tensor, "_ 6"]]
    ) -> tuple[float, float] | None:
        if self.samples.objects is None:
            return None
        objects = [each for each, _ in self.samples.objects]
        ap = [
            detection_scores(stack_detected_images(range(len(rows)), rows, objects).matches(), self.task.classes)["ap"]
            for rows in (outputs, expected)
        ]
        return None if np.isnan(ap[1]) else (ap[0], ap[1])


@singledispatch
def output_scorer(task: Task, samples: SampleImages, has_outputs: bool) -> OutputScorer:
    """Return the scorer for a model of a task; a class of tasks with large outputs registers its own."""
    return OutputScorer(task, samples, has_outputs)


@output_scorer.register
def _(task: SegmentationTask, samples: SampleImages, has_outputs: bool) -> OutputScorer:
    return MaskScorer(task, samples, has_outputs)


@output_scorer.register
def _(task: DetectionTask, samples: SampleImages, has_outputs: bool) -> OutputScorer:
    return BoxScorer(task, samples, has_outputs)


def batch_size(numel: int) -> int:
    """Return how many images are computed at a time whose outputs have this many numbers each."""
    return max(min(MAX_BATCH_SIZE, MAX_BATCH_NUMEL // numel), 1)


def compute_agreement(
    task: Task, outputs: Float32[ndarray, "n ..."], expected: Float32[ndarray, "n ..."], has_outputs: bool
) -> float:
    """Return how well outputs agree by the task of the model; for features, the mean cosine similarity."""
    actual, wanted = torch.from_numpy(outputs).double(), torch.from_numpy(expected).double()
    if has_outputs:
        return task.agreement(actual, wanted)
    return float(torch.nn.functional.cosine_similarity(actual, wanted, dim=1, eps=1e-12).mean())


def labelled_scores(
    task: Task, outputs: Float32[ndarray, "n ..."], expected: Float32[ndarray, "n ..."], samples: SampleImages
) -> tuple[float, float] | None:
    """Return the accuracy of a classifier's outputs and of the expected ones, of several labels the mAP; None without labels,
    or for another model."""
    if not task.has_classes or not task.model.classes:
        return None
    if samples.label_sets is not None:
        targets = torch.from_numpy(samples.label_sets)
        maps = [task.metrics(torch.from_numpy(scores), targets)[task.primary_metric] for scores in (outputs, expected)]
        return maps[0], maps[1]
    labelled = samples.labels >= 0
    if not labelled.any():
        return None
    correct = [(scores.argmax(1) == samples.labels)[labelled].mean() for scores in (outputs, expected)]
    return float(correct[0]), float(correct[1])
