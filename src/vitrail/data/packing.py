"""Write any dataset as a pack: every image decoded and resized once, in threads. ``pack_reader.py`` describes the format."""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.decode import as_picture, decode
from vitrail.data.pack import FORMAT, VERSION, seal
from vitrail.data.sources.source import Progress, Source
from vitrail.data.threads import cores
from vitrail.errors import VitrailError

CHUNK = 64  # images decoded at a time


@dataclass
class Packed:
    """Summary of a written pack."""

    path: Path
    counts: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # images that could not be used, with the reason
    bytes: int = 0
    sha256: str = ""


def write_pack(
    path: Path,
    splits: dict[str, Source],
    *,
    size: int | tuple[int, int] | None = None,
    keep: str = "pixels",
    provenance: dict[str, Any] | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Packed:
    """Write a pack, whole or not at all. ``size``: maximum length of the short side, or one height and width for all (resized
    to cover, centre-cropped), or None: as is. ``store``: ``pixels``, or ``jpeg`` for the files' bytes."""
    if keep not in ("pixels", "jpeg"):
        raise VitrailError(f"store must be 'pixels' or 'jpeg', got {keep!r}")
    if size is not None and np.min(size) < 1:
        raise VitrailError(f"size must be at least 1, got {size}; try size=256")
    if path.exists() and not path.is_file():
        raise VitrailError(f"{path} exists and is not a file; name another")
    if keep == "jpeg" and any(len(part) and isinstance(part.content(0), ndarray) for part in splits.values()):
        raise VitrailError("store='jpeg' needs image files, and these images have none; try store='pixels'")
    half = path.with_name(f"{path.name}.{os.getpid()}.part")
    made = Packed(path)
    try:
        with open(half, "wb") as file:
            _write(file, made, splits, size, keep, provenance or {}, progress, workers)
            file.flush()
            os.fsync(file.fileno())
        if not sum(made.counts.values()):
            first = f"; the first one: {made.skipped[0]}" if made.skipped else ""
            raise VitrailError(f"nothing could be packed: no image can be used{first}")
        made.bytes = half.stat().st_size
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return made


def _write(
    file: BinaryIO,
    made: Packed,
    splits: dict[str, Source],
    size: int | tuple[int, int] | None,
    keep: str,
    provenance: dict[str, Any],
    progress: Progress | None,
    workers: int | None,
) -> None:
    names = next(iter(splits.values())).names
    metadata = {"format": FORMAT, "version": VERSION, "names": json.dumps(names), "provenance": json.dumps(provenance)}
    room = len(json.dumps({"__metadata__": metadata})) + 600 * max(len(splits), 1) + 200
    room += -room % 4096
    file.write(bytes(8 + room))
    digest, entries, end = hashlib.sha256(), {}, 0

    def put(name: str, content: bytes, kind: str, shape: list[int]) -> None:
        nonlocal end
        file.write(content)
        digest.update(content)
        begin, end = end, end + len(content)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}

    total, done = sum(map(len, splits.values())), 0
    for split, source in splits.items():
        labels, shapes, starts, begin = [], [], [0], end
        for index, item in _items(source, size, keep, workers):
            done += 1
            if progress and (done % CHUNK == 0 or done == total):
                progress("packing", done, total)
            if isinstance(item, str):
                made.skipped.append(item)
                continue
            content = item if isinstance(item, bytes) else np.ascontiguousarray(item).tobytes()
            put("", content, "U8", [])
            starts.append(starts[-1] + len(content))
            labels.append(int(source.labels[index]))
            shapes.append(item.shape if isinstance(item, ndarray) else (0, 0, 0))
        entries.pop("", None)
        made.counts[split] = len(labels)
        uniform = keep == "pixels" and len(set(shapes)) <= 1
        whole = [len(labels), *(shapes[0] if shapes else (1, 1, 3))] if uniform else [starts[-1]]
        name = "pixels" if uniform else "files" if keep == "jpeg" else "bytes"
        entries[f"{split}.{name}"] = {"dtype": "U8", "shape": whole, "data_offsets": [begin, end]}
        put(f"{split}.pad", bytes(-end % 8), "U8", [-end % 8])  # aligns the int64 arrays that follow
        put(f"{split}.labels", np.array(labels, "<i8").tobytes(), "I64", [len(labels)])
        if not uniform:
            put(f"{split}.starts", np.array(starts, "<i8").tobytes(), "I64", [len(starts)])
        if name == "bytes":
            put(f"{split}.shapes", np.array(shapes, "<i8").tobytes(), "I64", [len(shapes), 3])
    made.sha256 = seal(digest.hexdigest(), metadata, entries)
    header = json.dumps({"__metadata__": {**metadata, "sha256": made.sha256}, **entries}).encode()
    assert len(header) <= room, "the space reserved for the header is too small"
    file.seek(0)
    file.write(room.to_bytes(8, "little") + header.ljust(room))


def _items(
    source: Source, size: int | tuple[int, int] | None, keep: str, workers: int | None
) -> Iterator[tuple[int, bytes | ndarray | str]]:
    """Yield every image as it will be stored, or a sentence that says why it cannot be."""

    def item(index: int) -> tuple[int, bytes | ndarray | str]:
        try:
            return index, _item(source.content(index), size, keep)
        except (OSError, VitrailError) as error:
            return index, f"{source.where(index)} {str(error).removeprefix('the image ')}"

    with ThreadPoolExecutor(workers or cores()) as pool:
        for start in range(0, len(source), CHUNK):
            yield from pool.map(item, range(start, min(start + CHUNK, len(source))))


def _item(content: bytes | ndarray, size: int | tuple[int, int] | None, keep: str) -> bytes | ndarray:
    if keep == "jpeg":
        if isinstance(content, ndarray):
            raise VitrailError("has no file whose bytes could be stored; store its pixels")
        decode(content)  # only decodable files are stored
        return content
    if isinstance(content, ndarray):
        if content.shape[2] not in (1, 3):
            raise VitrailError(f"has {content.shape[2]} channels, and a pack stores 1 or 3")
        return content if size is None else _resized(as_picture(content), size, content.shape[2])
    return _resized(decode(content, least=(size, size) if isinstance(size, int) else size), size, 3)


def _resized(picture: Image.Image, size: int | tuple[int, int] | None, channels: int) -> ndarray:
    if isinstance(size, int):
        shrink = size / min(picture.size)
        if shrink < 1:
            new = max(size, round(picture.width * shrink)), max(size, round(picture.height * shrink))
            picture = picture.resize(new, Image.Resampling.BICUBIC)
    elif size is not None and size != (picture.height, picture.width):
        picture = _covered(picture, size)
    return np.asarray(picture).reshape(picture.height, picture.width, channels)


def _covered(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize the largest centre crop of this aspect ratio to this size."""
    high, wide = size
    part_wide = min(picture.width, picture.height * wide / high)
    part_high = min(picture.height, picture.width * high / wide)
    left, top = (picture.width - part_wide) / 2, (picture.height - part_high) / 2
    return picture.resize((wide, high), Image.Resampling.BICUBIC, box=(left, top, left + part_wide, top + part_high))
