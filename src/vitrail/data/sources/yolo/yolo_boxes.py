"""Boxes of label files in YOLO's layout; of a polygon, the box around it.

An image without a label file has no object, as an image with an empty one, which is how YOLO takes it; a note says how many.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.sources.annotated_boxes import AnnotatedBoxes, Annotations, box_notes, with_annotations
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import ImageFileDataset, Progress, SourceSplits
from vitrail.data.sources.yolo.label_file import LabelLine, label_path, parse_labels, read_label_text
from vitrail.errors import VitrailError

CHUNK = 1000  # files between two progress reports


def read_yolo_boxes(
    path: Path, names: tuple[str, ...], images: Mapping[str, tuple[Path, list[str]]], progress: Progress | None = None
) -> SourceSplits:
    """Return the splits of a description, with boxes as targets. ``images``: folder and paths of each split."""
    splits, notes = dict[str, AnnotatedBoxes](), list[str]()
    for split, (root, paths) in images.items():
        dataset = ImageFileDataset(root, paths, np.full(len(paths), -1, np.int64), ())
        files = [label_path(root / image) for image in paths]
        found, errors = _read_files(files, len(names), progress)
        if all(lines is None for lines in found) and not errors:
            if split in ("train", ""):
                raise VitrailError(
                    f"{path} has no label file for any of {len(paths):,} images{f' in {split}' if split else ''}, first "
                    f"{files[0]}; write a line for each object: its class, and x y width height of its box"
                )
            notes.append(f"{split} is left out: none of its {len(paths):,} images has a label file, first {files[0]}")
            continue
        lines = [(index, line) for index, of_image in enumerate(found) for line in of_image or ()]
        annotations = Annotations(
            np.array([index for index, _ in lines], np.int64),
            np.array([line.box for _, line in lines], np.float64).reshape(-1, 4),
            np.array([line.number for _, line in lines], np.int64),
            None,
            numbers=np.array([line.line for _, line in lines], np.int64),
            errors=errors,
        )
        splits[split] = with_annotations(dataset, annotations, names, _object_names(files), progress)
        notes += _notes(split or path.name, paths, found, [line for _, line in lines], errors)
    return SourceSplits(dict(splits), (*box_notes(path, splits), *notes), Columns(boxes=True))


def _read_files(
    files: Sequence[Path], num_classes: int, progress: Progress | None
) -> tuple[list[list[LabelLine] | None], dict[int, str]]:
    """Return the lines of each file, None if it is not there, and why files cannot be used."""
    found, errors = list[list[LabelLine] | None](), dict[int, str]()
    for index, file in enumerate(files):
        lines: list[LabelLine] | None = None
        try:
            text = read_label_text(file)
            lines = None if text is None else parse_labels(text, file, num_classes)
        except VitrailError as error:
            errors[index] = str(error)
        found.append(lines)
        if progress and (index + 1) % CHUNK == 0:
            progress("reading labels", index + 1, len(files))
    return found, errors


def _object_names(files: Sequence[Path]) -> Callable[[int, int], str]:
    return lambda index, number: f"{files[index]}, line {number}"


def _notes(
    where: str,
    paths: Sequence[str],
    found: Sequence[list[LabelLine] | None],
    lines: Sequence[LabelLine],
    errors: Mapping[int, str],
) -> Iterator[str]:
    missing = [path for index, path in enumerate(paths) if found[index] is None and index not in errors]
    if missing:
        images = "1 image has" if len(missing) == 1 else f"{len(missing):,} images have"
        yield f"{where}: {images} no label file, taken for images without objects, as YOLO has it, first {missing[0]}"
    if empty := sum(lines == [] for lines in found):
        yield f"{where}: {empty:,} {'image has' if empty == 1 else 'images have'} an empty label file"
    if polygons := sum(not line.is_box for line in lines):
        yield f"{where}: {polygons:,} {'line has a polygon' if polygons == 1 else 'lines have polygons'}; boxes are around them"
