"""Find images and their masks below a folder, by the names of folders and files alone.

``DIR/images`` and ``DIR/masks`` (or labels, annotations, gt, SegmentationClass ...), with folders for the splits inside, as in
``DIR/images/train``, or around them, as in ``DIR/train/images``; ``DIR/train`` and ``DIR/train_masks``; or images and masks in
one folder, told apart by ``_mask`` at the end of the name. A mask is named as its image, or with such an ending.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from vitrail.data.sources.dataset import LeftOutFile
from vitrail.data.sources.labels import SPLIT_ALIASES
from vitrail.data.sources.scan_folder import IMAGE_SUFFIXES, FolderListing
from vitrail.errors import VitrailError

Role = Literal["image", "mask", "object", ""]
IMAGE_WORDS = ("images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "rgb", "photos")
MASK_WORDS = (
    "masks", "mask", "labels", "label", "annotations", "annotation", "annots", "annot", "gt", "gts", "groundtruth", "gtfine",
    "segmentationclass", "segmentationclasses", "segmentationclasspng", "segmentation", "segmentations", "segmaps", "seg",
)  # fmt: skip
OBJECT_WORDS = ("segmentationobject", "segmentationobjectpng")
ROLES: dict[str, Role] = {
    **dict.fromkeys(IMAGE_WORDS, "image"), **dict.fromkeys(MASK_WORDS, "mask"), **dict.fromkeys(OBJECT_WORDS, "object")
}  # fmt: skip
MASK_ENDINGS = (  # the first is preferred if an image has several
    "gtfine_labeltrainids", "labeltrainids", "gtfine_labelids", "labelids", "mask", "masks", "seg", "segmentation", "gt",
    "label", "labels", "annotation", "semantic", "trimap", "l", "p", "gtfine_color", "color",
)  # fmt: skip
OTHER_ENDINGS = ("instanceids", "instancetrainids", ".overlay")  # of files that are no masks of classes
IMAGE_ENDINGS = ("leftimg8bit", "image", "img", "rgb", "sat")
PREFIXES = {"mask": ("mask", "label", "seg", "gt"), "image": ("image", "img")}


def _stem_pattern(endings: Sequence[str], prefixes: Sequence[str]) -> re.Pattern[str]:
    """Return what matches a name with one of the endings, the longest, or else one of the prefixes."""
    longest_first = "|".join(sorted(endings, key=len, reverse=True))
    return re.compile(rf"(?i)(?P<name>.+?)[_\-. ](?:{longest_first})|(?:{'|'.join(prefixes)})[_\-. ](?P<rest>.+)", re.DOTALL)


MASK_STEM = _stem_pattern(MASK_ENDINGS, PREFIXES["mask"])
IMAGE_STEM = _stem_pattern(IMAGE_ENDINGS, PREFIXES["image"])
SPLIT_AND_ROLE = re.compile(rf"({'|'.join(SPLIT_ALIASES)})[ _-]?({'|'.join((*IMAGE_WORDS, *MASK_WORDS))})")

MASK_FILE = re.compile(rf"(?i:(?:{'|'.join(SPLIT_ALIASES)})/)?[^/]*[_\-. ](?i:{'|'.join(MASK_ENDINGS[:-4])})\.\w+$")


@dataclass
class MaskPairs:
    """Images and their masks by split, as paths below the root; "" is the split of a folder without splits."""

    pairs: dict[str, list[tuple[str, str]]]
    objects: dict[str, str] = field(default_factory=dict)  # image: the mask of its objects
    left_out: list[LeftOutFile] = field(default_factory=list)
    unmasked: dict[str, list[str]] = field(default_factory=dict)  # split: images without a mask
    folders: list[str] = field(default_factory=list)  # where masks lie

    @property
    def masks(self) -> list[str]:
        return [mask for pairs in self.pairs.values() for _, mask in pairs]

    def images(self) -> dict[str, list[str]]:
        """Return all images by split, with a mask or without."""
        return {
            split: sorted([*(image for image, _ in self.pairs.get(split, ())), *self.unmasked.get(split, ())], key=os.fsencode)
            for split in (*self.pairs, *(split for split in self.unmasked if split not in self.pairs))
        }


@dataclass(frozen=True)
class _File:
    path: str
    role: Role
    split: str
    rest: str  # folders between the role and the file
    stem: str


def pair_masks(listing: FolderListing) -> MaskPairs | None:
    """Return the images and masks below a folder; None if it has no such layout."""
    if not _may_have_masks(listing):
        return None
    files = [_classify(path) for path in listing.paths]
    roles = {file.role for file in files}
    if "mask" not in roles:
        files = list(_roles_by_name(files))
    elif "image" not in roles:
        splits = {file.split for file in files if file.role == "mask"}
        files = [
            replace(file, role="image") if not file.role and not file.rest and file.split in splits else file for file in files
        ]
    images, masks = ([file for file in files if file.role == role] for role in ("image", "mask"))
    if not images or not masks:
        return None
    return _pair(images, masks, [file for file in files if file.role == "object"])


def empty_mask_folder(listing: FolderListing) -> str | None:
    """Return a folder for masks below a folder that has images, and nothing else; None if it has masks, or no such folder."""
    if {_classify(path).role for path in listing.paths} != {"image"}:
        return None
    folders = [folder for folder in listing.folders if folder.count("/") <= 1]
    return next((folder for folder in sorted(folders) if _classify(f"{folder}/x").role == "mask"), None)


def _may_have_masks(listing: FolderListing) -> bool:
    """Whether a folder is named as one of masks, or files outside of class folders are; a million images cost a second."""
    folders = [folder for folder in listing.folders if folder.count("/") <= 1]
    return any(_classify(f"{folder}/x").role == "mask" for folder in folders) or any(map(MASK_FILE.match, listing.paths))


def _classify(path: str) -> _File:
    """Return the role and the split that the folders of a path tell."""
    folder, _, name = path.rpartition("/")
    stem = os.path.splitext(name)[0]
    return _File(path, *_classify_folder(folder), os.path.splitext(stem)[0] if _has_image_ending(stem) else stem)


@lru_cache(4096)
def _classify_folder(path: str) -> tuple[Role, str, str]:
    """Return role and split of the files in a folder, and the folders below those that tell them."""
    folders = path.split("/") if path else []
    role: Role = ""
    split, used = "", 0
    for folder in folders[:2]:
        word = re.sub(r"[ _-]", "", folder.lower())
        if (compound := SPLIT_AND_ROLE.fullmatch(folder.lower())) is not None and not role and not split:
            split, role = SPLIT_ALIASES[compound[1]], ROLES[compound[2]]
        elif not split and word in SPLIT_ALIASES:
            split = SPLIT_ALIASES[word]
        elif not role and word in ROLES:
            role = ROLES[word]
        else:
            break
        used += 1
    return role, split, "/".join(folders[used:])


def _has_image_ending(stem: str) -> bool:
    """Whether a mask is named as its image with its ending: ``cat.jpg.png``."""
    return "." in stem and os.path.splitext(stem)[1].lower() in IMAGE_SUFFIXES


def _roles_by_name(files: Sequence[_File]) -> Iterator[_File]:
    """Yield images and masks that share a folder, if most images have a mask beside them."""
    stems = {(file.split, file.rest, file.stem) for file in files if not file.rest}
    masks = [
        file
        for file in files
        if not file.rest and any((file.split, file.rest, key) in stems for key in list(_keys(file.stem, MASK_STEM))[1:])
    ]
    paths = {mask.path for mask in masks}
    images = [file for file in files if file.path not in paths and not file.rest]
    if 2 * len(masks) >= len(images):
        yield from (replace(file, role="mask") for file in masks)
        yield from (replace(file, role="image") for file in images)


def _keys(stem: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the names by which a file is paired: its own, and without the ending or the prefix of its kind."""
    yield stem
    if (match := pattern.fullmatch(stem)) is not None:
        yield match["name"] or match["rest"]


