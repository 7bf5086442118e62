"""Write any dataset as a pack: every image decoded and resized once, in threads. ``pack_reader.py`` describes the format."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
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
from vitrail.data.sources.objects import NO_OBJECTS, Objects
from vitrail.data.sources.stored_boxes import BoxTable, resize_objects, upright_size
from vitrail.data.sources.stored_masks import encode_masks
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


class _PackData:
    """The data of a pack while it is written: its hash, and where each array is."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.end = file, hashlib.sha256(), 0
        self.entries: dict[str, dict[str, Any]] = {}

    def write(self, content: bytes) -> None:
        self.file.write(content)
        self.digest.update(content)
        self.end += len(content)

    def add_entry(self, name: str, begin: int, dtype: str, shape: list[int]) -> None:
        """Name what has been written since ``begin``."""
        self.entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, self.end]}

    def append(self, name: str, content: bytes, dtype: str, shape: list[int]) -> None:
        begin = self.end
        self.write(content)
        self.add_entry(name, begin, dtype, shape)

    def append_numbers(self, name: str, numbers: list[Any], shape: list[int]) -> None:
        self.append(name, np.array(numbers, "<i8").tobytes(), "I64", shape)

    def pad(self, split: str) -> None:
        """Align the int64 arrays that follow."""
        self.append(f"{split}.pad", bytes(-self.end % 8), "U8", [-self.end % 8])


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
    has_masks = all(dataset.mask_names for dataset in splits.values())
    if has_masks:
        metadata["masks"] = json.dumps({"names": first.mask_names, "are_targets": first.has_mask_targets})
    has_boxes = all(dataset.box_names for dataset in splits.values())
    if has_boxes:
        metadata["boxes"] = json.dumps({"names": first.box_names, "are_targets": first.has_box_targets})
    header_bytes = len(json.dumps({"__metadata__": metadata})) + 200
    header_bytes += (800 + 600 * has_masks + 600 * has_boxes) * max(len(splits), 1)
    header_bytes += -header_bytes % 4096
    file.write(bytes(8 + header_bytes))
    data = _PackData(file)
    bands = next((found for part in splits.values() if (found := find_bands(part)) is not None), None)
    total, done = sum(map(len, splits.values())), 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress and (done % CHUNK == 0 or done == total):
            progress("packing", done, total)

    for split, dataset in splits.items():
        encoder = _Encoder(dataset, bands, size, store, has_masks, has_boxes)
        report.counts[split] = _write_split(data, report, split, encoder, workers, tick)
    report.sha256 = pack_checksum(data.digest.hexdigest(), metadata, data.entries)
    header = json.dumps({"__metadata__": {**metadata, "sha256": report.sha256}, **data.entries}).encode()
    assert len(header) <= header_bytes, "the space reserved for the header is too small"
    file.seek(0)
    file.write(header_bytes.to_bytes(8, "little") + header.ljust(header_bytes))


