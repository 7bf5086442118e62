"""Datasets of Hugging Face's ``datasets`` (an optional extra): from the hub, ``hf:owner/name`` or ``hf:owner/name:config``,
or a folder written by ``save_to_disk``. Images reach our own decoder undecoded, as they are in the file.

No code of a dataset is executed, and the library is kept quiet: no telemetry, no download counts, no progress bars.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request
from warnings import catch_warnings

import numpy as np
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.download import open_url
from vitrail.data.sources.labels import canonical_split, encode_labels
from vitrail.data.sources.parquet import image_bytes_of_cell
from vitrail.data.sources.table_columns import IMAGE_COLUMNS, LABEL_COLUMNS, find_column, require_column
from vitrail.errors import VitrailError, first_line

TIMEOUT_SECONDS = 3.0  # seconds for the hub to respond; its client would retry for minutes


def read_hf_dataset(address: str | Path, *, image: str | None = None, label: str | None = None) -> dict[str, Dataset]:
    """Return the splits of a dataset; ``image`` and ``label`` name columns with unusual names."""
    datasets = _import_datasets(address)
    from_hub = str(address).startswith("hf:")
    name, config = _parse_address(str(address)) if from_hub else (str(address), None)
    offline = from_hub and not _is_reachable(_endpoint())
    with _silence(datasets, offline):
        try:
            loaded = datasets.load_dataset(name, config) if from_hub else datasets.load_from_disk(name)
        except Exception as error:  # the library raises many types
            unreachable = "the hub cannot be reached and the dataset is not in the cache"
            reason = unreachable if offline else first_line(error)
            raise VitrailError(f"{address} cannot be {'downloaded' if from_hub else 'read'}: {reason}") from None
        return _build_datasets(datasets, address, _named_splits(address, loaded), image, label)


def is_saved_dataset(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote this folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


@dataclass(frozen=True, eq=False)
class HubDataset(Dataset):
    """Images in a column of a dataset that the library keeps memory-mapped."""

    rows: Any  # with the one column, undecoded
    column: str
    labels: ndarray
    class_names: tuple[str, ...]
    origin: str

    def describe(self, index: int) -> str:
        return f"row {index + 1} of {self.origin}"

    def read(self, index: int) -> bytes:
        return image_bytes_of_cell(self.rows[index][self.column], Path(), self.describe(index))

    def content_key(self) -> bytes:
        return str(self.rows._fingerprint).encode()

    def cache_key(self) -> bytes:
        return self.content_key()


# Columns and labels --------------------------------------------------------------------------------------------------


def _named_splits(address: object, loaded: Any) -> dict[str, Any]:
    """Return the splits by name; a dataset without splits, or with a single one of another name, is not split."""
    if not isinstance(loaded, dict):
        return {"": loaded}
    named: dict[str, Any] = {}
    for name, rows in loaded.items():
        split = canonical_split(name)
        if split in named:
            raise VitrailError(f"{address} has two splits for {split}, among {', '.join(loaded)}; keep one of them")
        if split:
            named[split] = rows
    if not named and len(loaded) != 1:
        raise VitrailError(f"{address} has the splits {', '.join(loaded) or 'none'}; train, validation or test is needed")
    order = [name for name in ("train", "validation", "test") if name in named]
    return {name: named[name] for name in order} if named else {"": next(iter(loaded.values()))}


def _build_datasets(
    datasets: Any, address: object, splits: dict[str, Any], image: str | None, label: str | None
) -> dict[str, Dataset]:
    features = next(iter(splits.values())).features
    image_columns = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    class_columns = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    image = _choose_column(address, features, image, image_columns, IMAGE_COLUMNS, "images")
    label = _choose_column(address, features, label, class_columns, LABEL_COLUMNS, "label")
    if image not in image_columns:
        raise VitrailError(
            f"the column {image} of {address} has no images; columns with images: {', '.join(image_columns) or 'none'}"
        )
    if any(rows.features[name] != features[name] for rows in splits.values() for name in (image, label)):
        raise VitrailError(f"the splits of {address} differ in their classes; save them with the same features")
    labels, class_names = _encode_split_labels(address, splits, label, label in class_columns)
    undecoded = {split: rows.with_format(None).select_columns([image]) for split, rows in splits.items()}
    return {
        split: HubDataset(
            rows.cast_column(image, datasets.Image(decode=False)), image, labels[split], class_names, _origin(address, split)
        )
        for split, rows in undecoded.items()
    }


def _choose_column(
    address: object, features: Any, requested: str | None, fitting: list[str], usual_names: tuple[str, ...], purpose: str
) -> str:
    """Return the requested column; else among those of fitting type one of a usual name, or the first; else a usual name."""
    column = None if requested else find_column(address, fitting, None, usual_names, purpose) or next(iter(fitting), None)
    return column or require_column(address, list(features), requested, usual_names, purpose)


def _encode_split_labels(
    address: object, splits: dict[str, Any], column: str, declared: bool
) -> tuple[dict[str, ndarray], tuple[str, ...]]:
    values = {split: rows.with_format(None)[column][:] for split, rows in splits.items()}
    if declared:  # a test split without labels has -1 or None
        class_names = tuple(str(name) for name in next(iter(splits.values())).features[column].names)
        return {
            split: np.array([-1 if one is None else one for one in split_values], np.int64)
            for split, split_values in values.items()
        }, class_names
    for split, split_values in values.items():
        for row, value in enumerate(split_values):
            if not isinstance(value, str | int) or not str(value).strip():
                raise VitrailError(
                    f"row {row + 1} of {_origin(address, split)} has no name or whole number in {column}, got {value!r}"
                )
    encoded, class_names = encode_labels([str(value).strip() for split_values in values.values() for value in split_values])
    ends = np.cumsum([len(split_values) for split_values in values.values()])
    return dict(zip(values, np.split(encoded, ends[:-1]), strict=True)), class_names


def _origin(address: object, split: str) -> str:
    return f"{address} ({split})" if split else str(address)


# The library and the hub ---------------------------------------------------------------------------------------------


def _parse_address(address: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"hf:(\w[\w.-]*/\w[\w.-]*)(?::([\w.+-]+))?", address, re.ASCII)
    if not match or ".." in address:
        raise VitrailError(f"a dataset of the hub is written hf:owner/name or hf:owner/name:config, got {address!r}")
    if Path(match[1]).exists():  # the library would read that instead
        raise VitrailError(f"there is a folder {match[1]} here; name it without hf:, or open {address} from another folder")
    return match[1], match[2]


def _import_datasets(address: object) -> Any:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise VitrailError(f"{address} needs Hugging Face's datasets; try pip install 'vitrail[datasets]'") from None
    if int(datasets.__version__.split(".")[0]) < 4:  # older ones execute scripts of the dataset
        raise VitrailError(
            f"{address} needs datasets 4 or later, got {datasets.__version__}; try pip install -U 'vitrail[datasets]'"
        )
    return datasets


def _endpoint() -> str | None:
    from huggingface_hub import constants

    return None if constants.HF_HUB_OFFLINE else constants.ENDPOINT


def _is_reachable(endpoint: str | None) -> bool:
    """Whether the hub responds within seconds."""
    try:
        open_url(Request(endpoint or "", method="HEAD"), TIMEOUT_SECONDS).close()
    except HTTPError:  # a response all the same
        return True
    except (OSError, ValueError, HTTPException):
        return False
    return True


@contextmanager
def _silence(datasets: Any, offline: bool) -> Iterator[None]:
    """Silence both libraries. They read the environment once, so their settings are patched temporarily."""
    import huggingface_hub

    settings: list[tuple[Any, str, Any]] = [
        (datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False),
        (huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True),
    ]
    settings += [(module, "HF_HUB_OFFLINE", True) for module in (datasets.config, huggingface_hub.constants) if offline]
    with catch_warnings(action="ignore"), ExitStack() as restored:  # warnings about progress bars that the environment requests
        for module, name, value in settings:
            restored.callback(setattr, module, name, getattr(module, name, None))
            setattr(module, name, value)
        for bars in (datasets.utils, huggingface_hub.utils):
            if not bars.are_progress_bars_disabled():
                restored.callback(bars.enable_progress_bars)
                bars.disable_progress_bars()
        restored.callback(datasets.logging.set_verbosity, datasets.logging.get_verbosity())
        datasets.logging.set_verbosity(logging.CRITICAL)
        yield
