"""Read YOLO's layout as a dataset of masks, drawn from polygons, or of boxes: ``data.yaml`` with the names of the classes,
images, and a text file of labels for each. Boxes are the targets if they are chosen, or if there are no polygons.

``DIR/images/train`` with ``DIR/labels/train``, or ``DIR/train/images`` with ``DIR/train/labels``. h high, w wide.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16, Int32
from numpy import ndarray

from vitrail.data.decode import SIDEWAYS_ORIENTATIONS, stored_size
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_keys import file_key
from vitrail.data.sources.dataset import IGNORED, ImageFileDataset, Progress, SourceSplits, evenly_spaced
from vitrail.data.sources.filled_regions import FilledRegion, fill_region, paint_classes, paint_objects
from vitrail.data.sources.labels import SPLIT_ALIASES
from vitrail.data.sources.scan_folder import scan_folder
from vitrail.data.sources.yolo.label_file import LabelLine, label_path, parse_labels, read_label_text
from vitrail.data.sources.yolo.small_yaml import read_small_yaml
from vitrail.data.sources.yolo.yolo_boxes import read_yolo_boxes
from vitrail.errors import VitrailError

BACKGROUND = "background"
MAX_SAMPLED = 4000  # label files that are read to tell what they have
SPLIT_KEYS = {"train": "train", "val": "validation", "validation": "validation", "valid": "validation", "test": "test"}


@dataclass(frozen=True, eq=False)
class YoloPolygons(ImageFileDataset):
    """Images with label files. An image without one has no object, as an empty file says."""

    shift: int  # class of the first name
    background: int
    digest: bytes  # of label files

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.class_names

    @property
    def has_mask_targets(self) -> bool:
        return True

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        size, regions = self._read_regions(index)
        return paint_classes(regions, size, self.background)

    def instances(self, index: int) -> Int32[ndarray, "h w"]:
        size, regions = self._read_regions(index)
        return paint_objects(regions, size)

    def labels_of(self, index: int) -> list[LabelLine] | None:
        """Return the objects of an image; None if it has no label file."""
        path = label_path(self.path(index))
        text = read_label_text(path)
        return None if text is None else parse_labels(text, path, len(self.class_names) - self.shift)

    def _read_regions(self, index: int) -> tuple[tuple[int, int], list[FilledRegion]]:
        (height, width), orientation = stored_size(self.read(index))
        size = (width, height) if orientation in SIDEWAYS_ORIENTATIONS else (height, width)
        regions = []
        for number, line in enumerate(self.labels_of(index) or (), start=1):
            value, number = (IGNORED, 0) if line.is_box else (line.number + self.shift, number)
            region = fill_region(line.polygon(size), size, value, number, is_below=line.is_box)
            if region is not None:
                regions.append(region)
        return size, regions

    def content_key(self) -> bytes:
        return super().content_key() + self.digest

    def cache_key(self) -> bytes:
        return super().cache_key() + b"".join(file_key(label_path(self.path(index)).absolute()) for index in range(len(self)))


def find_yolo(root: Path) -> Path | None:
    """Return the description of a folder in YOLO's layout: a YAML file with names, if there are folders of labels."""
    has_labels = any((root / folder).is_dir() for folder in ("labels", *(f"{alias}/labels" for alias in SPLIT_ALIASES)))
    candidates = [root / "data.yaml", root / "dataset.yaml", *sorted([*root.glob("*.yaml"), *root.glob("*.yml")])]
    return next((path for path in candidates if has_labels and path.is_file() and _has_names(path)), None)


def _has_names(path: Path) -> bool:
    try:
        return any(line.startswith("names:") for line in path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError):
        return False


def read_yolo(path: Path, masks: bool = True, boxes: bool = True, progress: Progress | None = None) -> SourceSplits:
    """Return the splits that a description has, with ``masks`` or ``boxes`` as targets, whichever there are, or without any."""
    content = read_small_yaml(path)
    names, images = _names(path, content), _images(path, content, progress)
    if not masks and not boxes:
        return SourceSplits(
            {split: ImageFileDataset(*found, np.full(len(found[1]), -1, np.int64), ()) for split, found in images.items()}
        )
    background = next((place for place, name in enumerate(names) if name.lower() == BACKGROUND), None)
    classes, shift = ((BACKGROUND, *names), 1) if background is None else (names, 0)
    splits = {
        split: YoloPolygons(
            root, paths, np.full(len(paths), -1, np.int64), classes, shift, background or 0, _digest(root, paths)
        )
        for split, (root, paths) in (images.items() if masks else ())
    }
    counts = {split: _count_lines(dataset) for split, dataset in splits.items()}
    if boxes and not (masks and any(of_split.polygons for of_split in counts.values())):
        return read_yolo_boxes(path, names, images, progress)
    notes = [note for split, dataset in splits.items() for note in _notes(path, split, dataset, counts[split])]
    return SourceSplits(dict(splits), tuple(notes), Columns(masks=True))


