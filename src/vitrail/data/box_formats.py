"""Formats of boxes, as they are written: COCO JSON, YOLO, Pascal VOC and CSV. k objects of an image.

COCO        annotations/instances_train.json, images/train/NAME.jpg      boxes as left, top, width, height; ids from 1
YOLO        data.yaml, labels/train/NAME.txt, images/train/NAME.jpg      centre, width and height as fractions of the image
Pascal VOC  Annotations/NAME.xml, ImageSets/Main/train.txt, JPEGImages/NAME.jpg    first and last pixel, counted from 1
CSV         boxes.csv, images/train/NAME.jpg                             a row per box: left, top, right, bottom
"""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TextIO
from xml.sax.saxutils import escape

import numpy as np

from vitrail.data.sources.labels import natural_sorted
from vitrail.data.sources.objects import Objects, box_areas
from vitrail.errors import VitrailError

SPLIT_FOLDERS = {"train": "train", "validation": "val", "test": "test"}  # as COCO and YOLO call them
MAX_NAMED = 6  # classes that a note names
DIGITS = 10  # of a number: a millionth of a pixel in an image of 10,000
CROWDS, OUTSIDE, AREAS, PIXELS = "crowds", "outside", "areas", "pixels"  # what a format may not hold


@dataclass(frozen=True)
class WrittenImage:
    """An image that has been written, with its objects."""

    file: str  # without folders
    size: tuple[int, int]  # height and width of the upright image
    objects: Objects


Images = Mapping[str, Callable[[], Iterator[WrittenImage]]]  # of each split, as often as they are needed


class BoxFormat(ABC):
    """A format: where its images are, what it can hold, and how its annotations are written."""

    name: ClassVar[str]
    lacks: ClassVar[tuple[str, ...]] = ()  # of what objects may have
    lists_classes: ClassVar[bool] = True  # also those without a box
    entry: ClassVar[str] = ""  # the file to open, if it is not the folder

    @abstractmethod
    def image_folder(self, split: str) -> str:
        """Return the folder of a split's images."""

    @abstractmethod
    def write(self, folder: Path, class_names: Sequence[str], images: Images) -> None:
        """Write the annotations."""

    def reduce(self, objects: Objects, size: tuple[int, int]) -> tuple[Objects, dict[str, int]]:
        """Return what the format can hold of the objects of an image, and how many have lost what."""
        lost = dict[str, int]()
        if CROWDS in self.lacks and objects.crowd.any():
            lost[CROWDS] = int(objects.crowd.sum())
            objects = objects[~objects.crowd]
        if AREAS in self.lacks and (other := int((~np.isclose(objects.areas, box_areas(objects.boxes), rtol=0.01)).sum())):
            lost[AREAS] = other
        if OUTSIDE in self.lacks:
            clipped = np.clip(objects.boxes, 0, [size[1], size[0]] * 2)
            if changed := int((clipped != objects.boxes).any(axis=1).sum()):
                lost[OUTSIDE], objects = changed, replace(objects, boxes=clipped)
        if PIXELS in self.lacks and (single := int((objects.boxes[:, 2:] - objects.boxes[:, :2] <= 1).any(axis=1).sum())):
            lost[PIXELS] = single
        return objects, lost

    def note(self, what: str, count: int) -> str:
        """Return a sentence on what objects have lost."""
        if what == CROWDS:
            kept = "a crowd is left out, and counts" if count == 1 else f"{count:,} crowds are left out, and count"
            return f"{self.name} has no crowds: {kept} as background"
        if what == OUTSIDE:
            cut = "a box that reaches out ends" if count == 1 else f"{count:,} boxes that reach out end"
            return f"boxes of {self.name} are inside of their image: {cut} at its edge"
        if what == PIXELS:
            boxes = "a box of one pixel has" if count == 1 else f"{count:,} boxes of one pixel have"
            return f"{boxes} the same corner twice in {self.name}, and will be taken for degenerate"
        sorted_by = "an object by the area of its box" if count == 1 else f"{count:,} objects by the areas of their boxes"
        return f"{self.name} has no areas: metrics sort {sorted_by}, no longer by another one"

    def class_notes(self, class_names: Sequence[str], has_box: Sequence[bool]) -> Iterator[str]:
        """Yield sentences on what is lost of the classes."""
        if self.lists_classes:
            return
        if absent := [name for name, has in zip(class_names, has_box, strict=True) if not has]:
            yield f"{self.name} has no list of classes, so those without a box are lost: {', '.join(absent[:MAX_NAMED])}"
        if natural_sorted(class_names) != tuple(class_names):
            yield f"{self.name} has no list of classes, so their order becomes that of their names"


class CocoFormat(BoxFormat):
    name = "COCO"

    def image_folder(self, split: str) -> str:
        return f"images/{SPLIT_FOLDERS[split]}"

    def write(self, folder: Path, class_names: Sequence[str], images: Images) -> None:
        (folder / "annotations").mkdir(exist_ok=True)
        categories = [{"id": label, "name": name} for label, name in enumerate(class_names, start=1)]
        for split, of_split in images.items():
            path = folder / "annotations" / f"instances_{SPLIT_FOLDERS[split]}.json"
            with open(path, "w", encoding="utf-8") as file:
                file.write('{"images": [')
                _write_items(file, _coco_images(of_split()))
                file.write('], "annotations": [')
                _write_items(file, _coco_annotations(of_split()))
                file.write(f'], "categories": {json.dumps(categories)}}}\n')


def _coco_images(images: Iterable[WrittenImage]) -> Iterator[dict[str, Any]]:
    for number, image in enumerate(images, start=1):
        yield {"id": number, "file_name": image.file, "height": image.size[0], "width": image.size[1]}


