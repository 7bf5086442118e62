"""Write any dataset as tar shards that webdataset reads: ``train-000000.tar`` ..., with ``classes.txt`` next to them.

A sample is ``KEY.jpg`` (the file's own bytes, with the extension of its format; pixels become PNG, bands .npy) and ``KEY.cls``,
its class index, or ``KEY.json`` with ``labels``, the class indices of an image that may have several, or ``targets``, numbers
to predict by name; the key is its index in the split. Masks are ``KEY.mask.png`` and ``KEY.objects.png`` (``stored_masks.py``),
with the names of their classes in ``mask_classes.txt``, boxes ``KEY.boxes.json`` (``stored_boxes.py``), with those in
``box_classes.txt``; images without labels have only those that are their targets. Images are shuffled, so that every shard
mixes the classes. The same images, size and seed give the same bytes. The folder appears whole, and an interrupted job is
resumed (``resumable_folder.py``).
"""

import json
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy import ndarray

from vitrail.augment.counter_rng import permutation
from vitrail.data.image_file import encode_image_file, explain_unusable
from vitrail.data.resumable_folder import ResumableFolder, resumable_folder
from vitrail.data.sources.dataset import MAX_BAD_FRACTION, Dataset, Progress, fingerprint, max_bad_images
from vitrail.data.sources.stored_boxes import encode_objects
from vitrail.data.sources.stored_masks import encode_masks
from vitrail.data.sources.tar_index import BOXES_EXTENSION, MASK_EXTENSION, OBJECTS_EXTENSION, TAR_BLOCK
from vitrail.data.sources.tar_shards import BOX_CLASS_FILE, CLASS_FILES, MASK_CLASS_FILE, MAX_CLASSES, parse_class_names
from vitrail.errors import VitrailError
from vitrail.io import fsync_path
from vitrail.system import available_cores

CHUNK = 64  # images read at a time
END_MARKER = bytes(2 * TAR_BLOCK)
SHARD_STREAM = 2**32  # in place of an epoch, so that no training epoch has the same order


@dataclass
class ShardReport:
    """Summary of the written shards, and the saved progress of an interrupted job."""

    counts: dict[str, int] = field(default_factory=dict)  # images by split
    shards: dict[str, list[int]] = field(default_factory=dict)  # bytes of each shard, by split
    skipped: list[str] = field(default_factory=list)  # images that could not be used, with the reason
    processed: dict[str, int] = field(default_factory=dict)  # images processed by split, skipped ones included
    resumed_shards: int = 0  # shards written before the job was resumed

    @property
    def bytes(self) -> int:
        return sum(map(sum, self.shards.values()))


def write_shards(
    out: Path,
    splits: dict[str, Dataset],
    *,
    shard_size: int = 10**9,
    seed: int = 0,
    labelled: bool = True,
    progress: Progress | None = None,
    workers: int | None = None,
) -> ShardReport:
    """Write shards of at most ``shard_size`` bytes, unless a single image has more. If not ``labelled`` and some images have no
    label, no labels are written."""
    if shard_size < 1:
        raise VitrailError(f"shard_size must be at least 1 byte, got {shard_size}; try shard_size=10**9")
    labels = _has_labels(splits, labelled)
    first = next(iter(splits.values()))
    masks = all(dataset.mask_names and not dataset.has_box_targets for dataset in splits.values())
    boxes = all(dataset.box_names and not dataset.has_mask_targets for dataset in splits.values())
    class_files = {CLASS_FILES[0]: _encode_class_names(first.class_names) if labels else b""}
    if masks:
        class_files[MASK_CLASS_FILE] = _encode_class_names(first.mask_names)
    if boxes:
        class_files[BOX_CLASS_FILE] = _encode_class_names(first.box_names)
    targets = [*([first.mask_names] if masks else []), *([["boxes", *first.box_names]] if boxes else [])]
    job = json.dumps([fingerprint(*splits.values()), list(splits), shard_size, seed, labels, *targets])
    with resumable_folder(out, job) as output:
        report = _resume(output)
        max_bad = max_bad_images(MAX_BAD_FRACTION, sum(map(len, splits.values())))
        for number, (split, dataset) in enumerate(splits.items()):
            order = permutation(seed, SHARD_STREAM + number, len(dataset))
            samples = _Samples(dataset, labels, masks, boxes)
            _write_split(output, report, split, samples, order, shard_size, max_bad, progress, workers)
        if not sum(report.counts.values()):
            output.discard()
            example = f"; the first one: {report.skipped[0]}" if report.skipped else ""
            raise VitrailError(f"nothing could be written: no image can be used{example}")
        for name, content in class_files.items():
            if content:
                output.write(name, content)
        for split, sizes in report.shards.items():
            for number in range(len(sizes)):
                _shard_path(output, split, number).replace(output.partial / f"{split}-{number:06d}.tar")
        output.finish()
    return report


