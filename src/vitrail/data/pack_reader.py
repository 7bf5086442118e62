"""Pack: a dataset in one memory-mapped file, decoded and resized once, then read without decoding.

The file is a safetensors file, so any tool can read it: for every split ``labels`` and either ``pixels`` (n h w c, if all have
one size) or ``bytes`` with ``starts`` and ``shapes``, or ``files`` (the original JPEGs) with ``starts``. Its metadata has the
class names, the provenance of the images and a SHA-256 of header and data. Several labels per image are in ``members``, the
classes of one image after the other, and ``ends``, where those of each image end; numbers to predict in ``numbers`` (n m).
Masks are in ``masks``: for each image a PNG of classes and one of objects (``stored_masks.py``), which may be empty, one after
the other from ``mask_starts`` on. Boxes are in ``boxes`` (m 4: left, top, right, bottom in pixels), those of each image from
``box_starts`` on, with ``box_labels``, ``box_crowd`` and ``box_areas``.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.band_files import MAX_BANDS
from vitrail.data.sources.content_keys import array_key, sampled_array_key
from vitrail.data.sources.dataset import ArrayDataset, Dataset, Progress, with_label_sets, with_numbers
from vitrail.data.sources.label_sets import LabelSets
from vitrail.data.sources.stored_boxes import BoxTable, with_stored_boxes
from vitrail.data.sources.stored_masks import with_stored_masks
from vitrail.errors import VitrailError

FORMAT, VERSION = "vitrail-pack", "1"
MAX_HEADER_BYTES = 2**26
DTYPES: dict[str, Any] = {  # of pixels and bands, and of targets and offsets
    "U8": np.dtype("u1"), "I8": np.dtype("i1"), "U16": np.dtype("<u2"), "I16": np.dtype("<i2"), "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"), "F32": np.dtype("<f4"), "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class PackedDataset(Dataset):
    """Images of many sizes in one buffer: decoded pixels with their shapes, or the original files."""

    buffer: ndarray
    starts: ndarray  # n + 1
    shapes: ndarray | None  # n 3; None: still encoded
    labels: ndarray
    class_names: tuple[str, ...]
    origin: str

    def describe(self, index: int) -> str:
        return f"image {index} of {self.origin}"

    def read(self, index: int) -> bytes | ndarray:
        item = self.buffer[self.starts[index] : self.starts[index + 1]]
        return item.tobytes() if self.shapes is None else item.reshape(self.shapes[index])

    def sizes(self, indices: ndarray) -> ndarray | None:
        return None if self.shapes is None else self.shapes[indices, :2]

    def content_key(self) -> bytes:
        return sampled_array_key(self.buffer) + self.starts.tobytes()

    def cache_key(self) -> bytes:
        return array_key(self.buffer) + self.starts.tobytes()


@dataclass(frozen=True, eq=False)
class PackedMasks:
    """The PNGs of masks in one buffer, of each image that of its classes and that of its objects."""

    buffer: ndarray
    starts: ndarray  # 2 n + 1

    def read_mask(self, index: int) -> bytes:
        return self.buffer[self.starts[2 * index] : self.starts[2 * index + 1]].tobytes()

    def read_objects(self, index: int) -> bytes | None:
        return self.buffer[self.starts[2 * index + 1] : self.starts[2 * index + 2]].tobytes() or None

    def key(self) -> bytes:
        return sampled_array_key(self.buffer) + self.starts.tobytes()


def is_pack(path: Path) -> bool:
    """Tell a pack by its first bytes, so that it can have any name."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return 0 < length <= MAX_HEADER_BYTES and f'"{FORMAT}"'.encode() in file.read(200)
    except OSError:
        return False


