"""Datasets of Hugging Face's ``datasets`` (an optional extra): from the hub, ``hf:owner/name`` or ``hf:owner/name:config``,
or a folder written by ``save_to_disk``. Images reach our own decoder undecoded, as they are in the file.

No code of a dataset is executed, and the library is kept quiet: no telemetry, no download counts, no progress bars.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from warnings import catch_warnings

import numpy as np
from numpy import ndarray

from vitrail.data.sources.columns import IMAGES, LABELS, need, pick
from vitrail.data.sources.labels import by_name, split_name
from vitrail.data.sources.parquet import picture_of
from vitrail.data.sources.source import Source
from vitrail.errors import VitrailError

PATIENCE = 3.0  # seconds for the hub to respond; its client would retry for minutes


def read_hub(address: str | Path, *, image: str | None = None, label: str | None = None) -> dict[str, Source]:
    """Return the splits of a dataset; ``image`` and ``label`` name columns with unusual names."""
    datasets = _library(address)
    hub = str(address).startswith("hf:")
    name, config = _parsed(str(address)) if hub else (str(address), None)
    offline = hub and not _reachable(_endpoint(), PATIENCE)
    with _quiet(datasets, offline):
        try:
            found = datasets.load_dataset(name, config) if hub else datasets.load_from_disk(name)
        except Exception as error:  # the library raises many types
            raise VitrailError(f"{address} cannot be {'downloaded' if hub else 'read'}: {_reason(error, offline)}") from None
        return _sources(datasets, address, _splits(address, found), image, label)


def is_saved(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote this folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


@dataclass(frozen=True)
class Rows:
    """Images in a column of a dataset that the library keeps memory-mapped."""

    rows: Any  # with the one column, undecoded
    column: str
    labels: ndarray
    names: tuple[str, ...]
    origin: str

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, index: int) -> str:
        return f"row {index + 1} of {self.origin}"

    def content(self, index: int) -> bytes:
        return picture_of(self.rows[index][self.column], Path(), self.where(index))


# Columns and labels --------------------------------------------------------------------------------------------------


def _splits(address: object, found: Any) -> dict[str, Any]:
    """Return the splits by name; a dataset without splits, or with a single one of another name, is not split."""
    if not isinstance(found, dict):
        return {"": found}
    named: dict[str, Any] = {}
    for name, rows in found.items():
        split = split_name(name)
        if split in named:
            raise VitrailError(f"{address} has two splits for {split}, among {', '.join(found)}; keep one of them")
        if split:
            named[split] = rows
    if not named and len(found) != 1:
        raise VitrailError(f"{address} has the splits {', '.join(found) or 'none'}; train, validation or test is needed")
    order = [name for name in ("train", "validation", "test") if name in named]
    return {name: named[name] for name in order} if named else {"": next(iter(found.values()))}


def _sources(datasets: Any, address: object, splits: dict[str, Any], image: str | None, label: str | None) -> dict[str, Source]:
    features = next(iter(splits.values())).features
    pictures = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    classes = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    image = _column(address, features, image, pictures, IMAGES, "images")
    label = _column(address, features, label, classes, LABELS, "label")
    if image not in pictures:
        raise VitrailError(
            f"the column {image} of {address} has no images; columns with images: {', '.join(pictures) or 'none'}"
        )
    if any(rows.features[name] != features[name] for rows in splits.values() for name in (image, label)):
        raise VitrailError(f"the splits of {address} differ in their classes; save them with the same features")
    labels, names = _labels(address, splits, label, label in classes)
    undecoded = {split: rows.with_format(None).select_columns([image]) for split, rows in splits.items()}
    return {
        split: Rows(rows.cast_column(image, datasets.Image(decode=False)), image, labels[split], names, _origin(address, split))
        for split, rows in undecoded.items()
    }


def _column(address: object, features: Any, wish: str | None, fit: list[str], known: tuple[str, ...], what: str) -> str:
    """Return the requested column; else among those of fitting type one of a usual name, or the first; else a usual name."""
    guess = None if wish else pick(address, fit, None, known, what) or next(iter(fit), None)
    return guess or need(address, list(features), wish, known, what)


def _labels(address: object, splits: dict[str, Any], column: str, declared: bool) -> tuple[dict[str, ndarray], tuple[str, ...]]:
    values = {split: rows.with_format(None)[column][:] for split, rows in splits.items()}
    if declared:  # a test split without labels has -1 or None
        names = tuple(str(name) for name in next(iter(splits.values())).features[column].names)
        return {
            split: np.array([-1 if one is None else one for one in some], np.int64) for split, some in values.items()
        }, names
    for split, some in values.items():
        for row, value in enumerate(some):
            if not isinstance(value, str | int) or not str(value).strip():
                raise VitrailError(
                    f"row {row + 1} of {_origin(address, split)} has no name or whole number in {column}, got {value!r}"
                )
    numbers, names = by_name([str(value).strip() for some in values.values() for value in some])
    ends = np.cumsum([len(some) for some in values.values()])
    return dict(zip(values, np.split(numbers, ends[:-1]), strict=True)), names


def _origin(address: object, split: str) -> str:
    return f"{address} ({split})" if split else str(address)


# The library and the hub ---------------------------------------------------------------------------------------------


def _parsed(address: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"hf:(\w[\w.-]*/\w[\w.-]*)(?::([\w.+-]+))?", address, re.ASCII)
    if not match or ".." in address:
        raise VitrailError(f"a dataset of the hub is written hf:owner/name or hf:owner/name:config, got {address!r}")
    if Path(match[1]).exists():  # the library would read that instead
        raise VitrailError(f"there is a folder {match[1]} here; name it without hf:, or open {address} from another folder")
    return match[1], match[2]


def _library(address: object) -> Any:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise VitrailError(f"{address} needs Hugging Face's datasets: pip install 'vitrail[datasets]'") from None
    if int(datasets.__version__.split(".")[0]) < 4:  # older ones execute scripts of the dataset
        raise VitrailError(
            f"{address} needs datasets 4 or later, got {datasets.__version__}: pip install -U 'vitrail[datasets]'"
        )
    return datasets


def _endpoint() -> str | None:
    from huggingface_hub import constants

    return None if constants.HF_HUB_OFFLINE else constants.ENDPOINT


def _reachable(endpoint: str | None, patience: float) -> bool:
    """Whether the hub responds within seconds; in a thread, because name resolution has no timeout."""
    answered: list[bool] = []

    def ask(address: str) -> None:
        try:
            with urlopen(Request(address, method="HEAD"), timeout=patience):
                answered.append(True)
        except HTTPError as error:  # a response all the same
            error.close()
            answered.append(True)
        except (OSError, ValueError, HTTPException):
            pass

    if endpoint:
        asking = Thread(target=ask, args=(endpoint,), daemon=True)
        asking.start()
        asking.join(patience + 0.5)
    return bool(answered)


@contextmanager
def _quiet(datasets: Any, offline: bool) -> Iterator[None]:
    """Silence both libraries. They read the environment once, so their settings are patched temporarily."""
    import huggingface_hub

    settings: list[tuple[Any, str, Any]] = [
        (datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False),
        (huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True),
    ]
    settings += [(place, "HF_HUB_OFFLINE", True) for place in (datasets.config, huggingface_hub.constants) if offline]
    before = [(place, name, getattr(place, name, None)) for place, name, _ in settings]
    noisy = [bars for bars in (datasets.utils, huggingface_hub.utils) if not bars.are_progress_bars_disabled()]
    level = datasets.logging.get_verbosity()
    with catch_warnings(action="ignore"):  # about progress bars requested by the environment
        try:
            for place, name, value in settings:
                setattr(place, name, value)
            for bars in noisy:
                bars.disable_progress_bars()
            datasets.logging.set_verbosity(logging.CRITICAL)
            yield
        finally:
            for place, name, value in before:
                setattr(place, name, value)
            for bars in noisy:
                bars.enable_progress_bars()
            datasets.logging.set_verbosity(level)


def _reason(error: Exception, offline: bool) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return "the hub cannot be reached and the dataset is not in the cache" if offline else first
