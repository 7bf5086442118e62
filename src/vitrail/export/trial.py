"""Images to verify or calibrate an exported file on: the given ones, else the model's own dataset, else synthetic ones.

n images, c channels.
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
WORK = 2e12  # of a comparison with the default number of images: about a minute
DRAWN = 32
Role = Literal["evaluate", "calibrate"]  # quantisation is never evaluated on the images it was calibrated on


@dataclass(frozen=True)
class Trial:
    """Preprocessed but not normalised images, with labels as the model's class indices, -1 if unknown."""

    pictures: UInt8[ndarray, "n height width c"]
    labels: Int[ndarray, " n"]
    what: str  # their origin
    real: bool = True


def trial(
    model: Model,
    data: str | None = None,
    count: int | None = None,
    progress: Progress | None = None,
    role: Role | None = None,
) -> Trial:
    """Load ``count`` images spread evenly over test, else validation, else all; None: as many as take about a minute, at most
    250. ``calibrate`` uses train, or a quarter if there is only one split, which ``evaluate`` leaves out.
    """
    if count is not None and count < 1:
        raise VitrailError(f"the number of images must be at least 1, got {count}; try 64")
    wanted = count or int(min(max(WORK / cost(model.config).macs, FEWEST), MOST))
    own = str(model.facts.get("dataset", {}).get("name", "")) if data is None else data
    try:
        if own:
            return _real(model, own, wanted, progress, role)
        reason = "the model does not record its dataset"
    except (VitrailError, OSError) as error:
        if data is not None:
            raise
        reason = f"its own dataset is not available: {error}"
    return _drawn(model, count or DRAWN, reason)


def _real(model: Model, name: str, count: int, progress: Progress | None, role: Role | None) -> Trial:
    try:
        data = opened(name, model, progress)
        split, source = _split(data, role)
        classes = _classes(model, data, source)
    except VitrailError as error:  # a comparison needs no labels
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
            progress("reading images", place, len(chosen))
    if not seen:
        raise VitrailError(f"no image of {name} can be read; `vitrail data check {name}` tells why")
    labels = source.labels[kept]
    return Trial(np.stack(seen), np.where(labels < 0, -1, classes[labels]), f"{split} of {name}")


def _split(data: Data, role: Role | None) -> tuple[str, Source]:
    split, source = split_of(data, None)
    learned = split != "all" and (data.train.labels >= 0).any()
    if role == "calibrate" and learned:
        return split_of(data, "train")
    return (split, source) if learned else _shared(split, source, role)


def _shared(split: str, source: Source, role: Role | None) -> tuple[str, Source]:
    """Reserve every fourth image for calibration; a single image is used for both."""
    if role is None or len(source) < 2:
        return split, source
    fourth = np.arange(len(source)) % 4 == 1
    share, chosen = ("a quarter", fourth) if role == "calibrate" else ("three quarters", ~fourth)
    return share if split == "all" else f"{share} of {split}", Part(source, np.flatnonzero(chosen))


def _classes(model: Model, data: Data, source: Source) -> ndarray:
    """Return the model's index of each class of the dataset; all -1 if the classes differ."""
    try:
        return matched(source, model, data.name)
    except VitrailError:
        return np.full(len(source.names), -1)


def _read(model: Model, source: Source, chosen: ndarray) -> Iterator[tuple[int, ndarray]]:
    """Yield index and preprocessed image, skipping those that cannot be read."""
    how = preprocess_of(model)
    for index in chosen.tolist():
        try:
            yield index, fitted(as_picture(source.content(index)), how)
        except (VitrailError, OSError):
            continue


def _drawn(model: Model, count: int, reason: str) -> Trial:
    """Generate synthetic images: windows of ``panes``, and noise, which covers what images do not."""
    how, noisy = preprocess_of(model), count // 4
    windows = panes("test", count - noisy, (64, 64), 0)
    seen = [fitted(as_picture(windows.content(index)), how) for index in range(len(windows))]
    noise = np.random.default_rng(0).integers(0, 256, (noisy, *how.image, len(how.mean)), np.uint8)
    return Trial(np.concatenate([np.stack(seen), noise]), np.full(count, -1), f"synthetic images, as {reason}", False)