def read_pack(path: Path, progress: Progress | None = None) -> tuple[dict[str, Dataset], dict[str, Any]]:
    """Return the memory-mapped splits and the provenance. The checksum is verified the first time on a machine."""
    length = path.stat().st_size
    try:
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes)) if header_bytes <= min(MAX_HEADER_BYTES, length) else {}
        metadata = header.pop("__metadata__")
        if metadata["format"] != FORMAT:
            raise ValueError(metadata["format"])
        if metadata["version"] != VERSION:
            raise VitrailError(f"{path} is a pack of version {metadata['version']}, not {VERSION}; rebuild the pack")
        class_names = tuple(str(name) for name in json.loads(metadata["names"]))
        provenance = json.loads(metadata["provenance"])
        target_names = tuple(str(name) for name in json.loads(metadata.get("targets", "[]")))
        masks, boxes = (json.loads(metadata.get(name, "null")) for name in ("masks", "boxes"))
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except VitrailError:
        raise
    except Exception as error:
        raise VitrailError(f"{path} is not a readable pack ({type(error).__name__}); rebuild it") from None
    if length != 8 + header_bytes + end:
        raise VitrailError(
            f"{path} is truncated or too long: {length:,} bytes instead of {8 + header_bytes + end:,}; rebuild it"
        )
    _verify(path, 8 + header_bytes, metadata, header, progress)
    try:
        # "c" (copy on write): torch wants writable memory; nothing is ever written to the file
        mapped = np.memmap(path, np.uint8, "c", offset=8 + header_bytes, shape=(end,)) if end else np.zeros(0, np.uint8)
        data = np.asarray(mapped)  # a plain array over the same memory: slicing a memmap is slow
        splits = dict.fromkeys(name.rsplit(".", 1)[0] for name in header)
        opened = {split: _open_split(data, header, split, class_names, f"{path} ({split})") for split in splits}
        opened = {split: _with_targets(dataset, data, header, split, target_names) for split, dataset in opened.items()}
        opened = {split: _with_masks(dataset, data, header, split, masks) for split, dataset in opened.items()}
        return {split: _with_boxes(dataset, data, header, split, boxes) for split, dataset in opened.items()}, provenance
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise VitrailError(f"{path} is inconsistent ({error}); rebuild it") from None


def _verify(path: Path, data_start: int, metadata: dict[str, Any], header: dict[str, Any], progress: Progress | None) -> None:
    status, expected = path.stat(), metadata.pop("sha256", None)
    stamp = np.array([status.st_size, status.st_mtime_ns], np.int64)
    key = f"{path.resolve()} {pack_checksum('', metadata, header)} {expected}"
    cached = cache.load_cached("pack", key)
    if cached is not None and np.array_equal(cached.get("stamp", ()), stamp):
        return
    digest, done = hashlib.sha256(), data_start
    with open(path, "rb") as file:
        file.seek(data_start)
        while chunk := file.read(2**24):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress("verifying checksum", done, status.st_size)
    if pack_checksum(digest.hexdigest(), metadata, header) != expected:
        raise VitrailError(f"{path} is damaged: its checksum does not match; rebuild it")
    cache.store_cached("pack", key, {"stamp": stamp})


def pack_checksum(data: str, metadata: dict[str, Any], header: dict[str, Any]) -> str:
    """Compute the checksum of a pack, from the hash of its data and everything else in the header."""
    return hashlib.sha256(json.dumps([data, metadata, header], sort_keys=True).encode()).hexdigest()


def _read_array(data: ndarray, header: dict[str, Any], name: str) -> ndarray:
    entry = header[name]
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data):
        raise ValueError(f"{name} lies outside the file")
    return data[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])


def _with_targets(
    dataset: Dataset, data: ndarray, header: dict[str, Any], split: str, target_names: tuple[str, ...]
) -> Dataset:
    """Return the dataset with its label sets or numbers, if the pack has any."""
    if f"{split}.numbers" in header:
        numbers = _read_array(data, header, f"{split}.numbers").astype(np.float64)
        if not target_names or numbers.shape != (len(dataset), len(target_names)):
            raise ValueError(f"{split} has numbers of shape {numbers.shape} for {len(dataset)} images")
        return with_numbers(dataset, numbers, target_names)
    if f"{split}.members" not in header:
        return dataset
    members, ends = (_read_array(data, header, f"{split}.{name}").astype(np.int64) for name in ("members", "ends"))
    is_consistent = members.ndim == 1 and ends.shape == (len(dataset),) and (np.diff(ends, prepend=0) >= 0).all()
    if not is_consistent or (ends[-1] if len(ends) else 0) != len(members):
        raise ValueError(f"{split} has inconsistent label sets")
    if len(members) and not 0 <= members.min() <= members.max() < len(dataset.class_names):
        raise ValueError(f"{split} has labels without a class name")
    label_sets = LabelSets.from_members(members, np.diff(ends, prepend=0), len(dataset.class_names))
    return with_label_sets(dataset, label_sets, dataset.class_names)


