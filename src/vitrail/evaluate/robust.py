"""``vitrail.evaluate_robustness``: how much of its accuracy a model keeps when its images are corrupted.

A corruption acts on the image as the model's own preprocessing crops and resizes it, before it is normalised. Each image is
read once and corrupted in memory, batch by batch. b images, r bootstrap resamples, c columns: clean, then one corruption after
the other, mild to severe.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray
from torch import Tensor

from vitrail.augment.chance import permutation
from vitrail.data.loader import evaluation
from vitrail.data.prepare import normalise
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.source import Data, Progress, Source, chosen
from vitrail.errors import VitrailError
from vitrail.evaluate.bootstrap import drawn_means, of_share
from vitrail.evaluate.caution import cautions, notes_of, opened
from vitrail.evaluate.corrupt import Pair
from vitrail.evaluate.disturb import Disturbance, check_grid, disturbances
from vitrail.evaluate.evaluate import check_answers
from vitrail.evaluate.match import matched, split_of
from vitrail.evaluate.predict import preprocessing
from vitrail.models.build import Model
from vitrail.models.settings import ViTConfig
from vitrail.tasks.classify import marks
from vitrail.weights.load import load

BATCH = 64
GRID = (8, 8)  # cells, if no model has patches
CLEAN, ALL = "clean", "all"


@dataclass(frozen=True)
class Score:
    """Accuracy under one corruption, mild to severe; ``retained`` is the mean as a fraction of the clean accuracy."""

    title: str
    top1: tuple[float, ...]  # empty without severities
    mean: float
    interval: tuple[float, float]  # 95 %, of the mean
    retained: float


@dataclass(frozen=True)
class Stressed:
    """Robustness of a model: scores ``clean``, by corruption, and ``all``, the unweighted mean over the corruptions."""

    data: str
    split: str
    grid: Pair
    kinds: tuple[Disturbance, ...]
    scores: dict[str, Score]
    drawn: dict[str, ndarray]  # bootstrap means of each score
    right: Bool[ndarray, "b c"]
    indices: Int[ndarray, " b"]  # indices of the images in the split
    example: UInt8[Tensor, "c channels h w"]  # the first image in every column
    left_out: int = 0
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> float:
        return self.scores[CLEAN].mean

    @property
    def mean(self) -> float:
        return self.scores[ALL].mean

    @property
    def retained(self) -> float:
        return self.scores[ALL].retained


def stress(
    model: Model | str | Path,
    data: Data | str | Path,
    split: str | None = None,
    grid: Pair | None = None,
    limit: int | None = None,
    batch: int = BATCH,
    workers: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Stressed:
    """Evaluate the accuracy under every corruption in every severity, on a split as ``evaluate`` selects it.

    ``grid``: rows and columns of the cells that are dropped and shuffled; None: the model's patches. ``limit``: number of
    images, drawn from the whole split. The same seed corrupts an image in the same way for every model.
    """
    model = load(model) if isinstance(model, str | Path) else model
    how, grid = preprocessing(model), grid or cells_of(model)
    check_grid(grid, how.image)
    data = data if isinstance(data, Data) else opened(data, model, progress)
    split, whole = split_of(data, split)
    numbers = sample(len(whole), limit, seed)
    look = _Looking(model, how, disturbances(grid), seed, progress)
    was = model.training
    model.eval()
    try:
        seen = look.at(chosen(whole, numbers), numbers, split, data.name, batch, workers)
    finally:
        model.train(was)
    return _summed_up(seen, look.kinds, data, split, grid, tuple(cautions(model, data, split)))


def cells_of(model: Model) -> Pair:
    """Return the model's patch grid, so that whole patches are dropped and shuffled."""
    return model.config.grid if isinstance(model.config, ViTConfig) else GRID


def sample(pictures: int, limit: int | None, seed: int) -> Int[ndarray, " m"]:
    """Return a sorted sample of indices; a larger sample includes a smaller one."""
    if limit is not None and limit < 1:
        raise VitrailError(f"limit must be at least 1, got {limit}; try limit=1000")
    if limit is None or limit >= pictures:
        return np.arange(pictures)
    return np.sort(permutation(seed, 0, pictures)[:limit])


