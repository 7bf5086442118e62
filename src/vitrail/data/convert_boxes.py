"""Write a dataset of boxes in another format, its images as they are: files byte for byte, pixels as PNG.

The folder appears whole, and an interrupted job is resumed (``resumable_folder.py``): while images are written, a file of
records notes their objects, from which the annotations are written at the end.
"""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.box_formats import FORMATS, BoxFormat, WrittenImage, check_class_names
from vitrail.data.image_file import encode_image_file, explain_unusable
from vitrail.data.resumable_folder import ResumableFolder, resumable_folder
from vitrail.data.sources.dataset import MAX_BAD_FRACTION, Dataset, Progress, fingerprint, max_bad_images, with_box_targets
from vitrail.data.sources.objects import Objects
from vitrail.data.sources.scan_folder import IMAGE_SUFFIXES
from vitrail.data.transforms import upright_size
from vitrail.errors import VitrailError, did_you_mean
from vitrail.io import fsync_path
from vitrail.system import available_cores

CHUNK = 256  # images between two saves of the progress
RECORDS_FILE = ".records.jsonl"


@dataclass
class ConvertReport:
    """Summary of a converted dataset, and the saved progress of an interrupted job."""

    counts: dict[str, int] = field(default_factory=dict)  # images by split
    boxes: dict[str, int] = field(default_factory=dict)  # boxes by split
    labels: list[int] = field(default_factory=list)  # classes that have a box
    skipped: list[str] = field(default_factory=list)  # images that could not be used, with the reason
    lost: dict[str, int] = field(default_factory=dict)  # what the format does not hold: objects
    processed: dict[str, int] = field(default_factory=dict)  # images processed by split, skipped ones included
    record_bytes: int = 0  # of the records of these images
    resumed_images: int = 0  # written before the job was resumed
    notes: list[str] = field(default_factory=list)
    path: str = ""  # what to open


def convert_boxes(
    out: Path, splits: Mapping[str, Dataset], to: str, *, progress: Progress | None = None, workers: int | None = None
) -> ConvertReport:
    """Write a dataset of boxes as ``coco``, ``yolo``, ``voc`` or ``csv``. What the format cannot hold is in the notes."""
    if to not in FORMATS:
        raise VitrailError(f"boxes can be written as {', '.join(FORMATS)}, got {to!r}{did_you_mean(to, tuple(FORMATS))}")
    splits = {split: with_box_targets(dataset, dataset.name) for split, dataset in splits.items()}
    first = next(iter(splits.values()))
    check_class_names(first.class_names)
    box_format, stems = FORMATS[to], _unique_stems(splits)
    with resumable_folder(out, json.dumps([fingerprint(*splits.values()), list(splits), to])) as output:
        report = _resume(output)
        max_bad = max_bad_images(MAX_BAD_FRACTION, sum(map(len, splits.values())))
        for split, dataset in splits.items():
            images = _Images(output, split, dataset, stems[split], box_format)
            _write_split(report, images, max_bad, progress, workers)
        if not sum(report.counts.values()):
            output.discard()
            example = f"; the first one: {report.skipped[0]}" if report.skipped else ""
            raise VitrailError(f"nothing could be written: no image can be used{example}")
        written = {split: partial(_read_records, output.partial, split) for split in splits if report.counts[split]}
        box_format.write(output.partial, first.class_names, written)
        output.finish()
        (output.out / RECORDS_FILE).unlink()
    report.path = str(out / box_format.entry)
    report.notes = [box_format.note(what, count) for what, count in report.lost.items()]
    has_box = [label in report.labels for label in range(len(first.class_names))]
    report.notes += box_format.class_notes(first.class_names, has_box)
    return report


def _unique_stems(splits: Mapping[str, Dataset]) -> dict[str, list[str]]:
    """Return a file name for each image, without its extension: its own, or with a number if another split has it, too."""
    used = set[str]()
    stems = dict[str, list[str]]()
    for split, dataset in splits.items():
        stems[split] = []
        for index in range(len(dataset)):
            path = dataset.path(index)
            # lists of names are separated at spaces
            own = f"{split}-{index:06d}" if path is None else re.sub(r"\s+", "_", path.stem)
            numbered = (f"{own}-{number}" for number in itertools.count(2))
            stem = next(each for each in itertools.chain([own], numbered) if each.casefold() not in used)
            used.add(stem.casefold())
            stems[split].append(stem)
    return stems