def _with_masks(dataset: Dataset, data: ndarray, header: dict[str, Any], split: str, masks: dict[str, Any] | None) -> Dataset:
    """Return the dataset with its masks, if the pack has any."""
    if masks is None:
        return dataset
    buffer, starts = _read_array(data, header, f"{split}.masks"), _read_array(data, header, f"{split}.mask_starts")
    starts = starts.astype(np.int64)
    if len(starts) != 2 * len(dataset) + 1 or starts[0] != 0 or starts[-1] > len(buffer) or (np.diff(starts) < 0).any():
        raise ValueError(f"{split} has inconsistent masks")
    names = tuple(str(name) for name in masks["names"])
    return with_stored_masks(dataset, PackedMasks(buffer, starts), names, bool(masks["are_targets"]))


def _with_boxes(dataset: Dataset, data: ndarray, header: dict[str, Any], split: str, boxes: dict[str, Any] | None) -> Dataset:
    """Return the dataset with its boxes, if the pack has any."""
    if boxes is None:
        return dataset

    def array(name: str) -> ndarray:
        return _read_array(data, header, f"{split}.{name}")

    starts, labels = array("box_starts").astype(np.int64), array("box_labels").astype(np.int64)
    table = BoxTable(starts, array("boxes"), labels, array("box_crowd") > 0, array("box_areas"))
    names, count = tuple(str(name) for name in boxes["names"]), len(labels)
    if table.boxes.shape != (count, 4) or {table.crowd.shape, table.areas.shape, labels.shape} != {(count,)}:
        raise ValueError(f"{split} has boxes of shape {table.boxes.shape} for {count} labels")
    if len(starts) != len(dataset) + 1 or starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 0).any():
        raise ValueError(f"{split} has inconsistent boxes")
    if count and not 0 <= labels.min() <= labels.max() < len(names):
        raise ValueError(f"{split} has boxes without a class name")
    return with_stored_boxes(dataset, table, names, bool(boxes["are_targets"]))


def _open_split(data: ndarray, header: dict[str, Any], split: str, class_names: tuple[str, ...], origin: str) -> Dataset:
    def array(name: str) -> ndarray:
        return _read_array(data, header, f"{split}.{name}")

    if split not in ("train", "validation", "test"):
        raise ValueError(f"{split} is not a split")
    labels = array("labels").astype(np.int64)
    if labels.ndim != 1:
        raise ValueError(f"{split} has labels of shape {labels.shape}")
    if len(labels) and not -1 <= labels.min() <= labels.max() < max(len(class_names), 1):
        raise ValueError(f"{split} has labels without a class name")
    if f"{split}.pixels" in header:
        images = array("pixels")
        if images.ndim != 4 or len(images) != len(labels) or not 1 <= images.shape[3] <= MAX_BANDS:
            raise ValueError(f"{split} has pixels of shape {images.shape} for {len(labels)} labels")
        return ArrayDataset(images, labels, class_names, origin)
    key = "bytes" if f"{split}.bytes" in header else "files"
    buffer, starts = array(key), array("starts").astype(np.int64)
    shapes = array("shapes").astype(np.int64) if key == "bytes" else None
    if len(starts) != len(labels) + 1 or starts[0] != 0 or starts[-1] != len(buffer) or (np.diff(starts) < 0).any():
        raise ValueError(f"{split} has inconsistent starts")
    if shapes is not None:
        consistent = shapes.shape == (len(labels), 3) and (shapes > 0).all() and (shapes[:, 2] <= MAX_BANDS).all()
        if not consistent or (shapes.prod(1) != np.diff(starts)).any():
            raise ValueError(f"{split} has inconsistent shapes")
    return PackedDataset(buffer, starts, shapes, labels, class_names, origin)
