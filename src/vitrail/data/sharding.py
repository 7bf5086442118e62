"""Write any dataset as tar shards that webdataset reads: ``train-000000.tar`` ..., with ``classes.txt`` next to them.

A sample is ``KEY.jpg`` (the file's own bytes, with the extension of its format; pixels become PNG) and ``KEY.cls``, its class
index; the key is its index in the split. Images are shuffled, so that every shard mixes the classes. The same images, size and
seed give the same bytes. The folder appears whole, and an interrupted job is resumed (``resumable_folder.py``).
"""

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy import ndarray

from vitrail.augment.chance import permutation
from vitrail.data.attempt import Attempt, attempt, write_synced
from vitrail.data.decode import as_picture, kind
from vitrail.data.shard import Shard
from vitrail.data.sources.identity import fingerprint
from vitrail.data.sources.shards import CLASSES, MOST_CLASSES, class_names
from vitrail.data.sources.source import TOLERATED, Progress, Source, allowed
from vitrail.data.threads import cores
from vitrail.errors import VitrailError

CHUNK = 64  # images read at a time
ENDINGS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "TIFF": "tiff", "BMP": "bmp", "PPM": "ppm"}
STREAM = 2**32  # in place of an epoch, so that no training epoch has the same order


@dataclass
class Sharded:
    """Summary of the written shards, and the saved progress of an interrupted job."""

    counts: dict[str, int] = field(default_factory=dict)  # images by split
    shards: dict[str, list[int]] = field(default_factory=dict)  # bytes of each shard, by split
    skipped: list[str] = field(default_factory=list)  # images that could not be used, with the reason
    seen: dict[str, int] = field(default_factory=dict)  # images processed by split, skipped ones included
    before: int = 0  # shards written before the job was resumed

    @property
    def bytes(self) -> int:
        return sum(map(sum, self.shards.values()))