def _resume(output: ResumableFolder) -> ConvertReport:
    """Load the progress, and cut the records off after the images that it counts."""
    done = output.load_progress()
    report = ConvertReport(**done or {})
    with open(output.partial / RECORDS_FILE, "ab") as file:
        if file.tell() < report.record_bytes:
            raise VitrailError(f"{output.partial} is not what was written there; delete it and restart")
        file.truncate(report.record_bytes)
    if done is None:
        output.save_progress(asdict(report))
    report.resumed_images = sum(report.processed.values())
    return report


def _write_split(
    report: ConvertReport, images: "_Images", max_bad: float, progress: Progress | None, workers: int | None
) -> None:
    """Write the images of a split, and their records."""
    split, total = images.split, len(images.dataset)
    for counts in (report.counts, report.boxes, report.processed):
        counts.setdefault(split, 0)
    with ThreadPoolExecutor(workers or available_cores()) as pool:
        for start in range(report.processed[split], total, CHUNK):
            stop = min(start + CHUNK, total)
            lines = list[str]()
            for item in pool.map(images.write_or_explain, range(start, stop)):
                if isinstance(item, str):
                    report.skipped.append(item)
                    continue
                written, lost = item
                report.counts[split] += 1
                report.boxes[split] += len(written.objects)
                report.labels = sorted({*report.labels, *written.objects.labels.tolist()})
                report.lost = dict(Counter(report.lost) + Counter(lost))
                lines.append(_to_record(split, written))
            if len(report.skipped) > max_bad:
                raise VitrailError(
                    f"{len(report.skipped):,} images cannot be used, more than the tolerated fraction of {MAX_BAD_FRACTION:g}, "
                    f"the last one: {report.skipped[-1]}; `vitrail data check` lists them all"
                )
            report.processed[split] = stop
            report.record_bytes += _append(images.output.partial / RECORDS_FILE, "".join(lines).encode())
            images.output.save_progress(asdict(report))
            if progress:
                progress(f"writing {split}", stop, total)


def _append(path: Path, content: bytes) -> int:
    with open(path, "ab") as file:
        file.write(content)
    fsync_path(path)
    return len(content)


@dataclass(frozen=True)
class _Images:
    """The images of a split, to be written."""

    output: ResumableFolder
    split: str
    dataset: Dataset
    stems: Sequence[str]
    box_format: BoxFormat

    def write_or_explain(self, index: int) -> tuple[WrittenImage, dict[str, int]] | str:
        """Write an image, or return a sentence that says why it or its boxes cannot be used."""
        try:
            content = self.dataset.read(index)
            size = upright_size(self.dataset, index, content)
            extension, encoded = encode_image_file(content)
            objects, lost = self.box_format.reduce(self.dataset.objects(index), size)
        except MemoryError:  # transient
            raise
        except Exception as error:  # a damaged header can fail its decoder in any way
            return explain_unusable(self.dataset.describe(index), error)
        own = self.dataset.path(index)
        suffix = own.suffix if own is not None and own.suffix.lower() in IMAGE_SUFFIXES else f".{extension}"
        name = f"{self.stems[index]}{suffix}"
        path = self.output.partial / self.box_format.image_folder(self.split) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded)
        fsync_path(path)
        return WrittenImage(name, size, objects), lost


def _to_record(split: str, image: WrittenImage) -> str:
    columns = {name: column.tolist() for name, column in vars(image.objects).items()}
    return json.dumps({"split": split, "file": os.fsdecode(image.file), "size": image.size, **columns}) + "\n"


def _read_records(folder: Path, split: str) -> Iterator[WrittenImage]:
    """Yield the images of a split that were written."""
    with open(folder / RECORDS_FILE, encoding="utf-8") as file:
        for line in file:
            record: dict[str, Any] = json.loads(line)
            if record["split"] == split:
                boxes = np.array(record["boxes"], np.float64).reshape(-1, 4)
                labels, crowd, areas = (np.array(record[name]) for name in ("labels", "crowd", "areas"))
                objects = Objects(boxes, labels.astype(np.int64), crowd.astype(bool), areas.astype(np.float64))
                yield WrittenImage(record["file"], tuple(record["size"]), objects)
