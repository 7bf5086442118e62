"""Find the COCO files of a dataset, the split of each, and the folder of its images, by the names that are usual.

``DIR/annotations/instances_train2017.json`` with the images in ``DIR/train2017`` or ``DIR/images/train2017``;
``DIR/train/_annotations.coco.json`` with the images beside it; or ``DIR/labels.json`` with the images in ``DIR/data``.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitrail.data.sources.coco.coco_index import is_coco
from vitrail.data.sources.dataset import evenly_spaced
from vitrail.data.sources.labels import SPLIT_ALIASES, canonical_split
from vitrail.errors import VitrailError

KINDS = ("instances", "panoptic", "stuff", "", "person_keypoints", "captions", "image_info")  # the first that is there is read
BOX_KINDS = ("instances", "", "person_keypoints")  # of those, which may have boxes
ANNOTATION_FOLDERS = ("annotations", "annotation", "labels")
IMAGE_FOLDERS = ("", "images", "data")
MAX_FILES = 32  # a folder of more JSON files has one for each image
NUM_SAMPLED = 20  # images that tell which folder they are in


@dataclass(frozen=True)
class CocoImageFolder:
    """The folder of the images of a COCO file, and whether they are in it without the folders that their names have."""

    path: Path
    by_last_name: bool

    def name_of(self, file_name: str) -> str:
        return _last_name(file_name) if self.by_last_name else file_name.replace("\\", "/")


def find_coco_files(root: Path) -> list[Path]:
    """Return the COCO files of a folder: in it, in its annotations, or in the folders of its splits."""
    folders = [root, *(root / name for name in ANNOTATION_FOLDERS), *(root / name for name in _split_folders(root))]
    found = []
    for folder in folders:
        files = sorted(path for path in folder.glob("*.json") if path.is_file() and not path.name.startswith("."))
        if len(files) <= MAX_FILES:
            found += [path for path in files if is_coco(path)]
    return found


def _split_folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.name.lower() in SPLIT_ALIASES and entry.is_dir())


def choose_files(root: Path, paths: Sequence[Path], order: Sequence[str] = KINDS) -> tuple[dict[str, Path], list[Path]]:
    """Return one file for each split, "" if there is a single one without, and those that are not used; of the kind that is
    the first in an order."""
    kinds = {path: next((kind for kind in KINDS if kind and path.stem.startswith(kind)), "") for path in paths}
    kind = next(kind for kind in (*order, *KINDS) if kind in kinds.values())
    by_split: dict[str, list[Path]] = {}
    for path in paths:
        if kinds[path] == kind:
            by_split.setdefault(split_of_file(path, root), []).append(path)
    if len(by_split) > 1:
        by_split.pop("", None)
    for split, of_split in by_split.items():
        if len(of_split) > 1:
            both = " and ".join(str(path.relative_to(root)) for path in of_split[:2])
            raise VitrailError(f"{root} has {both} for {split or 'all its images'}; name one of them instead of the folder")
    chosen = {split: of_split[0] for split, of_split in sorted(by_split.items())}
    return chosen, [path for path in paths if path not in chosen.values()]


def split_of_file(path: Path, root: Path) -> str:
    """Return the split in the name of a COCO file or of its folder; empty if there is none."""
    words = re.findall(r"[a-z]+", path.stem.lower())
    if path.parent != root:
        words.append(path.parent.name)
    return next((split for word in words if (split := canonical_split(word))), "")


def find_images(path: Path, names: Sequence[str]) -> CocoImageFolder:
    """Return where the images of a COCO file are: the folder that has most of a few of them."""
    sampled = [names[index] for index in evenly_spaced(len(names), NUM_SAMPLED).tolist()]
    best, most = None, 0
    for folder in dict.fromkeys(_candidates(path)):
        for by_last_name in (False, True):
            candidate = CocoImageFolder(folder, by_last_name)
            count = sum(is_below(candidate.name_of(name)) and (folder / candidate.name_of(name)).is_file() for name in sampled)
            if count > most:
                best, most = candidate, count
    if best is None:
        raise VitrailError(
            f"none of the {len(names):,} images of {path}, such as {sampled[0]}, is beside it or in a folder of its split; put "
            f"them into {path.parent / 'images'}"
        )
    return best


def _candidates(path: Path) -> Iterator[Path]:
    folder = path.parent
    root = folder.parent if folder.name.lower() in ANNOTATION_FOLDERS else folder
    words = [word for word in re.split(r"[_.]", path.stem) if word]  # train2017 of instances_train2017
    split = split_of_file(path, root)
    names = [*reversed(words), *(alias for alias, name in SPLIT_ALIASES.items() if name == split)]
    for base in dict.fromkeys((folder, root)):
        for images in IMAGE_FOLDERS:
            yield from (base / images / name for name in names)
            yield from (base / name / images for name in names)
        yield from (base / images for images in IMAGE_FOLDERS)


def is_below(name: str) -> bool:
    """Whether a path names a file below the folder to which it is relative."""
    return not name.startswith("/") and ".." not in PurePosixPath(name).parts


def _last_name(name: str) -> str:
    return re.split(r"[/\\]", name)[-1]
