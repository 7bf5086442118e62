"""Index of a COCO file: its images, categories and boxes, and where in the file the annotations of each image are. n images, m
annotations.

The file may have gigabytes: it is read once, element by element, and the index is cached. Regions are read when needed.
"""

import json
import math
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from vitrail.data.cache import load_cached, store_cached
from vitrail.data.decode import MAX_IMAGE_PIXELS
from vitrail.data.mask_codes import decode_rle, mask_box
from vitrail.data.sources.coco.json_stream import JsonStream, read_value
from vitrail.data.sources.coded_column import Numbering
from vitrail.data.sources.packed_strings import PackedStrings
from vitrail.errors import VitrailError, first_line

INDEX_FORMAT = 2  # version of the cached arrays
ELEMENTS_PER_REPORT = 10_000  # elements between two progress reports
LISTS = ("images", "annotations", "categories")
MAX_NUMBER = 2**53  # of a whole number that is a coordinate
MAX_HEAD = 2**22  # bytes that are looked at to tell what a file is


@dataclass(frozen=True)
class Category:
    """A category, and whether it is of things that are counted, or of stuff."""

    id: Any
    name: str
    is_thing: bool = True
    parent: str = ""
    has_annotations: bool = True


@dataclass
class CocoCounts:
    """Numbers of what a COCO file has, and of what is wrong in it, with an example of each."""

    annotations: int = 0
    crowds: int = 0
    boxes: int = 0  # annotations with a box and no region
    captions: int = 0  # or anything else without a region
    panoptic: int = 0
    without_image: int = 0
    without_image_example: str = ""
    without_category: int = 0
    without_category_ids: list[str] = field(default_factory=list)
    degenerate: int = 0  # regions without an inside: no points, or two
    degenerate_example: str = ""
    without_box: int = 0  # annotations with neither a box nor a region to draw one around
    outlined: int = 0  # boxes drawn around a region
    invalid_box: str = ""  # the first annotation whose box is not four numbers


@dataclass(frozen=True, eq=False)
class CocoIndex:
    """The annotations are in the order of their images, those of one image in the order of the file."""

    path: Path
    digest: str  # SHA-256 of the file
    categories: tuple[Category, ...]  # in the order of their ids
    counts: CocoCounts
    names: PackedStrings  # file names of the images
    sizes: Int[ndarray, "n 2"]  # height and width as the file says; 0 if it does not
    starts: Int[ndarray, " starts"]  # of each image among the annotations
    annotations: Int[ndarray, "m 3"]  # index of the category, -1 if there is none; first byte, and the one after the last
    boxes: Float[ndarray, "m 5"]  # left, top, right and bottom, and the area, NaN if the file does not say
    flags: Bool[ndarray, "m 2"]  # whether there is a box, and whether it is a crowd

    @property
    def is_panoptic(self) -> bool:
        return self.counts.panoptic > 0

    def rows(self, index: int) -> Int[ndarray, "k 3"]:
        """Return the annotations of an image."""
        return self.annotations[self.starts[index] : self.starts[index + 1]]

    def read(self, index: int) -> list[dict[str, Any]]:
        """Return the annotations of an image as the file has them."""
        try:
            with open(self.path, "rb") as file:
                read = [read_value(file, begin, end) for begin, end in self.rows(index)[:, 1:].tolist()]
            if not all(isinstance(annotation, dict) for annotation in read):
                raise ValueError
        except OSError as error:
            raise VitrailError(f"{self.path} cannot be read: {error.strerror or first_line(error)}") from None
        except ValueError:
            raise VitrailError(f"{self.path} was changed while it was in use; start again") from None
        return read


def is_coco(path: Path) -> bool:
    """Whether a file begins as COCO's do: an object that has images, annotations or categories early on."""
    try:
        with open(path, "rb") as file:
            for key, elements in JsonStream(path, file, MAX_HEAD).members():
                if key in LISTS and elements is not None:
                    first = next(elements, ({"id": 0}, 0, 0))[0]
                    return isinstance(first, dict) and ("id" in first or "image_id" in first)
    except (OSError, VitrailError):
        return False
    return False


def index_coco(path: Path, report: Callable[[int], None]) -> CocoIndex:
    """Index a COCO file, or load its index from the cache."""
    try:
        status = path.stat()
        key = f"{INDEX_FORMAT} {path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
        index = _load(path, key)
        if index is None:
            with open(path, "rb") as file:
                index = _Builder(path, file).build(report)
            _store(index, key)
    except OSError as error:
        raise VitrailError(f"{path} cannot be read: {error.strerror or first_line(error)}") from None
    return index


