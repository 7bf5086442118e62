"""``vitrail.evaluate_robustness``: how much of its accuracy a model keeps when its images are corrupted.

What is measured is the score of each image that the model's task defines: of a classifier, whether its first prediction is
correct; of a multi-label model, the average precision of the ranking of its labels; of masks, the pixel accuracy; of boxes,
the average precision of the ranking of its detections.

A corruption acts on the image as the model's own preprocessing crops and resizes it, before it is normalised. Each image is
read once and corrupted in memory, batch by batch. b images, r bootstrap resamples, c columns: clean, then one corruption after
the other, mild to severe. Several models are compared on the same corrupted images.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray
from torch import Tensor

from vitrail.augment.counter_rng import permutation
from vitrail.data.loader import build_pixel_loader
from vitrail.data.sources.dataset import Dataset, DatasetSplits, Progress, select_images
from vitrail.errors import VitrailError
from vitrail.evaluation.bootstrap import proportion_interval
from vitrail.evaluation.corruptions import Corruption, GridSize, check_grid, corruption_suite
from vitrail.evaluation.label_matching import match_targets, select_split
from vitrail.evaluation.leakage import dataset_notes, leakage_warnings, open_for_evaluation
from vitrail.evaluation.split_runner import check_outputs
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import Predictor, require_outputs
from vitrail.models.config import ViTConfig, format_size
from vitrail.tasks.resampling import bootstrap_means, percentile_interval
from vitrail.tasks.task import ImageScore, Task

DEFAULT_BATCH_SIZE = 64
DEFAULT_GRID = (8, 8)  # cells, if no model has patches
CLEAN, ALL = "clean", "all"


@dataclass(frozen=True)
class CorruptionScore:
    """Mean score of the images under one corruption; ``retained`` is its mean as a fraction of the clean score."""

    title: str
    by_severity: tuple[float, ...]  # mild to severe; empty without severities
    mean: float
    interval: tuple[float, float]  # 95 %, of the mean
    retained: float

    @property
    def top1(self) -> tuple[float, ...]:
        """Accuracy of a classifier, mild to severe."""
        return self.by_severity


@dataclass(frozen=True)
class RobustnessResult:
    """Robustness of a model: scores ``clean``, by corruption, and ``all``, the unweighted mean over the corruptions."""

    dataset: str
    split: str
    image_score: ImageScore  # what is measured
    grid: GridSize
    corruptions: tuple[Corruption, ...]
    scores: dict[str, CorruptionScore]
    bootstrap: dict[str, ndarray]  # bootstrap means of each score
    image_scores: Float[ndarray, "b c"]
    indices: Int[ndarray, " b"]  # indices of the images in the split
    example_images: UInt8[Tensor, "c channels h w"]  # the first image in every column
    unreadable_images: int = 0
    notes: tuple[str, ...] = ()

    @property
    def correct(self) -> Bool[ndarray, "b c"]:
        """Whether a classifier predicts each image correctly."""
        return self.image_scores > 0

    @property
    def clean(self) -> float:
        return self.scores[CLEAN].mean

    @property
    def mean(self) -> float:
        return self.scores[ALL].mean

    @property
    def retained(self) -> float:
        return self.scores[ALL].retained


def evaluate_robustness(
    model: Any,
    data: Any,
    split: str | None = None,
    grid: GridSize | None = None,
    limit: int | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> RobustnessResult:
    """Evaluate the mean score of the images under every corruption in every severity, on a split as ``evaluate`` selects it.

    ``grid``: rows and columns of the cells that are dropped and shuffled; None: the model's patches. ``limit``: number of
    images, drawn from the whole split. The same seed corrupts an image in the same way for every model.
    """
    predictor = require_image_scores(load_predictor(model))
    _check_eight_bits(predictor)
    grid = grid or model_grid(predictor)
    check_grid(grid, predictor.preprocess.image_size)
    data = open_for_evaluation(data, predictor, progress)
    split, source = select_split(data, split, predictor.task.config.labelled)
    indices = sample_indices(len(source), limit, seed)
    runner = _Runner(predictor, task_corruptions(predictor.task, grid), seed, progress)
    outcomes = runner.run(select_images(source, indices), indices, split, data.name, batch_size, workers)
    warnings = (*leakage_warnings(predictor, data, split), *left_out_notes(predictor.task, grid))
    return _summarise(outcomes, measure_of(predictor), runner.corruptions, data, split, grid, warnings)


def require_image_scores(predictor: Predictor) -> Predictor:
    """Raise unless the model's task scores single images."""
    if require_outputs(predictor).task.image_score is None:
        kind = predictor.task.config.name
        raise VitrailError(f"a model for {kind} has no score of an image, which robustness needs; name a classifier")
    return predictor


