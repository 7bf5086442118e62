"""Pictures to try an exported file on: those named, else those the model was trained beside, else drawn ones.

n pictures, c channels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

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
Role = Literal["judge", "calibrate"]  # of pictures where scales are found on some: on those nobody is judged


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
    role: Role | None = None,
) -> Trial:
    """``count`` pictures spread evenly over test, else validation, else all there is; none: as many as take about a minute, at
    most 250. To ``calibrate`` takes train, or a quarter where there is one split alone, and to ``judge`` leaves that out.
    """
    if count is not None and count < 1:
        raise VitrailError(f"pictures must be at least 1, got {count}; try 64")
    wanted = count or int(min(max(WORK / cost(model.config).macs, FEWEST), MOST))
    own = str(model.facts.get("data", {}).get("name", "")) if data is None else data
    try:
        if own:
            return _real(model, own, wanted, progress, role)
        reason = "the model does not say what it was trained on"
    except (VitrailError, OSError) as error:
        if data is not None:
            raise
        reason = f"its own data cannot be had: {error}"
    return _drawn(model, count or DRAWN, reason)


def _real(model: Model, name: str, count: int, progress: Progress | None, role: Role | None) -> Trial:
    try:
        data = opened(name, model, progress)
        split, source = _split(data, role)
        classes = _classes(model, data, source)
    except VitrailError as error:  # for a comparison, pictures alone will do
        data = pictures(name, labelled=False, progress=progress)
        whole = Joined([part for part in data.splits.values() if len(part)])
        if not len(whole):
            raise error from None
        split, source = _shared("all", whole, role)
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


def _split(data: Data, role: Role | None) -> tuple[str, Source]:
    split, source = split_of(data, None)
    learned = split != "all" and (data.train.labels >= 0).any()
    if role == "calibrate" and learned:
        return split_of(data, "train")
    return (split, source) if learned else _shared(split, source, role)


def _shared(split: str, source: Source, role: Role | None) -> tuple[str, Source]:
    """Every fourth is kept to calibrate by; a single picture has to do for both."""
    if role is None or len(source) < 2:
        return split, source
    fourth = np.arange(len(source)) % 4 == 1
    share, chosen = ("a quarter", fourth) if role == "calibrate" else ("three quarters", ~fourth)
    return share if split == "all" else f"{share} of {split}", Part(source, np.flatnonzero(chosen))


def _classes(model: Model, data: Data, source: Source) -> ndarray:
    """Of each class, the model's number for it; a model of other classes is compared without."""
    try:
        return matched(source, model, data.name)
    except VitrailError:
        return np.full(len(source.names), -1)


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