class _Builder:
    """Collects the columns of the index."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.stream, self.counts = JsonStream(path, file), CocoCounts()
        self.image_numbers, self.category_numbers = Numbering(), Numbering()
        self.rows_by_image: dict[int, int] = {}  # number of an image: its row
        self.names, self.sizes, self.categories = list[str](), array("q"), dict[Any, Category]()
        self.image_of, self.category_of, self.begins, self.ends = array("q"), array("q"), array("q"), array("q")
        self.boxes, self.flags = array("d"), array("B")

    def build(self, report: Callable[[int], None]) -> CocoIndex:
        add: dict[str, Callable[[Any], None]] = {
            "images": self._add_image, "annotations": self._add_annotation, "categories": self._add_category
        }  # fmt: skip
        found = set[str]()
        for key, elements in self.stream.members():
            if key not in add or elements is None:
                continue
            if key in found:
                raise VitrailError(f"{self.path} has {key} twice; keep one of them")
            found.add(key)
            for number, (element, begin, end) in enumerate(elements):
                self._add(key, number, element, add[key])
                if key == "annotations":
                    self.begins.append(begin)
                    self.ends.append(end)
                if number % ELEMENTS_PER_REPORT == 0:
                    report(end)
        if missing := [key for key in LISTS if key not in found]:
            has = ", ".join(sorted(found)) or "none of them"
            raise VitrailError(f"{self.path} must have images, annotations and categories as COCO's files, got {has}; "
                               f"add {' and '.join(missing)}")  # fmt: skip
        return self._finish()

    def _add(self, key: str, number: int, element: Any, add: Callable[[Any], None]) -> None:
        try:
            add(element)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, VitrailError):
                raise
            missing = f"has no {error.args[0]}" if isinstance(error, KeyError) else "is not valid"
            shown = json.dumps(element)[:80]
            raise VitrailError(f"{self.path}: entry {number} of {key} {missing}, got {shown}; write it as COCO does") from None

    def _add_image(self, image: dict[str, Any]) -> None:
        number = self.image_numbers[_checked_id(image["id"])]
        if number in self.rows_by_image:
            raise VitrailError(f"{self.path} has the image id {image['id']!r} twice; give each image its own")
        name, height, width = image["file_name"], int(image.get("height") or 0), int(image.get("width") or 0)
        if not isinstance(name, str) or not name or "\0" in name:
            raise ValueError
        if min(height, width) < 0 or height * width > MAX_IMAGE_PIXELS:
            raise VitrailError(
                f"{self.path}: {name} has a size of {height} x {width}, and {MAX_IMAGE_PIXELS:,} pixels are allowed"
            )
        self.rows_by_image[number] = len(self.names)
        self.names.append(name)
        self.sizes.extend((height, width))

    def _add_category(self, category: dict[str, Any]) -> None:
        if _checked_id(category["id"]) in self.categories:
            raise VitrailError(f"{self.path} has the category id {category['id']!r} twice; give each category its own")
        name, parent = str(category["name"]).strip(), str(category.get("supercategory") or "")
        is_thing = bool(category.get("isthing", 1))
        self.category_numbers[category["id"]]  # every one has a number, also without annotations
        self.categories[category["id"]] = Category(category["id"], name or str(category["id"]), is_thing, parent)

    def _add_annotation(self, annotation: dict[str, Any]) -> None:
        counts = self.counts
        counts.annotations += 1
        image = self.image_numbers[_checked_id(annotation["image_id"])]
        if "segments_info" in annotation:
            counts.panoptic += 1
            if not isinstance(annotation["file_name"], str):
                raise ValueError
            category = -1
        else:
            category = self.category_numbers[_checked_id(annotation["category_id"])] if "category_id" in annotation else -1
            self._count_region(annotation)
        self._add_box(annotation)
        self.image_of.append(image)
        self.category_of.append(category)

    def _count_region(self, annotation: dict[str, Any]) -> None:
        region, counts = annotation.get("segmentation"), self.counts
        counts.crowds += bool(annotation.get("iscrowd"))
        if not region:
            counts.boxes += "bbox" in annotation
            counts.captions += "bbox" not in annotation
        elif isinstance(region, list):
            polygons = [region] if isinstance(region[0], int | float) else region
            if any(not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2 for polygon in polygons):
                counts.degenerate += 1
                counts.degenerate_example = counts.degenerate_example or f"id {annotation.get('id')}"

    def _add_box(self, annotation: dict[str, Any]) -> None:
        """Add the box of an annotation, or one around its region."""
        box, region, area = (annotation.get(key) for key in ("bbox", "segmentation", "area"))
        corners: list[float] | None = None
        if box:
            corners = _corners(box)
            if corners is None and not self.counts.invalid_box:
                self.counts.invalid_box = f"annotation id {annotation.get('id')!r} has the bbox {json.dumps(box)[:60]}"
        elif region:
            corners = _outline(region)
            self.counts.outlined += corners is not None
        self.counts.without_box += not box and corners is None
        self.boxes.extend(corners or [math.nan] * 4)
        self.boxes.append(float(area) if is_number(area) else math.nan)
        self.flags.extend((corners is not None, bool(annotation.get("iscrowd"))))

    def _finish(self) -> CocoIndex:
        images, categories = (np.frombuffer(column, np.int64) for column in (self.image_of, self.category_of))
        row_of_number = [self.rows_by_image.get(number, -1) for number in range(len(self.image_numbers))]
        rows = np.array(row_of_number, np.int64)[images]
        ordered = sorted(self.categories.values(), key=lambda category: _natural(category.id))
        places = np.full(len(self.category_numbers) + 1, -1, np.int64)  # the last stands for none
        used = set(categories.tolist())
        for place, category in enumerate(ordered):
            number = self.category_numbers[category.id]
            ordered[place] = replace(category, has_annotations=number in used or self.counts.panoptic > 0)
            places[number] = place
        self._count_unknown(images, rows, categories)
        kept = np.flatnonzero(rows >= 0)
        kept = kept[np.argsort(rows[kept], kind="stable")]
        begins, ends = (np.frombuffer(column, np.int64) for column in (self.begins, self.ends))
        return CocoIndex(
            self.path,
            self.stream.digest.hexdigest(),
            tuple(ordered),
            self.counts,
            PackedStrings.from_strings(self.names),
            np.array(self.sizes, np.int64).reshape(-1, 2),
            np.searchsorted(rows[kept], np.arange(len(self.names) + 1)),
            np.stack([places[categories], begins, ends], axis=1)[kept],
            np.frombuffer(self.boxes).reshape(-1, 5)[kept],
            np.frombuffer(self.flags, np.uint8).reshape(-1, 2)[kept] > 0,
        )

    def _count_unknown(self, images: ndarray, rows: ndarray, categories: ndarray) -> None:
        """Count the annotations whose image or category is not in the file."""
        outside, image_ids, category_ids = np.flatnonzero(rows < 0), list(self.image_numbers), list(self.category_numbers)
        self.counts.without_image = len(outside)
        if len(outside):
            self.counts.without_image_example = f"image_id {image_ids[images[outside[0]]]!r}"
        numbers = Counter(categories[categories >= 0].tolist())
        unknown = Counter({id_: numbers[number] for number, id_ in enumerate(category_ids) if id_ not in self.categories})
        self.counts.without_category = unknown.total()
        self.counts.without_category_ids = [repr(id_) for id_, count in unknown.most_common(5) if count]


def _checked_id(value: Any) -> int | str:
    """Return an id, which may be a number or text."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise ValueError
    return value


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of JSON is a number that fits a float."""
    return type(value) is float or (type(value) is int and abs(value) < MAX_NUMBER)


def _corners(box: Any) -> list[float] | None:
    """Return the corners of a box of left, top, width and height; None if it is something else."""
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        return None
    left, top, width, height = map(float, box)
    return [left, top, left + width, top + height]


def _outline(region: Any) -> list[float] | None:
    """Return the corners of the box around polygons or run lengths; None if they are not valid, or have no points."""
    try:
        if isinstance(region, dict):
            return _corners(mask_box(decode_rle(region)))
        polygons = [region] if isinstance(region[0], int | float) else region
        points = np.concatenate([np.asarray(polygon, np.float64).reshape(-1, 2) for polygon in polygons])
        return [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]
    except (VitrailError, TypeError, ValueError, LookupError, OverflowError):
        return None


def _natural(value: int | str) -> tuple[bool, int, str]:
    return isinstance(value, str), value if isinstance(value, int) else 0, str(value)


def _store(index: CocoIndex, key: str) -> None:
    text = json.dumps([index.digest, [asdict(category) for category in index.categories], asdict(index.counts)])
    store_cached("coco", key, {
        "text": np.frombuffer(text.encode(), np.uint8), "names": index.names.buffer, "sizes": index.sizes,
        "starts": index.starts, "annotations": index.annotations, "boxes": index.boxes, "flags": index.flags,
    })  # fmt: skip


def _load(path: Path, key: str) -> CocoIndex | None:
    cached = load_cached("coco", key)
    if cached is None:
        return None
    try:
        digest, categories, counts = json.loads(cached["text"].tobytes())
        return CocoIndex(
            path, digest, tuple(Category(**each) for each in categories), CocoCounts(**counts), PackedStrings(cached["names"]),
            cached["sizes"], cached["starts"], cached["annotations"], cached["boxes"], cached["flags"],
        )  # fmt: skip
    except (KeyError, ValueError, TypeError):
        return None
