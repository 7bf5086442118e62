"""Read Pascal VOC's layout as a dataset of boxes: images, and an XML file of annotations for each, of the same name.

``DIR/Annotations`` and ``DIR/JPEGImages`` with the splits in ``DIR/ImageSets/Main/train.txt``; both files beside each other; or
either of it in a folder for each split. The numbers of Pascal VOC count pixels from 1, and the last one is inside of the box.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.sources.annotated_boxes import AnnotatedBoxes, Annotations, box_notes, with_annotations
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import ImageFileDataset, LeftOutFile, Progress, SourceSplits
from vitrail.data.sources.labels import SPLIT_ALIASES, canonical_split, natural_sorted
from vitrail.data.sources.masks.voc import BOX_LISTS, read_lists
from vitrail.data.sources.scan_folder import FolderListing
from vitrail.data.sources.voc.annotation_file import VocFile, is_voc_file, read_voc_file
from vitrail.errors import VitrailError

ANNOTATION_FOLDERS = ("annotations", "annotation", "annots", "xml", "xmls", "labels")
IMAGE_FOLDERS = ("jpegimages", "images", "image", "imgs", "img")
ROLES = (*ANNOTATION_FOLDERS, *IMAGE_FOLDERS)
SPLITS = ("train", "validation", "test")
MAX_LOOKED_AT = 3  # files that tell whether XML in a folder is Pascal VOC's
MAX_DEPTH = 3  # folders below the root in which annotations are looked for
CHUNK = 1000  # files between two progress reports
NO_FILE, NO_ANNOTATIONS, NO_IMAGE = "does not exist", "has no annotations", "is of no image"
Key = tuple[str, ...]  # folders and name of a file without its role and extension, which an image and its annotations share
Pairs = dict[Key, tuple[str, str]]  # image and annotations, relative to the root


def has_voc_files(root: Path) -> bool:
    """Whether a folder has annotations of Pascal VOC: in it, in its folder of annotations, or in the folders of its splits."""
    return any(any(map(is_voc_file, paths[:MAX_LOOKED_AT])) for folder in _folders(root) if (paths := _xml_files(folder)))


def _folders(root: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """Yield the folders that may have annotations."""
    yield root
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    for name in names if depth else ():
        if name.lower() in (*ANNOTATION_FOLDERS, *SPLIT_ALIASES):
            yield from _folders(root / name, depth - 1)


def _xml_files(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.lower().endswith(".xml") and not entry.name.startswith(".")]
    return [folder / name for name in sorted(names)]


def read_voc(root: Path, listing: FolderListing, progress: Progress | None = None) -> SourceSplits:
    """Return the splits of a folder, with boxes as targets."""
    files = [path.relative_to(root).as_posix() for folder in _folders(root) for path in _xml_files(folder)]
    pairs, left_out = _pair(listing.paths, files)
    if not pairs:
        image = next(iter(listing.paths), "no image")
        raise VitrailError(
            f"no image below {root} has the name of one of its {len(files):,} XML files, such as {files[0]} for {image}; name "
            "annotations as their images"
        )
    by_split, listed_notes, not_there = _assign_splits(root, pairs)
    parts = {split: _read_part(root, of_split, progress) for split, of_split in by_split.items() if of_split}
    names = natural_sorted({each.name for part in parts.values() for file in part.files.values() for each in file.objects})
    if not names:
        error = next((error for part in parts.values() for error in part.errors.values()), None)
        reason = "have no object" if error is None else f"have no object that can be used; the first image {error}"
        raise VitrailError(f"the {len(pairs):,} annotations of {root} {reason}")
    from_one = _count_from_one(parts.values())
    splits = {split: _build(part, names, from_one, progress) for split, part in parts.items()}
    notes = [*box_notes(root, splits), *_notes(parts.values(), from_one), *listed_notes]
    left_out = [LeftOutFile(str(root / file.location), file.reason, file.split) for file in (*left_out, *not_there)]
    return SourceSplits(dict(splits), (*notes, *_left_out_notes(left_out)), Columns(boxes=True), tuple(left_out))


# Files ---------------------------------------------------------------------------------------------------------------


def _key(path: str) -> Key:
    *folders, name = PurePosixPath(path).with_suffix("").parts
    return (*(folder for folder in folders if folder.lower() not in ROLES), name)


def _split(key: Key) -> str:
    return canonical_split(key[0]) or "" if len(key) > 1 else ""


def _pair(images: Sequence[str], files: Sequence[str]) -> tuple[Pairs, list[LeftOutFile]]:
    """Return each image with its annotations, and what lacks the other."""
    by_key = dict[Key, str]()
    for file in files:
        by_key.setdefault(_key(file), file)
    pairs, without = Pairs(), list[str]()
    for image in images:
        if (key := _key(image)) in by_key and key not in pairs:
            pairs[key] = image, by_key[key]
        else:
            without.append(image)
    folders = {os.path.dirname(image) for image, _ in pairs.values()}
    left_out = [LeftOutFile(path, NO_ANNOTATIONS, _split(_key(path))) for path in without if os.path.dirname(path) in folders]
    return pairs, left_out + [LeftOutFile(file, NO_IMAGE, _split(key)) for key, file in by_key.items() if key not in pairs]


def _assign_splits(root: Path, pairs: Pairs) -> tuple[dict[str, list[tuple[str, str]]], list[str], list[LeftOutFile]]:
    """Return the pairs by split, as their folders have them or the lists of Pascal VOC; notes; and what the lists name and is
    not there."""
    splits = {key: _split(key) for key in pairs}
    notes, not_there = list[str](), list[LeftOutFile]()
    if not any(splits.values()) and (listed := read_lists(root, BOX_LISTS)):
        splits = {key: listed[key[-1]] for key in pairs if key[-1] in listed}
        if not splits:
            raise VitrailError(f"{root} has no image and annotation that {BOX_LISTS} lists; remove the lists, or correct them")
        if unlisted := len(pairs) - len(splits):
            notes.append(f"{unlisted:,} images are in no list of {BOX_LISTS}, and are not used")
        found = {key[-1] for key in splits}
        not_there = [LeftOutFile(name, NO_FILE, split) for name, split in listed.items() if name not in found]
    elif "" in splits.values() and any(splits.values()):
        notes.append(f"{list(splits.values()).count(''):,} images outside the splits, skipped")
        splits = {key: split for key, split in splits.items() if split}
    by_split = {split: [pairs[key] for key in splits if splits[key] == split] for split in ("", *SPLITS)}
    return by_split, notes, not_there


# Boxes ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    """The images of a split, and what their annotations say."""

    images: ImageFileDataset
    annotations: Sequence[str]  # relative to the root
    files: dict[int, VocFile]
    errors: dict[int, str]


def _read_part(root: Path, pairs: Sequence[tuple[str, str]], progress: Progress | None) -> _Part:
    pairs = sorted(pairs)
    files, errors = dict[int, VocFile](), dict[int, str]()
    for index, (_, annotations) in enumerate(pairs):
        try:
            files[index] = read_voc_file(root / annotations)
        except BadImage as error:
            errors[index] = str(error)
        if progress and (index + 1) % CHUNK == 0:
            progress("reading annotations", index + 1, len(pairs))
    images = ImageFileDataset(root, [image for image, _ in pairs], np.full(len(pairs), -1, np.int64), ())
    return _Part(images, [annotations for _, annotations in pairs], files, errors)


def _count_from_one(parts: Iterable[_Part]) -> bool:
    """Whether pixels are counted from 1, as in Pascal VOC: no box begins at 0."""
    return all(0 not in each.corners[:2] for part in parts for file in part.files.values() for each in file.objects)


def _build(part: _Part, names: tuple[str, ...], from_one: bool, progress: Progress | None) -> AnnotatedBoxes:
    objects = [(index, each) for index, file in part.files.items() for each in file.objects]
    number = {name: label for label, name in enumerate(names)}
    corners = np.array([each.corners for _, each in objects], np.float64).reshape(-1, 4)
    sizes = np.zeros((len(part.images), 2), np.int64)
    for index, file in part.files.items():
        sizes[index] = file.size
    annotations = Annotations(
        np.array([index for index, _ in objects], np.int64),
        _boxes(corners, from_one),
        np.array([number[each.name] for _, each in objects], np.int64),
        sizes,
        crowd=np.array([each.is_difficult for _, each in objects], bool),
        errors=part.errors,
    )
    places = [str(part.images.root / path) for path in part.annotations]
    return with_annotations(
        part.images, annotations, names, lambda index, number: f"{places[index]}, object {number}", progress
    )


def _boxes(corners: Float[ndarray, "m 4"], from_one: bool) -> Float[ndarray, "m 4"]:
    """Return boxes whose right and bottom are exclusive; one whose corners are the same is a click, and stays degenerate."""
    is_click = (corners[:, 2:] <= corners[:, :2]).any(axis=1, keepdims=True)
    return np.where(is_click, corners, corners - [from_one, from_one, 0, 0])


def _notes(parts: Iterable[_Part], from_one: bool) -> Iterator[str]:
    if from_one:
        yield "boxes count pixels from 1 and include the last, as Pascal VOC's: left and top are xmin - 1 and ymin - 1"
    else:
        yield "a box begins at 0, so boxes count pixels from 0: left, top, right and bottom are xmin, ymin, xmax and ymax"
    difficult = sum(each.is_difficult for part in parts for file in part.files.values() for each in file.objects)
    if difficult:
        objects = "1 object is" if difficult == 1 else f"{difficult:,} objects are"
        yield f"{objects} difficult: not learned, and a detection there counts neither as right nor as wrong"


def _left_out_notes(left_out: Sequence[LeftOutFile]) -> Iterator[str]:
    for reason, noun in ((NO_FILE, "name"), (NO_ANNOTATIONS, "image"), (NO_IMAGE, "annotation file")):
        if found := [file.location for file in left_out if file.reason == reason]:
            remark = f"in {BOX_LISTS} without an image and annotations" if reason == NO_FILE else f"that {reason}"
            yield f"{len(found):,} {noun if len(found) == 1 else noun + 's'} {remark}, left out, first {found[0]}"
