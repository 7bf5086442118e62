"""Pictures to try an exported file on: those named, else those the model was trained beside, else drawn ones.

n pictures, c channels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from vitrail.data.decode import as_picture
from vitrail.data.prepare import fitted
from vitrail.data.sources.open import pictures
from vitrail.data.sources.panes import panes
from vitrail.data.sources.source import Data, Part, Progress, Source
from vitrail.errors import VitrailError
from vitrail.evaluate.caution import opened
from vitrail.evaluate.features import preprocess_of
from vitrail.evaluate.match import Joined, matched, split_of
from vitrail.models.build import Model
from vitrail.models.cost import cost

MOST, FEWEST = 250, 16
WORK = 2e12  # multiplications that a comparison may take unless more are asked for: about a minute
DRAWN = 32


@dataclass(frozen=True)
class Trial:
    """Made ready for the model but for the normalising; labels are the model's, -1 where nobody knows."""

    pictures: UInt8[ndarray, "n height width c"]
    labels: Int[ndarray, " n"]
    what: str  # where they come from, in words
    real: bool = True


def trial(
    model: Model,
    data: str | None = None,
    count: int | None = None,
    progress: Progress | None = None,
    wish: str | None = None,
) -> Trial:
    """``count`` pictures spread evenly over the split; none: as many as take about a minute, at most 250.

    ``wish`` is the split, else test, else validation, else all there is.
    """
    if count is not None and count < 1:
        raise VitrailError(f"pictures must be at least 1, got {count}; try 64")
    wanted = count or int(min(max(WORK / cost(model.config).macs, FEWEST), MOST))
    own = str(model.facts.get("data", {}).get("name", "")) if data is None else data
    try:
        if own:
            return _real(model, own, wanted, progress, wish)
        reason = "the model does not say what it was trained on"
    except (VitrailError, OSError) as error:
        if data is not None:
            raise
        reason = f"its own data cannot be had: {error}"
    return _drawn(model, count or DRAWN, reason)


def _real(model: Model, name: str, count: int, progress: Progress | None, wish: str | None) -> Trial:
    try:
        split, source, classes = _labelled(model, opened(name, model, progress), wish)
    except VitrailError as error:  # for a comparison, pictures alone will do
        data = pictures(name, labelled=False, progress=progress)
        whole = Joined([part for part in data.splits.values() if len(part)])
        if not len(whole):
            raise error from None
        split, first = ("the other half", 1) if wish == "train" and len(whole) > 1 else ("half", 0)
        source = Part(whole, np.arange(first, len(whole), 2))
        classes = np.full(max(len(source.names), 1), -1)
    chosen = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    kept, seen = [], []
    for place, (index, picture) in enumerate(_read(model, source, chosen), 1):
        kept.append(index)
        seen.append(picture)
        if progress is not None:
            progress("reading pictures", place, len(chosen))
    if not seen:
        raise VitrailError(f"no picture of {name} can be read; `vitrail data check {name}` tells why")
    labels = source.labels[kept]
    return Trial(np.stack(seen), np.where(labels < 0, -1, classes[labels]), f"{split} of {name}")


def _labelled(model: Model, data: Data, wish: str | None) -> tuple[str, Source, ndarray]:
    """The split and, of each class, the model's number for it; a model of other classes is compared without."""
    split, source = split_of(data, wish)
    try:
        classes = matched(source, model, data.name)
    except VitrailError:
        classes = np.full(len(source.names), -1)
    return split, source, classes


def _read(model: Model, source: Source, chosen: ndarray) -> Iterator[tuple[int, ndarray]]:
    """What cannot be read is left out: it is not what is tried here."""
    how = preprocess_of(model)
    for index in chosen.tolist():
        try:
            yield index, fitted(as_picture(source.content(index)), how)
        except (VitrailError, OSError):
            continue


def _drawn(model: Model, count: int, reason: str) -> Trial:
    """Windows out of ``panes``, and noise, which has what no picture has."""
    how, noisy = preprocess_of(model), count // 4
    windows = panes("test", count - noisy, (64, 64), 0)
    seen = [fitted(as_picture(windows.content(index)), how) for index in range(len(windows))]
    noise = np.random.default_rng(0).integers(0, 256, (noisy, *how.image, len(how.mean)), np.uint8)
    return Trial(np.concatenate([np.stack(seen), noise]), np.full(count, -1), f"drawn pictures, as {reason}", False)