def _pair(images: Sequence[_File], masks: Sequence[_File], objects: Sequence[_File]) -> MaskPairs:
    by_key: dict[str, list[_File]] = defaultdict(list)
    for image in images:
        for key in _keys(image.stem, IMAGE_STEM):
            by_key[key].append(image)
    found: dict[str, list[tuple[int, _File]]] = defaultdict(list)  # image: its masks, with the rank of their endings
    orphans = []
    for mask in masks:
        if mask.stem.lower().endswith(OTHER_ENDINGS):
            continue
        matched = _find_image(mask, by_key)
        if matched is None:
            orphans.append(mask)
        else:
            found[matched[1].path].append((matched[0], mask))
    of_objects = {matched[1].path: each.path for each in objects if (matched := _find_image(each, by_key)) is not None}
    result = MaskPairs({}, of_objects, folders=sorted({os.path.dirname(mask.path) for mask in masks}))
    splits = {mask.split for _, mask in (pair for pairs in found.values() for pair in pairs)}
    for image in images:
        split = image.split
        if image.path in found:
            mask = _best(image, found[image.path])
            split = split or mask.split
            result.pairs.setdefault(split, []).append((image.path, mask.path))
        else:
            result.unmasked.setdefault(split if split in splits or split else "", []).append(image.path)
            result.left_out.append(LeftOutFile(image.path, "has no mask", split))
    result.left_out += [LeftOutFile(mask.path, "is a mask without an image", mask.split) for mask in orphans]
    return result


def _find_image(mask: _File, by_key: dict[str, list[_File]]) -> tuple[int, _File] | None:
    """Return the image of a mask, and the rank of the ending by which it was found: the same name is best."""
    for rank, key in enumerate(_keys(mask.stem, MASK_STEM)):
        images = [image for image in by_key.get(key, ()) if not (image.split and mask.split) or image.split == mask.split]
        exact = [image for image in images if image.rest == mask.rest] or images
        if len({image.path for image in exact}) == 1:
            return rank and 1 + _rank_of_ending(mask.stem), exact[0]
    return None


def _rank_of_ending(stem: str) -> int:
    return next((rank for rank, ending in enumerate(MASK_ENDINGS) if stem.lower().endswith(ending)), len(MASK_ENDINGS))


def _best(image: _File, masks: Sequence[tuple[int, _File]]) -> _File:
    ranked = sorted(masks, key=lambda item: (item[1].rest != image.rest, item[0]))
    if len(ranked) > 1 and (ranked[0][0], ranked[0][1].rest) == (ranked[1][0], ranked[1][1].rest):
        raise VitrailError(f"{image.path} has two masks, {ranked[0][1].path} and {ranked[1][1].path}; keep one of them")
    return ranked[0][1]