def _has_labels(splits: dict[str, Dataset], needed: bool) -> bool:
    unlabelled = {
        split: np.flatnonzero(~dataset.has_label) if not dataset.target_names else np.zeros(0, np.int64)
        for split, dataset in splits.items()
    }
    num_unlabelled = sum(map(len, unlabelled.values()))
    if needed and 0 < num_unlabelled < sum(map(len, splits.values())):
        split = next(split for split in unlabelled if len(unlabelled[split]))
        raise VitrailError(
            f"{num_unlabelled:,} images have no label but others have, first "
            f"{splits[split].describe(int(unlabelled[split][0]))}; "
            "label them, or write them all without labels (--unlabelled)"
        )
    return not num_unlabelled


def _encode_class_names(names: tuple[str, ...]) -> bytes:
    """Encode the class names, one per line."""
    if len(names) > MAX_CLASSES:
        raise VitrailError(f"shards can have at most {MAX_CLASSES:,} classes, got {len(names):,}; use fewer")
    invalid = next((name for name in names if not _is_one_line(name)), None)
    if invalid is not None:
        raise VitrailError(f"the class {invalid!r} cannot be a line of {CLASS_FILES[0]}; give it another name")
    return "".join(f"{name}\n" for name in names).encode()


def _is_one_line(name: str) -> bool:
    try:
        return "\r" not in name and parse_class_names(f"{name}\n".encode().decode("utf-8-sig")) == (name,)
    except UnicodeEncodeError:  # a folder name that is not text
        return False


def _resume(output: ResumableFolder) -> ShardReport:
    """Load the progress. Shards have temporary names until all are written, so that an incomplete set is never read."""
    done = output.load_progress()
    report = ShardReport(**done or {})
    if done is None:
        output.save_progress(asdict(report))
    for split, sizes in report.shards.items():
        for number, expected in enumerate(sizes):
            path = _shard_path(output, split, number)
            if not path.is_file() or path.stat().st_size != expected:
                raise VitrailError(f"{path} is not what was written there; delete {output.partial} and restart")
    report.resumed_shards = sum(map(len, report.shards.values()))
    return report


def _shard_path(output: ResumableFolder, split: str, number: int) -> Path:
    """Return the shard's path: its final name if the job was interrupted while renaming, else its temporary one."""
    final = output.partial / f"{split}-{number:06d}.tar"
    return final if final.exists() else final.with_suffix(".part")


def _write_split(
    output: ResumableFolder,
    report: ShardReport,
    split: str,
    samples: "_Samples",
    order: ndarray,
    shard_size: int,
    max_bad: float,
    progress: Progress | None,
    workers: int | None,
) -> None:
    """Write one split. Progress is saved after each shard, up to the image that did not fit into it."""
    for count in (report.counts, report.processed):
        count.setdefault(split, 0)
    sizes, tar = report.shards.setdefault(split, []), None
    try:
        for index, item in samples.encode_all(order[report.processed[split] :], workers):
            if isinstance(item, str):
                report.skipped.append(item)
                if len(report.skipped) > max_bad:
                    _raise_too_many_bad(output, report)
            else:
                if tar is not None and not tar.fits(item, shard_size):
                    sizes.append(tar.close())
                    output.save_progress(asdict(report))
                    tar = None
                tar = tar or TarWriter(output.partial / f"{split}-{len(sizes):06d}.part")
                tar.add(f"{index:09d}", item)
                report.counts[split] += 1
            report.processed[split] += 1
            if progress and (report.processed[split] % CHUNK == 0 or report.processed[split] == len(order)):
                progress(f"writing {split}", report.processed[split], len(order))
        if tar is not None:
            sizes.append(tar.close())
        output.save_progress(asdict(report))
    finally:
        if tar is not None:
            tar.file.close()