def _names(path: Path, content: dict[str, Any]) -> tuple[str, ...]:
    names = content.get("names")
    if isinstance(names, dict):
        if sorted(names, key=lambda key: (len(key), key)) != [str(number) for number in range(len(names))]:
            raise VitrailError(f"{path} must number its names from 0 to {len(names) - 1}, got {', '.join(names)[:60]}")
        names = [names[str(number)] for number in range(len(names))]
    if not isinstance(names, list) or not names or not all(names):
        raise VitrailError(f"{path} must name its classes, got names: {str(names)[:60]}; write names: [cat, dog]")
    if len(set(names)) < len(names):
        raise VitrailError(f"{path} has a name twice in {', '.join(names)[:80]}; give each class its own")
    if (count := content.get("nc")) not in (None, "", str(len(names))):
        raise VitrailError(f"{path} says nc: {count} and has {len(names)} names; correct one of them")
    return tuple(names)


def _images(path: Path, content: dict[str, Any], progress: Progress | None) -> dict[str, tuple[Path, list[str]]]:
    """Return the folder and the images of each split, "" if there is none."""
    named = {split: content[key] for key, split in SPLIT_KEYS.items() if content.get(key)}
    found = dict[str, tuple[Path, list[str]]]()
    for split, value in named.items():
        places = [_resolve(path, content, str(place)) for place in (value if isinstance(value, list) else [value])]
        existing = [place for place in places if place is not None]
        if not existing and split == "train":
            raise VitrailError(f"{path} has train: {value}, and there is no such folder; write it relative to {path.parent}")
        if existing and existing not in [[place] for place, _ in found.values()]:
            found[split] = _list_images(existing, progress)
    if not found and (path.parent / "images").is_dir():
        found[""] = _list_images([path.parent / "images"], progress)
    if not any(paths for _, paths in found.values()):
        raise VitrailError(f"{path} has no images; write train: images/train and val: images/val, relative to {path.parent}")
    return {split: images for split, images in found.items() if images[1]}


def _resolve(path: Path, content: dict[str, Any], value: str) -> Path | None:
    """Return a folder or list of images as it was meant on the machine where the description was written."""
    plain = value.removeprefix("./")
    while plain.startswith("../"):
        plain = plain.removeprefix("../")
    bases = [path.parent / str(content.get("path") or ""), path.parent]
    candidates = [base / name for base in bases for name in (value, plain)]
    return next((Path(os.path.normpath(place)) for place in candidates if place.exists()), None)


def _list_images(places: Sequence[Path], progress: Progress | None) -> tuple[Path, list[str]]:
    """Return the images of folders and lists, relative to a folder."""
    if len(places) == 1 and places[0].is_dir():
        return places[0], scan_folder(places[0], progress).paths
    paths = list[str]()
    for place in places:
        if place.is_dir():
            paths += [str(place / name) for name in scan_folder(place, progress).paths]
        else:
            lines = (line.strip() for line in place.read_text(encoding="utf-8-sig").splitlines())
            paths += [os.path.normpath(place.parent / line) for line in lines if line]
    root = Path(os.path.commonpath([place.absolute().parent for place in places]))
    return root, [os.path.relpath(os.path.abspath(each), root) for each in paths]


def _digest(root: Path, paths: Sequence[str]) -> bytes:
    """Hash the label files, of many images evenly spaced ones."""
    digest = hashlib.sha256()
    for index in evenly_spaced(len(paths), MAX_SAMPLED).tolist():
        text = read_label_text(label_path(root / paths[index]))
        digest.update(b"\0" if text is None else text.encode() + b"\1")
    return digest.digest()


@dataclass
class _LineCounts:
    """Numbers of label files and of what is in them, of those that were looked at."""

    looked_at: int
    missing: int = 0
    empty: int = 0
    boxes: int = 0
    polygons: int = 0
    unreadable: int = 0  # files, which the dataset check names


def _count_lines(dataset: YoloPolygons) -> _LineCounts:
    sampled = evenly_spaced(len(dataset), MAX_SAMPLED).tolist()
    counts = _LineCounts(len(sampled))
    for index in sampled:
        try:
            lines = dataset.labels_of(index)
        except VitrailError:
            counts.unreadable += 1
            continue
        counts.missing += lines is None
        counts.empty += lines == []
        of_boxes = sum(line.is_box for line in lines or ())
        counts.boxes += of_boxes
        counts.polygons += len(lines or ()) - of_boxes
    return counts


def _notes(path: Path, split: str, dataset: YoloPolygons, counts: _LineCounts) -> Iterator[str]:
    """Yield notes of what the label files have; raise if they have no polygons."""
    if not counts.polygons and not counts.unreadable:
        has = f"{counts.boxes:,} boxes and no polygon" if counts.boxes else f"no label for any of {len(dataset):,} images"
        remedy = "a mask is drawn from polygons: lines with a class and the corners x1 y1 x2 y2 ..."
        raise VitrailError(f"{path} has {has} in {split or 'its images'}, first {label_path(dataset.path(0))}; {remedy}")
    of = "" if counts.looked_at == len(dataset) else f" of {counts.looked_at:,} that were looked at"
    where = split or path.name
    if counts.missing:
        yield f"{where}: {counts.missing:,} images{of} have no label file and count as background, as YOLO has it"
    if counts.empty:
        yield f"{where}: {counts.empty:,} images{of} have an empty label file, all background"
    if counts.boxes:
        yield f"{where}: {counts.boxes:,} lines{of} have a box and no polygon; the pixels in it are ignored where no polygon is"