def task_corruptions(task: Task, grid: GridSize) -> tuple[Corruption, ...]:
    """Return the corruptions that a model of this task can be tested under."""
    return tuple(each for each in corruption_suite(grid) if not (each.moves_parts and _has_places(task)))


def left_out_notes(task: Task, grid: GridSize) -> list[str]:
    """Return a note on the corruptions that a model of this task is not tested under."""
    left_out = [each for each in corruption_suite(grid) if each.moves_parts and _has_places(task)]
    targets = "masks" if task.config.has_masks else "boxes"
    return [f"{each.name} moves parts of an image away from their {targets}, so it is left out" for each in left_out]


def _has_places(task: Task) -> bool:
    """Whether the targets belong to places of an image."""
    return task.config.has_masks or task.config.has_boxes


def measure_of(predictor: Predictor) -> ImageScore:
    """Return what is measured of a model that ``require_image_scores`` accepts."""
    score = predictor.task.image_score
    assert score is not None
    return score


def _check_eight_bits(predictor: Predictor) -> None:
    if predictor.preprocess.raw:
        raise VitrailError(
            f"robustness needs a model of 8-bit images, for which the corruptions are defined, and {predictor.source} takes "
            f"{predictor.preprocess.channels} bands; try vitrail evaluate"
        )


def model_grid(predictor: Predictor) -> GridSize:
    """Return the model's patch grid, so that whole patches are dropped and shuffled."""
    return predictor.config.grid if isinstance(predictor.config, ViTConfig) else DEFAULT_GRID


def sample_indices(num_images: int, limit: int | None, seed: int) -> Int[ndarray, " m"]:
    """Return a sorted sample of indices; a larger sample includes a smaller one."""
    if limit is not None and limit < 1:
        raise VitrailError(f"limit must be at least 1, got {limit}; try limit=1000")
    if limit is None or limit >= num_images:
        return np.arange(num_images)
    return np.sort(permutation(seed, 0, num_images)[:limit])


@dataclass(frozen=True)
class _Outcomes:
    scores: Float[ndarray, "b c"]
    indices: Int[ndarray, " b"]
    example_images: UInt8[Tensor, "c channels h w"]
    unreadable_images: int


@dataclass(frozen=True)
class _Runner:
    """A predictor with the settings to run it."""

    predictor: Predictor
    corruptions: tuple[Corruption, ...]
    seed: int
    progress: Progress | None

    def run(self, source: Dataset, sampled: ndarray, split: str, data: str, batch_size: int, workers: int | None) -> _Outcomes:
        task, matched = self.predictor.task, match_targets(source, self.predictor, data)
        loader = build_pixel_loader(source, self.predictor.preprocess, batch_size)
        indices, scores = [torch.zeros(0).long()], []
        example = torch.zeros(0, dtype=torch.uint8)
        report, done = self.progress or (lambda description, done, total: None), 0
        for batch in loader.batches(workers=workers):
            if not batch.images.shape[0]:  # none could be read
                continue
            pixels, numbers = batch.images, batch.indices.numpy()
            targets, keys = task.image_targets(matched, numbers), sampled[numbers]
            outputs_by_version = [self._outputs(version) for version in self._corrupted_versions(pixels, keys)]
            scores.append(np.stack([task.image_scores(each, targets).double().numpy() for each in outputs_by_version], axis=1))
            check_outputs(task, outputs_by_version[0], batch.indices, source, data)
            indices.append(batch.indices)
            example = example if len(example) else torch.cat(list(self._corrupted_versions(pixels[:1], keys[:1])))
            done += batch.images.shape[0]
            report(f"corrupting {split}", done, len(source))
        check_outputs(task, torch.zeros(done, 1), torch.cat(indices), source, data)
        return _Outcomes(np.concatenate(scores), sampled[torch.cat(indices).numpy()], example, len(loader.read_errors))

    def _corrupted_versions(self, images: UInt8[Tensor, "b channels h w"], keys: Int[ndarray, " b"]) -> Iterator[Tensor]:
        yield images
        for kind in self.corruptions:
            yield from kind.iter_severities(images, keys, self.seed)

    def _outputs(self, images: UInt8[Tensor, "b channels h w"]) -> Float[Tensor, "b ..."]:
        return torch.from_numpy(self.predictor.outputs(rearrange(images, "b c h w -> b h w c").numpy()))