@dataclass(frozen=True)
class _Seen:
    right: Bool[ndarray, "b c"]
    indices: Int[ndarray, " b"]
    example: UInt8[Tensor, "c channels h w"]
    left_out: int


@dataclass(frozen=True)
class _Looking:
    """A model with the settings to run it."""

    model: Model
    how: Preprocess
    kinds: tuple[Disturbance, ...]
    seed: int
    progress: Progress | None

    def at(self, source: Source, numbers: ndarray, split: str, data: str, batch: int, workers: int | None) -> _Seen:
        classes = torch.from_numpy(matched(source, self.model, data))
        loader = evaluation(source, _raw(self.how), batch)
        clean, indices, right = [torch.zeros(0, self.model.config.classes)], [torch.zeros(0, dtype=torch.int64)], []
        example = torch.zeros(0, dtype=torch.uint8)
        tell, done = self.progress or (lambda what, done, of: None), 0
        for seen in loader.batches(workers=workers):
            if not seen.labels.shape[0]:  # none could be read
                continue
            pictures, labels, keys = seen.images.byte(), classes[seen.labels], numbers[seen.indices.numpy()]
            answers = [self._logits(version) for version in self._versions(pictures, keys)]
            right.append(np.stack([(marks(logits, labels)["top1"] > 0).numpy() for logits in answers], axis=1))
            clean.append(answers[0])
            indices.append(seen.indices)
            example = example if len(example) else torch.cat(list(self._versions(pictures[:1], keys[:1])))
            done += seen.labels.shape[0]
            tell(f"corrupting {split}", done, len(source))
        check_answers(torch.cat(clean), torch.cat(indices), source, data)
        return _Seen(np.concatenate(right), numbers[torch.cat(indices).numpy()], example, len(loader.problems))

    def _versions(self, pictures: UInt8[Tensor, "b channels h w"], keys: Int[ndarray, " b"]) -> Iterator[Tensor]:
        yield pictures
        for kind in self.kinds:
            yield from kind.severities(pictures, keys, self.seed)

    @torch.inference_mode()
    def _logits(self, pictures: UInt8[Tensor, "b channels h w"]) -> Float[Tensor, "b k"]:
        device = next(self.model.parameters()).device
        return self.model(normalise(pictures.float(), self.how).to(device)).float().cpu()


def _raw(how: Preprocess) -> Preprocess:
    """Return the preprocessing without normalisation: values 0 ... 255, as in the image."""
    channels = len(how.mean)
    return replace(how, mean=(0.0,) * channels, std=(1 / 255,) * channels)


def _summed_up(
    seen: _Seen, kinds: tuple[Disturbance, ...], data: Data, split: str, grid: Pair, notes: tuple[str, ...]
) -> Stressed:
    ends = np.cumsum([1, *(len(kind.strengths) for kind in kinds)])
    parts = [seen.right[:, start:end] for start, end in pairwise(ends)]
    each = np.stack([part.mean(1) for part in parts], axis=1)  # fraction of the severities at which each image is right
    drawn = drawn_means(np.concatenate([seen.right[:, :1], each, each.mean(1, keepdims=True)], axis=1)).T
    means = [seen.right[:, 0].mean().item(), *(part.mean().item() for part in parts)]
    means.append(sum(means[1:]) / len(parts))
    names = [(CLEAN, "None"), *((kind.name, kind.title) for kind in kinds), (ALL, "Mean of all")]
    curves: list[tuple[float, ...]] = [(), *(tuple(part.mean(0).tolist()) for part in parts), ()]
    scores = {
        name: Score(title, top1, mean, of_share(values, len(seen.right)), mean / means[0] if means[0] else math.nan)
        for (name, title), top1, mean, values in zip(names, curves, means, drawn, strict=True)
    }
    return Stressed(
        data.name, split, grid, kinds, scores, dict(zip(scores, drawn, strict=True)), seen.right, seen.indices, seen.example,
        seen.left_out, (*notes_of(data), *notes),
    )  # fmt: skip