def _write_split(
    data: _PackData, report: PackReport, split: str, encoder: "_Encoder", workers: int | None, tick: Callable[[], None]
) -> int:
    """Write the images of a split, then what belongs to them; return their number."""
    store, dtype = encoder.store, encoder.dtype
    packed, shapes, starts, begin = list[int](), list[tuple[int, ...]](), [0], data.end
    boxes = list[Objects]()
    with _MaskSpool(report.path.parent) as masks:
        for index, item in encoder.encode_all(workers):
            tick()
            if isinstance(item, str):
                report.skipped.append(item)
                continue
            content = item.image if isinstance(item.image, bytes) else np.ascontiguousarray(item.image).tobytes()
            data.write(content)
            masks.add(item)
            boxes.append(item.boxes)
            starts.append(starts[-1] + len(content) // dtype.itemsize)
            packed.append(index)
            shapes.append(item.image.shape if isinstance(item.image, ndarray) else (0, 0, 0))
        uniform = store == "pixels" and len(set(shapes)) <= 1
        array_shape = [len(packed), *(shapes[0] if shapes else (1, 1, 3))] if uniform else [starts[-1]]
        name = "pixels" if uniform else "files" if store == "jpeg" else "bytes"
        data.add_entry(f"{split}.{name}", begin, next(name for name, known in DTYPES.items() if known == dtype), array_shape)
        data.pad(split)
        for target, array in _target_arrays(select_images(encoder.dataset, np.array(packed, np.int64))).items():
            data.append(f"{split}.{target}", array.tobytes(), "F64" if array.dtype.kind == "f" else "I64", list(array.shape))
        if not uniform:
            data.append_numbers(f"{split}.starts", starts, [len(starts)])
        if name == "bytes":
            data.append_numbers(f"{split}.shapes", shapes, [len(shapes), 3])
        if encoder.has_boxes:
            for column, array in _box_arrays(BoxTable.from_objects(boxes)).items():
                data.append(
                    f"{split}.{column}", array.tobytes(), "F64" if array.dtype.kind == "f" else "I64", list(array.shape)
                )
        if encoder.has_masks:
            masks.append_to(data, split)
    return len(packed)


@dataclass(frozen=True)
class _Encoded:
    """An image as it will be stored, the PNGs of its mask and of its objects, and their boxes."""

    image: bytes | ndarray
    mask: bytes | None = None
    objects: bytes | None = None
    boxes: Objects = NO_OBJECTS


class _MaskSpool:
    """PNGs of masks on disk, until the images are written; ``masks`` of a pack are the mask and the objects of an image in
    turns, and those of an image without objects are empty."""

    def __init__(self, folder: Path) -> None:
        self.file, self.starts = tempfile.TemporaryFile(dir=folder), [0]  # noqa: SIM115

    def __enter__(self) -> "_MaskSpool":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, item: _Encoded) -> None:
        for content in (item.mask or b"", item.objects or b""):
            self.file.write(content)
            self.starts.append(self.starts[-1] + len(content))

    def append_to(self, data: _PackData, split: str) -> None:
        begin = data.end
        self.file.seek(0)
        while content := self.file.read(2**20):
            data.write(content)
        data.write(bytes(-data.end % 8))  # aligns the array that follows
        data.add_entry(f"{split}.masks", begin, "U8", [data.end - begin])
        data.append_numbers(f"{split}.mask_starts", self.starts, [len(self.starts)])


def _target_arrays(dataset: Dataset) -> dict[str, ndarray]:
    """Return the arrays of the targets: labels, label sets as ``members`` and ``ends``, or numbers."""
    arrays = {"labels": dataset.labels.astype("<i8")}
    if (label_sets := dataset.label_sets) is not None:
        arrays |= {"members": label_sets.members.astype("<i8"), "ends": label_sets.ends.astype("<i8")}
    elif dataset.target_names:
        arrays["numbers"] = np.asarray(dataset.targets, "<f8").reshape(len(dataset), len(dataset.target_names))
    return arrays


def _box_arrays(table: BoxTable) -> dict[str, ndarray]:
    """Return the arrays of boxes: ``boxes`` (m 4), ``box_starts`` of the images, and what each box has."""
    return {name if name == "boxes" else f"box_{name}": array.astype("<f8" if array.dtype.kind == "f" else "<i8")
            for name, array in vars(table).items()}  # fmt: skip


@dataclass(frozen=True)
class _Encoder:
    """How the images of a split are stored."""

    dataset: Dataset
    bands: BandFormat | None
    size: int | tuple[int, int] | None
    store: str
    has_masks: bool
    has_boxes: bool

    @property
    def dtype(self) -> Any:
        return np.dtype(np.uint8 if self.bands is None or self.store == "jpeg" else self.bands.dtype)

    def encode_all(self, workers: int | None) -> Iterator[tuple[int, _Encoded | str]]:
        """Yield every image as it will be stored, or a sentence that says why it cannot be."""
        with ThreadPoolExecutor(workers or available_cores()) as pool:
            for start in range(0, len(self.dataset), CHUNK):
                yield from pool.map(self._encode_or_explain, range(start, min(start + CHUNK, len(self.dataset))))

    def _encode_or_explain(self, index: int) -> tuple[int, _Encoded | str]:
        try:
            return index, self._encode(index)
        except (OSError, VitrailError) as error:
            return index, f"{self.dataset.describe(index)} {str(error).removeprefix('the image ')}"

    def _encode(self, index: int) -> _Encoded:
        content = self.dataset.read(index)
        image, crops = _encode_image(content, self.bands, self.size, self.store), isinstance(self.size, tuple)
        size = None if isinstance(image, bytes) else (image.shape[0], image.shape[1])
        mask, objects = encode_masks(self.dataset, index, size, crops) if self.has_masks else (None, None)
        boxes = self.dataset.objects(index) if self.has_boxes else NO_OBJECTS
        if size is not None and self.size is not None:
            boxes = resize_objects(boxes, upright_size(content), size, crops)
        return _Encoded(image, mask, objects, boxes)


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