def _coco_annotations(images: Iterable[WrittenImage]) -> Iterator[dict[str, Any]]:
    last = 0
    for number, image in enumerate(images, start=1):
        columns = (column.tolist() for column in vars(image.objects).values())
        for (left, top, right, bottom), label, crowd, area in zip(*columns, strict=True):
            last += 1
            box = [_number(value) for value in (left, top, right - left, bottom - top)]
            yield {
                "id": last, "image_id": number, "category_id": label + 1, "bbox": box, "area": _number(area),
                "iscrowd": int(crowd),
            }  # fmt: skip


def _write_items(file: TextIO, items: Iterable[Any]) -> None:
    for number, item in enumerate(items):
        file.write(f"{',' if number else ''}\n{json.dumps(item)}")


class YoloFormat(BoxFormat):
    name = "YOLO"
    lacks = (CROWDS, OUTSIDE, AREAS)

    def image_folder(self, split: str) -> str:
        return f"images/{SPLIT_FOLDERS[split]}"

    def write(self, folder: Path, class_names: Sequence[str], images: Images) -> None:
        lines = [f"{SPLIT_FOLDERS[split]}: images/{SPLIT_FOLDERS[split]}" for split in images]
        lines += [f"nc: {len(class_names)}", "names:"]
        lines += [f"  {label}: {json.dumps(name, ensure_ascii=False)}" for label, name in enumerate(class_names)]
        (folder / "data.yaml").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for split, of_split in images.items():
            labels = folder / "labels" / SPLIT_FOLDERS[split]
            labels.mkdir(parents=True, exist_ok=True)
            for image in of_split():  # a file without lines says that there is no object
                (labels / image.file).with_suffix(".txt").write_text("".join(yolo_lines(image)))


def yolo_lines(image: WrittenImage) -> Iterator[str]:
    """Yield a line for each object of an image."""
    (height, width), objects = image.size, image.objects
    for label, (left, top, right, bottom) in zip(objects.labels.tolist(), objects.boxes.tolist(), strict=True):
        centre_and_size = (
            (left + right) / 2 / width,
            (top + bottom) / 2 / height,
            (right - left) / width,
            (bottom - top) / height,
        )
        yield f"{label} {' '.join(map(str, map(_number, centre_and_size)))}\n"


class VocFormat(BoxFormat):
    name = "Pascal VOC"
    lacks = (OUTSIDE, AREAS, PIXELS)
    lists_classes = False

    def image_folder(self, split: str) -> str:
        return "JPEGImages"

    def write(self, folder: Path, class_names: Sequence[str], images: Images) -> None:
        lists, annotations = folder / "ImageSets" / "Main", folder / "Annotations"
        for each in (lists, annotations):
            each.mkdir(parents=True, exist_ok=True)
        for split, of_split in images.items():
            with open(lists / f"{SPLIT_FOLDERS[split]}.txt", "w", encoding="utf-8") as file:
                for image in of_split():
                    path = (annotations / image.file).with_suffix(".xml")
                    path.write_text(_voc_annotation(image, class_names), encoding="utf-8")
                    file.write(f"{path.stem}\n")


def _voc_annotation(image: WrittenImage, class_names: Sequence[str]) -> str:
    """Return the annotation of an image. A crowd is ``difficult``: metrics of VOC leave it out, too."""
    (height, width), objects = image.size, image.objects
    lines = [
        "<annotation>", "  <folder>JPEGImages</folder>", f"  <filename>{escape(image.file)}</filename>",
        f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>", "  <segmented>0</segmented>",
    ]  # fmt: skip
    for label, crowd, (left, top, right, bottom) in zip(
        objects.labels.tolist(), objects.crowd.tolist(), objects.boxes.tolist(), strict=True
    ):
        corners = {"xmin": left + 1, "ymin": top + 1, "xmax": right, "ymax": bottom}
        lines += [
            "  <object>", f"    <name>{escape(class_names[label])}</name>", "    <pose>Unspecified</pose>",
            "    <truncated>0</truncated>", f"    <difficult>{int(crowd)}</difficult>",
            f"    <bndbox>{''.join(f'<{name}>{_number(value)}</{name}>' for name, value in corners.items())}</bndbox>",
            "  </object>",
        ]  # fmt: skip
    return "".join(f"{line}\n" for line in [*lines, "</annotation>"])


class CsvFormat(BoxFormat):
    name = "CSV"
    lacks = (AREAS,)
    lists_classes = False
    entry = "boxes.csv"

    def image_folder(self, split: str) -> str:
        return f"images/{SPLIT_FOLDERS[split]}"

    def write(self, folder: Path, class_names: Sequence[str], images: Images) -> None:
        with open(folder / self.entry, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("path", "split", "label", "left", "top", "right", "bottom", "crowd"))
            for split, of_split in images.items():
                for image in of_split():
                    path, objects = f"{self.image_folder(split)}/{image.file}", image.objects
                    if not len(objects):  # a row without a box says that there is no object
                        writer.writerow((path, split, "", "", "", "", "", ""))
                    columns = objects.labels.tolist(), objects.boxes.tolist(), objects.crowd.tolist()
                    for label, box, crowd in zip(*columns, strict=True):
                        writer.writerow((path, split, class_names[label], *map(_number, box), int(crowd)))


FORMATS: dict[str, BoxFormat] = {"coco": CocoFormat(), "yolo": YoloFormat(), "voc": VocFormat(), "csv": CsvFormat()}


def check_class_names(class_names: Sequence[str]) -> None:
    """Raise if a class has a name that is no text for a file."""
    for name in class_names:
        if not name.strip() or not name.isprintable():
            raise VitrailError(f"the class {name!r} cannot be written as text; give it another name")


def _number(value: float) -> int | float:
    """Return a number as it is written: whole where it is whole."""
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
