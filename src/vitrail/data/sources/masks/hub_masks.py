"""Masks in a column of images of a Hugging Face dataset, beside the column of the images themselves. h w of an image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Int16
from numpy import ndarray

from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset, LeftOutFile, Progress, SourceSplits, select_images
from vitrail.data.sources.masks.legend import Legend
from vitrail.data.sources.masks.mask_classes import MaskClasses, find_classes
from vitrail.data.sources.masks.mask_file import as_its_image, decode_mask, naming_mask
from vitrail.data.sources.masks.scan_values import scan_values
from vitrail.data.sources.parquet import image_bytes_of_cell
from vitrail.data.sources.table_columns import find_column

MASK_COLUMNS = (
    "mask", "masks", "annotation", "annotations", "segmentation_mask", "segmentation", "semantic_segmentation", "semantic_mask",
    "segmentation_map", "seg_mask", "seg", "gt", "ground_truth", "label_map", "label", "labels", "target",
)  # fmt: skip
BATCH_ROWS = 256  # rows that are looked at together


@dataclass(frozen=True, eq=False)
class HubMaskDataset(Dataset):
    """Images and their masks in two columns of a dataset that the library keeps memory-mapped."""

    rows: Any  # with the two columns, undecoded
    column: str
    mask_column: str
    classes: MaskClasses
    origin: str

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.classes.names

    @property
    def labels(self) -> ndarray:
        return np.full(len(self.rows), -1, np.int64)

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.classes.names

    @property
    def has_mask_targets(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self, index: int) -> str:
        return f"row {index + 1} of {self.origin}"

    def read(self, index: int) -> bytes:
        return image_bytes_of_cell(self.rows[index][self.column], Path(), self.describe(index))

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        cells = self.rows[index]
        name = f"in the column {self.mask_column} of {self.describe(index)}"
        with naming_mask("mask", name):
            mask = self.classes.encode(decode_mask(image_bytes_of_cell(cells[self.mask_column], Path(), name)))
            return as_its_image(mask, image_bytes_of_cell(cells[self.column], Path(), self.describe(index)))

    def content_key(self) -> bytes:
        return str(self.rows._fingerprint).encode() + self.classes.key()

    def cache_key(self) -> bytes:
        return self.content_key()


def find_mask_column(address: object, image_columns: Sequence[str]) -> str | None:
    """Return the column of masks among those of images, of which one is that of the images."""
    found = find_column(address, image_columns, None, MASK_COLUMNS, "masks")
    return found if len(image_columns) > 1 else None


def read_hub_masks(
    address: object,
    splits: Mapping[str, Any],
    columns: tuple[str, str],
    legend: Legend | None,
    ignore: Sequence[str],
    origins: Mapping[str, str],
    progress: Progress | None = None,
) -> SourceSplits:
    """Return the splits of undecoded rows as datasets of masks; ``columns`` are those of the images and of the masks."""
    image, mask = columns
    with_mask = {split: _rows_with(rows, mask) for split, rows in splits.items()}
    parts = [splits[split].select(indices) for split, indices in with_mask.items()]
    ends = np.cumsum([len(part) for part in parts])

    def read(index: int) -> bytes:
        number = int(np.searchsorted(ends, index, side="right"))
        part = parts[number]
        return image_bytes_of_cell(part[index - int(ends[number]) + len(part)][mask], Path(), f"row {index + 1}")

    def key(indices: ndarray) -> bytes:
        return repr(([str(part._fingerprint) for part in parts], mask)).encode() + indices.tobytes()

    scan = scan_values(read, int(ends[-1]), key, progress)
    classes, notes = find_classes(str(address), scan, legend, ignore)
    built = {
        split: select_images(HubMaskDataset(rows, image, mask, classes, origins[split]), with_mask[split])
        for split, rows in splits.items()
    }
    left_out = [
        LeftOutFile(f"row {row + 1} of {origins[split]}", "has no mask", split)
        for split, rows in splits.items()
        for row in np.setdiff1d(np.arange(len(rows)), with_mask[split]).tolist()
    ]
    if left_out:
        notes = (*notes, f"{len(left_out):,} rows have no mask and are left out, the first {left_out[0].location}")
    note = f"the column {mask} has the masks of the images in the column {image}"
    return SourceSplits(built, (note, *notes), Columns(masks=True, ignore=tuple(ignore)), tuple(left_out))


def _rows_with(rows: Any, column: str) -> Int[ndarray, " n"]:
    """Return the rows that have something in this column, looked at without reading it."""
    present = []
    for batch in rows.select_columns([column]).with_format("arrow").iter(batch_size=BATCH_ROWS):
        cells = batch.column(0)
        present.append(~np.asarray(cells.is_null().to_numpy(zero_copy_only=False), bool))
    return np.flatnonzero(np.concatenate(present)) if present else np.zeros(0, np.int64)
