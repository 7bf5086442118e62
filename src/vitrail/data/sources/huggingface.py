"""Datasets of Hugging Face's ``datasets`` (an optional extra): from the hub, ``hf:owner/name`` or ``hf:owner/name:config``,
or a folder written by ``save_to_disk``. Images reach our own decoder undecoded, as they are in the file.

No code of a dataset is executed, and the library is kept quiet: no telemetry, no download counts, no progress bars.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request
from warnings import catch_warnings

import numpy as np
from numpy import ndarray

from vitrail.data.class_names import deduplicate
from vitrail.data.sources.coded_column import CodedColumn, ColumnBuilder
from vitrail.data.sources.columns import ANY_COLUMNS, Columns
from vitrail.data.sources.dataset import Dataset, Progress, SourceSplits
from vitrail.data.sources.download import open_url
from vitrail.data.sources.hub_boxes import ObjectsColumn, find_objects_column, read_hub_boxes
from vitrail.data.sources.labels import canonical_split
from vitrail.data.sources.masks.hub_masks import find_mask_column, read_hub_masks
from vitrail.data.sources.masks.legend import Legend, find_legend, read_legend
from vitrail.data.sources.parquet import BATCH_ROWS, image_bytes_of_cell
from vitrail.data.sources.table_columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    MAX_INDICATOR_VALUES,
    find_column,
    require_column,
    target_columns,
    to_cells,
)
from vitrail.data.sources.table_targets import TargetColumns, missing_positives
from vitrail.errors import VitrailError, first_line

LEGEND_FILE = "id2label.json"
TIMEOUT_SECONDS = 3.0  # seconds for the hub to respond; its client would retry for minutes


def read_hf_dataset(
    address: str | Path,
    columns: Columns = ANY_COLUMNS,
    labelled: bool = True,
    *,
    image: str | None = None,
    progress: Progress | None = None,
) -> SourceSplits:
    """Read the splits of a dataset. ``columns`` names those of the targets, ``image`` one of images with an unusual name. If it
    need not be ``labelled``, a dataset without targets is read too."""
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
        return _build_datasets(datasets, address, _named_splits(address, loaded), image, columns, labelled, progress)


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


# Columns and targets -------------------------------------------------------------------------------------------------


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
    datasets: Any,
    address: object,
    splits: dict[str, Any],
    image: str | None,
    options: Columns,
    labelled: bool,
    progress: Progress | None = None,
) -> SourceSplits:
    features = next(iter(splits.values())).features
    image_columns = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    mask = find_mask_column(address, image_columns) if options.masks is not False and not options.boxes else None
    image = _choose_image_column(address, features, image, [name for name in image_columns if name != mask])
    if image not in image_columns:
        raise VitrailError(
            f"the column {image} of {address} has no images; columns with images: {', '.join(image_columns) or 'none'}"
        )
    others = {name: feature for name, feature in features.items() if name not in image_columns}
    declared = {name: of_column for name, feature in others.items() if (of_column := _declared_names(feature)) is not None}
    if not options.labels and not options.targets and declared:  # a column of classes is one of labels, whatever its name
        name = find_column(address, list(declared), None, LABEL_COLUMNS, "labels") or next(iter(declared))
        options = replace(options, labels=name)
    names = target_columns(address, list(others), options)
    if mask is not None and (options.masks or (labelled and not options.targets and names is None)):
        undecoded = {
            split: rows.with_format(None).select_columns([image, mask])
            .cast_column(image, datasets.Image(decode=False)).cast_column(mask, datasets.Image(decode=False))
            for split, rows in splits.items()
        }  # fmt: skip
        origins = {split: _origin(address, split) for split in splits}
        return read_hub_masks(address, undecoded, (image, mask), _find_legend(address), options.ignore, origins, progress)
    objects = find_objects_column(others)
    if options.boxes and objects is None:
        raise VitrailError(
            f"{address} has no column of objects with boxes, only {', '.join(others)}; it is named objects, and has a bbox "
            "and a category of each"
        )
    if objects is not None and (options.boxes or (labelled and names is None and options.allow_boxes)):
        return _build_boxes(datasets, address, splits, image, objects, progress)
    flags = [name for name, feature in others.items() if isinstance(feature, datasets.Value)]
    if any(rows.features[name] != features[name] for rows in splits.values() for name in (image, *(names or ()))):
        raise VitrailError(f"the splits of {address} differ in their classes; save them with the same features")
    max_values = MAX_INDICATOR_VALUES if names is None else None
    columns = {
        name: column
        for name in (flags if names is None else names)
        if (column := _read_column(address, list(splits.values()), name, max_values)) is not None
    }
    ends = np.cumsum([len(rows) for rows in splits.values()])

    def row_name(row: int) -> str:
        number = int(np.searchsorted(ends, row, side="right"))
        split = list(splits)[number]
        return f"row {row - int(ends[number]) + len(splits[split]) + 1}{f' of {split}' if split else ''}"

    targets = TargetColumns(address, list(features), columns, row_name, int(ends[-1]), declared).find(options, labelled)
    in_train = np.repeat([split == "train" for split in splits], [len(rows) for rows in splits.values()])
    undecoded = {split: rows.with_format(None).select_columns([image]) for split, rows in splits.items()}
    built = {
        split: of_split.attach(
            HubDataset(
                rows.cast_column(image, datasets.Image(decode=False)), image, of_split.single_labels, targets.class_names,
                _origin(address, split),
            )
        )
        for (split, rows), end in zip(undecoded.items(), ends, strict=True)
        for of_split in [targets.select(np.arange(end - len(rows), end))]
    }  # fmt: skip
    return SourceSplits(built, (*targets.notes, *missing_positives(targets, in_train, row_name)), targets.columns)


def _build_boxes(
    datasets: Any, address: object, splits: dict[str, Any], image: str, objects: ObjectsColumn, progress: Progress | None
) -> SourceSplits:
    parts, sizes = dict[str, tuple[Dataset, Any]](), dict[str, ndarray]()
    for split, rows in splits.items():
        undecoded = rows.with_format(None).select_columns([image]).cast_column(image, datasets.Image(decode=False))
        labels = np.full(len(rows), -1, np.int64)
        parts[split] = HubDataset(undecoded, image, labels, (), _origin(address, split)), rows.select_columns([objects.name])
        sides = [rows.with_format(None)[side] if side in rows.features else [0] * len(rows) for side in ("height", "width")]
        sizes[split] = np.array([[int(side or 0) for side in column] for column in sides], np.int64).T
    return read_hub_boxes(address, parts, objects, sizes, progress)


def _choose_image_column(address: object, features: Any, requested: str | None, fitting: list[str]) -> str:
    """Return the requested column; else among those of images one of a usual name, or the first; else a usual name."""
    column = None if requested else find_column(address, fitting, None, IMAGE_COLUMNS, "images") or next(iter(fitting), None)
    return column or require_column(address, list(features), requested, IMAGE_COLUMNS, "images")


def _declared_names(feature: Any) -> tuple[str, ...] | None:
    """Return the class names of a column of classes, or of lists of them."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return None if names is None else deduplicate([str(name) for name in names])


def _read_column(address: object, parts: Sequence[Any], name: str, max_values: int | None) -> CodedColumn | None:
    """Read a column of all splits, a batch of rows at a time; None if it has more distinct values."""
    builder = ColumnBuilder(max_values)
    for rows in parts:
        values = rows.with_format(None)[name]
        for start in range(0, len(rows), BATCH_ROWS):
            builder.extend(to_cells(address, name, values[start : start + BATCH_ROWS]))
    return builder.build()


def _origin(address: object, split: str) -> str:
    return f"{address} ({split})" if split else str(address)


def _find_legend(address: object) -> Legend | None:
    """Return the classes of masks that a file beside the data names, such as ``id2label.json``."""
    if not str(address).startswith("hf:"):
        return find_legend([Path(str(address))])
    from huggingface_hub import hf_hub_download

    name, _ = _parse_address(str(address))
    with suppress(Exception):  # most datasets have none, and the hub may be out of reach
        return read_legend(Path(hf_hub_download(name, LEGEND_FILE, repo_type="dataset")))
    return None


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
