"""Write any dataset as a pack: every image decoded and resized once, in threads. ``pack_reader.py`` describes the format."""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.band_files import BandFormat, array_format
from vitrail.data.band_statistics import find_bands
from vitrail.data.decode import decode, decode_bands, to_pil
from vitrail.data.pack_reader import DTYPES, FORMAT, VERSION, pack_checksum
from vitrail.data.sources.dataset import Dataset, Progress, select_images
from vitrail.errors import VitrailError
from vitrail.io import atomic_path
from vitrail.system import available_cores

CHUNK = 64  # images decoded at a time


@dataclass
class PackReport:
    """Summary of a written pack."""

    path: Path
    counts: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # images that could not be used, with the reason
    bytes: int = 0
    sha256: str = ""


def write_pack(
    path: Path,
    splits: dict[str, Dataset],
    *,
    size: int | tuple[int, int] | None = None,
    store: str = "pixels",
    provenance: dict[str, Any] | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> PackReport:
    """Write a pack, whole or not at all. ``size``: maximum length of the short side, or one height and width for all (resized
    to cover, centre-cropped), or None: as is. ``store``: ``pixels``, or ``jpeg`` for the files' bytes."""
    if store not in ("pixels", "jpeg"):
        raise VitrailError(f"store must be 'pixels' or 'jpeg', got {store!r}")
    if size is not None and np.min(size) < 1:
        raise VitrailError(f"size must be at least 1, got {size}; try size=256")
    if path.exists() and not path.is_file():
        raise VitrailError(f"{path} exists and is not a file; name another")
    if store == "jpeg" and any(len(part) and isinstance(part.read(0), ndarray) for part in splits.values()):
        raise VitrailError("store='jpeg' needs image files, and these images have none; try store='pixels'")
    report = PackReport(path)
    with atomic_path(path) as temporary:
        with open(temporary, "wb") as file:
            _write(file, report, splits, size, store, provenance or {}, progress, workers)
        if not sum(report.counts.values()):
            first = f"; the first one: {report.skipped[0]}" if report.skipped else ""
            raise VitrailError(f"nothing could be packed: no image can be used{first}")
        report.bytes = temporary.stat().st_size
    return report


def _write(
    file: BinaryIO,
    report: PackReport,
    splits: dict[str, Dataset],
    size: int | tuple[int, int] | None,
    store: str,
    provenance: dict[str, Any],
    progress: Progress | None,
    workers: int | None,
) -> None:
    first = next(iter(splits.values()))
    metadata = {
        "format": FORMAT, "version": VERSION, "names": json.dumps(first.class_names), "provenance": json.dumps(provenance),
    }  # fmt: skip
    if first.target_names:
        metadata["targets"] = json.dumps(first.target_names)
    header_bytes = len(json.dumps({"__metadata__": metadata})) + 800 * max(len(splits), 1) + 200
    header_bytes += -header_bytes % 4096
    file.write(bytes(8 + header_bytes))
    digest, entries, end = hashlib.sha256(), {}, 0

    def append(name: str, content: bytes, dtype: str, shape: list[int]) -> None:
        nonlocal end
        file.write(content)
        digest.update(content)
        begin, end = end, end + len(content)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    bands = next((found for part in splits.values() if (found := find_bands(part)) is not None), None)
    dtype = np.dtype(np.uint8 if bands is None or store == "jpeg" else bands.dtype)
    dtype_name = next(name for name, known in DTYPES.items() if known == dtype)
    total, done = sum(map(len, splits.values())), 0
    for split, dataset in splits.items():
        packed, shapes, starts, begin = [], [], [0], end
        for index, item in _encode_images(dataset, bands, size, store, workers):
            done += 1
            if progress and (done % CHUNK == 0 or done == total):
                progress("packing", done, total)
            if isinstance(item, str):
                report.skipped.append(item)
                continue
            content = item if isinstance(item, bytes) else np.ascontiguousarray(item).tobytes()
            append("", content, "U8", [])
            starts.append(starts[-1] + len(content) // dtype.itemsize)
            packed.append(index)
            shapes.append(item.shape if isinstance(item, ndarray) else (0, 0, 0))
        entries.pop("", None)
        report.counts[split] = len(packed)
        uniform = store == "pixels" and len(set(shapes)) <= 1
        array_shape = [len(packed), *(shapes[0] if shapes else (1, 1, 3))] if uniform else [starts[-1]]
        name = "pixels" if uniform else "files" if store == "jpeg" else "bytes"
        entries[f"{split}.{name}"] = {"dtype": dtype_name, "shape": array_shape, "data_offsets": [begin, end]}
        append(f"{split}.pad", bytes(-end % 8), "U8", [-end % 8])  # aligns the int64 arrays that follow
        for target, array in _target_arrays(select_images(dataset, np.array(packed, np.int64))).items():
            append(f"{split}.{target}", array.tobytes(), "F64" if array.dtype.kind == "f" else "I64", list(array.shape))
        if not uniform:
            append(f"{split}.starts", np.array(starts, "<i8").tobytes(), "I64", [len(starts)])
        if name == "bytes":
            append(f"{split}.shapes", np.array(shapes, "<i8").tobytes(), "I64", [len(shapes), 3])
    report.sha256 = pack_checksum(digest.hexdigest(), metadata, entries)
    header = json.dumps({"__metadata__": {**metadata, "sha256": report.sha256}, **entries}).encode()
    assert len(header) <= header_bytes, "the space reserved for the header is too small"
    file.seek(0)
    file.write(header_bytes.to_bytes(8, "little") + header.ljust(header_bytes))


def _target_arrays(dataset: Dataset) -> dict[str, ndarray]:
    """Return the arrays of the targets: labels, label sets as ``members`` and ``ends``, or numbers."""
    arrays = {"labels": dataset.labels.astype("<i8")}
    if (label_sets := dataset.label_sets) is not None:
        arrays |= {"members": label_sets.members.astype("<i8"), "ends": label_sets.ends.astype("<i8")}
    elif dataset.target_names:
        arrays["numbers"] = np.asarray(dataset.targets, "<f8").reshape(len(dataset), len(dataset.target_names))
    return arrays


def _encode_images(
    dataset: Dataset, bands: BandFormat | None, size: int | tuple[int, int] | None, store: str, workers: int | None
) -> Iterator[tuple[int, bytes | ndarray | str]]:
    """Yield every image as it will be stored, or a sentence that says why it cannot be."""

    def encode(index: int) -> tuple[int, bytes | ndarray | str]:
        try:
            return index, _encode_image(dataset.read(index), bands, size, store)
        except (OSError, VitrailError) as error:
            return index, f"{dataset.describe(index)} {str(error).removeprefix('the image ')}"

    with ThreadPoolExecutor(workers or available_cores()) as pool:
        for start in range(0, len(dataset), CHUNK):
            yield from pool.map(encode, range(start, min(start + CHUNK, len(dataset))))


def _encode_image(
    content: bytes | ndarray, bands: BandFormat | None, size: int | tuple[int, int] | None, store: str
) -> bytes | ndarray:
    if store == "jpeg":
        if isinstance(content, ndarray):
            raise VitrailError("has no file whose bytes could be stored; store its pixels")
        decode_bands(content)  # only decodable files are stored
        return content
    if bands is not None:
        return _resize_bands(content, bands, size)
    if isinstance(content, ndarray):
        return content if size is None else _resize(to_pil(content), size, content.shape[2])
    return _resize(decode(content, min_size=(size, size) if isinstance(size, int) else size), size, 3)


def _resize_bands(content: bytes | ndarray, bands: BandFormat, size: int | tuple[int, int] | None) -> ndarray:
    """Return the bands in their own data type; resized integers are rounded."""
    image = decode_bands(content)
    if (found := array_format(image)) != bands:
        raise VitrailError(f"has {found or '8-bit RGB'}, and the pack stores {bands}")
    if size is None:
        return image
    planes = [_resize(Image.fromarray(image[..., band].astype(np.float32)), size, 1) for band in range(image.shape[2])]
    resized = np.concatenate(planes, axis=2)
    if image.dtype.kind == "f":
        return resized
    limits = np.iinfo(image.dtype)
    return np.rint(resized).clip(limits.min, limits.max).astype(image.dtype)


def _resize(image: Image.Image, size: int | tuple[int, int] | None, channels: int) -> ndarray:
    if isinstance(size, int):
        scale = size / min(image.size)
        if scale < 1:
            new_size = max(size, round(image.width * scale)), max(size, round(image.height * scale))
            image = image.resize(new_size, Image.Resampling.BICUBIC)
    elif size is not None and size != (image.height, image.width):
        image = _resize_to_cover(image, size)
    return np.asarray(image).reshape(image.height, image.width, channels)


def _resize_to_cover(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize the largest centre crop of this aspect ratio to this size."""
    height, width = size
    crop_width = min(image.width, image.height * width / height)
    crop_height = min(image.height, image.width * height / width)
    left, top = (image.width - crop_width) / 2, (image.height - crop_height) / 2
    return image.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, left + crop_width, top + crop_height))
