"""The few-shot answer of a run: how well its features tell the classes apart from a few pictures each (``evaluate.fewshot``).

It has to be cheap: a tenth as many pictures as the run has seen are looked at, and a few thousand at most. To see one costs
about a third of learning from it, so that this is some 3 % of the run. n pictures.
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

MOST = 3000  # pictures in all, half of them to learn from
LEAST = 5  # of a class to learn from


def fewshot_part(weights: Path, data: Data, split: str, seen: int) -> Iterator[str]:
    """Nothing where it cannot be had: a run is whole without it. ``seen`` is how many pictures the run has learned from."""
    try:
        found = few_shots(weights, data, split, seen)
    except (VitrailError, OSError, RuntimeError, MemoryError):
        return
    if found:
        rows = [(f"{one.shots}", f"{one.accuracy:.2%}", f"{one.spread:.2%}") for one in found]
        yield "<h2>From a few pictures</h2>"
        yield (
            f"<p>How often {split} is told right by the features before the head, with so many pictures of each class to learn "
            "from: ridge regression in closed form, the mean of three draws and the deviation between them.</p>"
        )
        yield table(("#pictures of a class", "#accuracy", "#deviation"), rows)


def few_shots(weights: Path, data: Data, split: str, seen: int) -> tuple[FewShot, ...]:
    """Of those numbers of shots that three draws can differ in."""
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
    """So many pictures of every class, by a fixed draw."""
    order = np.random.default_rng(0).permutation(len(labels))
    kept = [order[labels[order] == label][:count] for label in range(int(labels.max(initial=-1)) + 1)]
    return np.sort(np.concatenate(kept)) if kept else order


def _some(source: Source, count: int) -> tuple[Source, ndarray]:
    return source, np.sort(np.random.default_rng(0).permutation(len(source))[:count])
