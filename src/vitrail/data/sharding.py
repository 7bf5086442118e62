"""Any source into tar shards as webdataset reads them: ``train-000000.tar`` ..., and ``classes.txt`` beside them.

A sample is ``KEY.jpg`` (the file's own bytes, with the ending of its format; pixels become PNG) and ``KEY.cls``, the number of
its class; its key is its number in the split. The order is drawn, so that every shard is a mix. The same pictures, size and
seed give the same bytes. The folder appears whole, and an attempt that was cut short is gone on with (``attempt.py``).
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

CHUNK = 64  # pictures read at a time
ENDINGS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "TIFF": "tiff", "BMP": "bmp", "PPM": "ppm"}
STREAM = 2**32  # so that no epoch of a training draws the same order


@dataclass
class Sharded:
    """What became of it, and between two attempts how far it has come."""

    counts: dict[str, int] = field(default_factory=dict)  # pictures by split
    shards: dict[str, list[int]] = field(default_factory=dict)  # the bytes of each, by split
    skipped: list[str] = field(default_factory=list)  # pictures that could not be used, with the reason
    seen: dict[str, int] = field(default_factory=dict)  # with those that were skipped
    before: int = 0  # shards that an earlier attempt had written

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
    """Shards of at most ``size`` bytes, unless one picture has more. Where they need not be ``labelled`` and some have no
    label, none is written."""
    if size < 1:
        raise VitrailError(f"size must be at least 1 byte, got {size}; try size=10**9")
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
            raise VitrailError(f"nothing could be written: no picture can be used{first}")
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
            f"{without:,} pictures have no label but others have, first {splits[split].where(int(bare[split][0]))}; "
            "label them, or write them all without labels (--unlabelled)"
        )
    return not without


def _classes(names: tuple[str, ...]) -> bytes:
    """A name a line."""
    if len(names) > MOST_CLASSES:
        raise VitrailError(f"shards number at most {MOST_CLASSES:,} classes, got {len(names):,}; write fewer")
    wrong = next((name for name in names if not _is_line(name)), None)
    if wrong is not None:
        raise VitrailError(f"the class {wrong!r} cannot be a line of {CLASSES[0]}; give it another name")
    return "".join(f"{name}\n" for name in names).encode()


def _is_line(name: str) -> bool:
    try:
        return "\r" not in name and class_names(f"{name}\n".encode().decode("utf-8-sig")) == (name,)
    except UnicodeEncodeError:  # a folder's name that is no text
        return False


def _begun(work: Attempt) -> Sharded:
    """Shards go by another name until all are there, so that nobody takes some of them for all."""
    done = work.noted()
    made = Sharded(**done or {})
    if done is None:
        work.note(asdict(made))
    for split, sizes in made.shards.items():
        for number, expected in enumerate(sizes):
            path = _there(work, split, number)
            if not path.is_file() or path.stat().st_size != expected:
                raise VitrailError(f"{path} is not what was written there; delete {work.folder} and start again")
    made.before = sum(map(len, made.shards.values()))
    return made


def _there(work: Attempt, split: str, number: int) -> Path:
    """Under its last name where an earlier attempt came to its end while it gave them."""
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
    """What is noted at the end of a shard is all that came before the picture that did not fit any more."""
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
    """The disk or the network that the pictures come from may be at fault, and be mended."""
    if not any(made.shards.values()):
        work.give_up()
    raise VitrailError(
        f"{len(made.skipped):,} pictures cannot be used, more than the share of {TOLERATED:g} tolerated, the last one: "
        f"{made.skipped[-1]}; `vitrail data check` names them all"
    )


def _items(source: Source, order: ndarray, workers: int | None) -> Iterator[tuple[int, tuple[str, bytes] | str]]:
    """Every picture's ending and bytes, or a sentence that says why it cannot be used."""

    def item(index: int) -> tuple[int, tuple[str, bytes] | str]:
        try:
            return index, _encoded(source.content(index))
        except MemoryError:  # a fault of the moment
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
    return f"{where} is no picture that can be read: {error or type(error).__name__}"


def _encoded(content: bytes | ndarray) -> tuple[str, bytes]:
    if isinstance(content, bytes):
        return ENDINGS[kind(content).split()[0]], content
    stream = io.BytesIO()
    as_picture(content).save(stream, "PNG")
    return "png", stream.getvalue()