def _raise_too_many_bad(output: ResumableFolder, report: ShardReport) -> NoReturn:
    """Raise because of too many unusable images. Written shards stay: the disk or network may be at fault, and be repaired."""
    if not any(report.shards.values()):
        output.discard()
    raise VitrailError(
        f"{len(report.skipped):,} images cannot be used, more than the tolerated fraction of "
        f"{MAX_BAD_FRACTION:g}, the last one: "
        f"{report.skipped[-1]}; `vitrail data check` lists them all"
    )


Members = list[tuple[str, bytes]]  # the files of a sample: extension and content, the image first


@dataclass(frozen=True)
class _Samples:
    """The samples of a split, with their labels, masks and boxes or without."""

    dataset: Dataset
    labelled: bool
    masked: bool
    boxed: bool

    def encode_all(self, order: ndarray, workers: int | None) -> Iterator[tuple[int, Members | str]]:
        """Yield the files of every sample, or a sentence that says why its image cannot be used."""
        with ThreadPoolExecutor(workers or available_cores()) as pool:
            for start in range(0, len(order), CHUNK):
                yield from pool.map(self._encode_or_explain, order[start : start + CHUNK].tolist())

    def _encode_or_explain(self, index: int) -> tuple[int, Members | str]:
        try:
            return index, self._encode(index)
        except MemoryError:  # transient
            raise
        except Exception as error:  # a damaged header can fail its decoder in any way
            return index, explain_unusable(self.dataset.describe(index), error)

    def _encode(self, index: int) -> Members:
        members = [encode_image_file(self.dataset.read(index))]
        if self.masked:
            mask, objects = encode_masks(self.dataset, index)
            members.append((MASK_EXTENSION, mask))
            if objects is not None:
                members.append((OBJECTS_EXTENSION, objects))
        if self.boxed:
            members.append((BOXES_EXTENSION, encode_objects(self.dataset.objects(index))))
        return [*members, _encode_target(self.dataset, index)] if self.labelled else members


def _encode_target(dataset: Dataset, index: int) -> tuple[str, bytes]:
    """Return the extension and content of the file with the label, the labels or the numbers of an image."""
    if (label_sets := dataset.label_sets) is not None:
        return "json", json.dumps({"labels": label_sets.classes_of(index)}).encode()
    if dataset.target_names:
        numbers = map(float, np.atleast_1d(dataset.target(index)))
        return "json", json.dumps({"targets": dict(zip(dataset.target_names, numbers, strict=True))}).encode()
    return "cls", str(int(dataset.labels[index])).encode()


class TarWriter:
    """A tar file of images and targets, synced to disk when it is closed.

    Plain headers with time, owner and group 0, so that the bytes are reproducible; ``tarfile`` would pad the end to 10 KiB.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, open(path, "wb")  # noqa: SIM115

    def fits(self, members: Members, max_bytes: int) -> bool:
        added = sum(TAR_BLOCK + _pad_to_block(len(content)) for _, content in members)
        return self.file.tell() + added + len(END_MARKER) <= max_bytes

    def add(self, key: str, members: Members) -> None:
        for extension, content in members:
            self._write_member(f"{key}.{extension}", content)

    def _write_member(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self.file.write(info.tobuf(tarfile.USTAR_FORMAT))
        self.file.write(content.ljust(_pad_to_block(len(content)), b"\0"))

    def close(self) -> int:
        self.file.write(END_MARKER)
        length = self.file.tell()
        self.file.close()
        fsync_path(self.path)
        return length


def _pad_to_block(length: int) -> int:
    return -(-length // TAR_BLOCK) * TAR_BLOCK
