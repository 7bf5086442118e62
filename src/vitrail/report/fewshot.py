"""Few-shot section of a run's report: linear classification of its features from a few images per class.

It has to be cheap: it uses a tenth as many images as the run was trained on, a few thousand at most. A forward pass costs about
a third of a training step, so this is some 3 % of the run. n images.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vitrail.data.sources.source import Data, Source, chosen
from vitrail.errors import VitrailError
from vitrail.evaluate.features import embed
from vitrail.evaluate.fewshot import SHOTS, FewShot, fewshot
from vitrail.models.device import device
from vitrail.report.page import table
from vitrail.weights.load import load

MOST = 3000  # images in total, half of them for training
LEAST = 5  # training images per class


def fewshot_part(weights: Path, data: Data, split: str, seen: int) -> Iterator[str]:
    """Yield the section, or nothing if it cannot be computed. ``images_seen``: images that the run was trained on."""
    try:
        found = few_shots(weights, data, split, seen)
    except (VitrailError, OSError, RuntimeError, MemoryError):
        return
    if found:
        rows = [(f"{one.shots}", f"{one.accuracy:.2%}", f"{one.spread:.2%}") for one in found]
        yield "<h2>Few-shot accuracy</h2>"
        yield (
            f"<p>Accuracy on {split} of a linear classifier on the features, trained on a few images per class: "
            "ridge regression in closed form, mean and standard deviation of three draws.</p>"
        )
        yield table(("#images per class", "#accuracy", "#standard deviation"), rows)


def few_shots(weights: Path, data: Data, split: str, seen: int) -> tuple[FewShot, ...]:
    """Compute few-shot accuracies for the numbers of shots that allow three different draws."""
    classes, half = len(data.names), min(MOST, seen // 10) // 2
    each = half // max(classes, 1)
    if split == "train" or classes < 2 or each < LEAST:
        return ()
    drawn = _of_each(data.train.labels, each)
    shots = [count for count in SHOTS if 2 * count <= each or len(drawn) == len(data.train)]
    model = load(weights).to(device("auto"))
    train, test = (
        embed(model, chosen(source, rows)) for source, rows in ((data.train, drawn), _some(data.splits[split], half))
    )
    return fewshot(train, test, classes, shots)


def _of_each(labels: Int[ndarray, " n"], count: int) -> ndarray:
    """Return indices of up to ``count`` images of every class, by a fixed draw."""
    order = np.random.default_rng(0).permutation(len(labels))
    kept = [order[labels[order] == label][:count] for label in range(int(labels.max(initial=-1)) + 1)]
    return np.sort(np.concatenate(kept)) if kept else order


def _some(source: Source, count: int) -> tuple[Source, ndarray]:
    return source, np.sort(np.random.default_rng(0).permutation(len(source))[:count])