def write_shards(
    out: Path,
    splits: dict[str, Source],
    *,
    size: int = 10**9,
    seed: int = 0,
    labelled: bool = True,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Sharded:
    """Write shards of at most ``shard_size`` bytes, unless a single image has more. If not ``labelled`` and some images have no
    label, no labels are written."""
    if size < 1:
        raise VitrailError(f"shard_size must be at least 1 byte, got {size}; try shard_size=10**9")
    labels = _labelled(splits, labelled)
    classes = _classes(next(iter(splits.values())).names) if labels else b""
    job = json.dumps([fingerprint(*splits.values()), list(splits), size, seed, labels])
    with attempt(out, job) as work:
        made = _begun(work)
        most = allowed(TOLERATED, sum(map(len, splits.values())))
        for number, (split, source) in enumerate(splits.items()):
            order = permutation(seed, STREAM + number, len(source))
            _write(work, made, split, source, order, size, labels, most, progress, workers)
        if not sum(made.counts.values()):
            work.give_up()
            first = f"; the first one: {made.skipped[0]}" if made.skipped else ""
            raise VitrailError(f"nothing could be written: no image can be used{first}")
        if classes:
            write_synced(work.folder / CLASSES[0], classes)
        for split, sizes in made.shards.items():
            for number in range(len(sizes)):
                _there(work, split, number).replace(work.folder / f"{split}-{number:06d}.tar")
        work.finish()
    return made


def _labelled(splits: dict[str, Source], needed: bool) -> bool:
    bare = {split: np.flatnonzero(source.labels < 0) for split, source in splits.items()}
    without = sum(map(len, bare.values()))
    if needed and 0 < without < sum(map(len, splits.values())):
        split = next(split for split in bare if len(bare[split]))
        raise VitrailError(
            f"{without:,} images have no label but others have, first {splits[split].where(int(bare[split][0]))}; "
            "label them, or write them all without labels (--unlabelled)"
        )
    return not without


def _classes(names: tuple[str, ...]) -> bytes:
    """Encode the class names, one per line."""
    if len(names) > MOST_CLASSES:
        raise VitrailError(f"shards can have at most {MOST_CLASSES:,} classes, got {len(names):,}; use fewer")
    wrong = next((name for name in names if not _is_line(name)), None)
    if wrong is not None:
        raise VitrailError(f"the class {wrong!r} cannot be a line of {CLASSES[0]}; give it another name")
    return "".join(f"{name}\n" for name in names).encode()


def _is_line(name: str) -> bool:
    try:
        return "\r" not in name and class_names(f"{name}\n".encode().decode("utf-8-sig")) == (name,)
    except UnicodeEncodeError:  # a folder name that is not text
        return False


def _begun(work: Attempt) -> Sharded:
    """Load the progress. Shards have temporary names until all are written, so that an incomplete set is never read."""
    done = work.noted()
    made = Sharded(**done or {})
    if done is None:
        work.note(asdict(made))
    for split, sizes in made.shards.items():
        for number, expected in enumerate(sizes):
            path = _there(work, split, number)
            if not path.is_file() or path.stat().st_size != expected:
                raise VitrailError(f"{path} is not what was written there; delete {work.folder} and restart")
    made.before = sum(map(len, made.shards.values()))
    return made


def _there(work: Attempt, split: str, number: int) -> Path:
    """Return the shard's path: its final name if the job was interrupted while renaming, else its temporary one."""
    named = work.folder / f"{split}-{number:06d}.tar"
    return named if named.exists() else named.with_suffix(".part")


def _write(
    work: Attempt,
    made: Sharded,
    split: str,
    source: Source,
    order: ndarray,
    size: int,
    labels: bool,
    most: float,
    progress: Progress | None,
    workers: int | None,
) -> None:
    """Write one split. Progress is saved after each shard, up to the image that did not fit into it."""
    for count in (made.counts, made.seen):
        count.setdefault(split, 0)
    sizes, tar = made.shards.setdefault(split, []), None
    try:
        for index, item in _items(source, order[made.seen[split] :], workers):
            if isinstance(item, str):
                made.skipped.append(item)
                if len(made.skipped) > most:
                    _refuse(work, made)
            else:
                label = int(source.labels[index]) if labels else None
                if tar is not None and not tar.fits(item[1], label, size):
                    sizes.append(tar.close())
                    work.note(asdict(made))
                    tar = None
                tar = tar or Shard(work.folder / f"{split}-{len(sizes):06d}.part")
                tar.add(f"{index:09d}", *item, label)
                made.counts[split] += 1
            made.seen[split] += 1
            if progress and (made.seen[split] % CHUNK == 0 or made.seen[split] == len(source)):
                progress(f"writing {split}", made.seen[split], len(source))
        if tar is not None:
            sizes.append(tar.close())
        work.note(asdict(made))
    finally:
        if tar is not None:
            tar.file.close()


def _refuse(work: Attempt, made: Sharded) -> NoReturn:
    """Raise because of too many unusable images. Written shards stay: the disk or network may be at fault, and be repaired."""
    if not any(made.shards.values()):
        work.give_up()
    raise VitrailError(
        f"{len(made.skipped):,} images cannot be used, more than the tolerated fraction of {TOLERATED:g}, the last one: "
        f"{made.skipped[-1]}; `vitrail data check` lists them all"
    )


def _items(source: Source, order: ndarray, workers: int | None) -> Iterator[tuple[int, tuple[str, bytes] | str]]:
    """Yield every image's file extension and bytes, or a sentence that says why it cannot be used."""

    def item(index: int) -> tuple[int, tuple[str, bytes] | str]:
        try:
            return index, _encoded(source.content(index))
        except MemoryError:  # transient
            raise
        except Exception as error:  # a damaged header can fail its decoder in any way
            return index, _why(source.where(index), error)

    with ThreadPoolExecutor(workers or cores()) as pool:
        for start in range(0, len(order), CHUNK):
            yield from pool.map(item, order[start : start + CHUNK].tolist())


def _why(where: str, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{where} cannot be read: {error.strerror or error}"
    if isinstance(error, VitrailError):
        return str(error) if where in str(error) else f"{where} {error}"
    return f"{where} cannot be decoded: {error or type(error).__name__}"


def _encoded(content: bytes | ndarray) -> tuple[str, bytes]:
    if isinstance(content, bytes):
        return ENDINGS[kind(content).split()[0]], content
    stream = io.BytesIO()
    as_picture(content).save(stream, "PNG")
    return "png", stream.getvalue()