def _summarise(
    outcomes: _Outcomes,
    image_score: ImageScore,
    corruptions: tuple[Corruption, ...],
    data: DatasetSplits,
    split: str,
    grid: GridSize,
    notes: tuple[str, ...],
) -> RobustnessResult:
    ends = np.cumsum([1, *(len(kind.strengths) for kind in corruptions)])
    parts = [outcomes.scores[:, start:end] for start, end in pairwise(ends)]
    per_corruption = np.stack([part.mean(1) for part in parts], axis=1)  # mean of each image over the severities
    resampled = bootstrap_means(
        np.concatenate([outcomes.scores[:, :1], per_corruption, per_corruption.mean(1, keepdims=True)], axis=1)
    ).T
    means = [outcomes.scores[:, 0].mean().item(), *(part.mean().item() for part in parts)]
    means.append(sum(means[1:]) / len(parts))
    names = [(CLEAN, "None"), *((kind.name, kind.title) for kind in corruptions), (ALL, "Mean of all")]
    curves: list[tuple[float, ...]] = [(), *(tuple(part.mean(0).tolist()) for part in parts), ()]
    scores = {
        name: CorruptionScore(
            title,
            curve,
            mean,
            proportion_interval(values, len(outcomes.scores)) if image_score.is_fraction else percentile_interval(values),
            mean / means[0] if means[0] else math.nan,
        )
        for (name, title), curve, mean, values in zip(names, curves, means, resampled, strict=True)
    }
    return RobustnessResult(
        dataset=data.name,
        split=split,
        image_score=image_score,
        grid=grid,
        corruptions=corruptions,
        scores=scores,
        bootstrap=dict(zip(scores, resampled, strict=True)),
        image_scores=outcomes.scores,
        indices=outcomes.indices,
        example_images=outcomes.example_images,
        unreadable_images=outcomes.unreadable_images,
        notes=(*dataset_notes(data), *notes),
    )


@dataclass(frozen=True)
class RobustnessDifference:
    """Mean score of the other model minus that of the first, on the same corrupted images."""

    difference: float
    interval: tuple[float, float]


def compare_robustness(first: RobustnessResult, other: RobustnessResult) -> dict[str, RobustnessDifference]:
    """Return the difference for each corruption, and for ``clean`` and ``all``."""
    if not np.array_equal(first.indices, other.indices) or first.grid != other.grid:
        raise VitrailError(f"{first.split} and {other.split} are not the same images, so they cannot be compared in pairs")
    return {
        name: RobustnessDifference(
            other.scores[name].mean - score.mean, percentile_interval(other.bootstrap[name] - first.bootstrap[name])
        )
        for name, score in first.scores.items()
    }


def common_grid(predictors: Sequence[Predictor]) -> GridSize:
    """Return the patch grid of the first model that has patches."""
    return next((model_grid(each) for each in predictors if isinstance(each.config, ViTConfig)), DEFAULT_GRID)


def check_models(predictors: Sequence[Predictor], data: DatasetSplits, split: str | None, grid: GridSize) -> None:
    """Raise whatever would stop one of the models, before the first is evaluated."""
    first = predictors[0]
    for predictor in predictors:
        if measure_of(predictor) != measure_of(first):
            kinds = f"{first.source} for {first.task.config.name}, {predictor.source} for {predictor.task.config.name}"
            raise VitrailError(f"models to compare must be for one task, got {kinds}; evaluate them one by one")
        check_grid(grid, predictor.preprocess.image_size)
        match_targets(select_split(data, split, predictor.task.config.labelled)[1], predictor, data.name)


def comparability_notes(predictors: Mapping[str, Predictor], grid: GridSize) -> list[str]:
    """Return notes on what makes the comparison uneven, a sentence each."""
    notes, images = [], list(dict.fromkeys(predictor.preprocess.image_size for predictor in predictors.values()))
    for name, predictor in predictors.items():
        if isinstance(predictor.config, ViTConfig) and predictor.config.grid != grid:
            notes.append(f"cells are {format_size(grid)}; the patches of {name} are {format_size(predictor.config.grid)}")
    if len(images) > 1:
        sizes = " and ".join(map(format_size, images))
        notes.append(f"the models take images of {sizes}: cells and blocks are the same fractions of each, noise differs")
    for image in images:
        if any(side % cells for side, cells in zip(image, grid, strict=True)):
            notes.append(f"{format_size(grid)} cells do not divide {format_size(image)} pixels, so cells differ by a pixel")
    return notes
