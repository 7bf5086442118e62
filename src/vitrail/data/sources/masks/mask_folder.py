"""Read a folder of images and masks as a dataset whose targets are the masks. h w of an image."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
from jaxtyping import Int16, Int32
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_keys import file_key
from vitrail.data.sources.dataset import (
    Dataset,
    ImageFileDataset,
    LeftOutFile,
    Progress,
    SourceSplits,
    evenly_spaced,
    read_image_file,
)
from vitrail.data.sources.image_folder import split_dataset
from vitrail.data.sources.masks.legend import find_legend
from vitrail.data.sources.masks.mask_classes import MaskClasses, UnnamedValues, find_classes
from vitrail.data.sources.masks.mask_file import as_its_image, colour_text, decode_mask, naming_mask
from vitrail.data.sources.masks.pair_masks import MaskPairs
from vitrail.data.sources.masks.scan_values import MAX_SCANNED, ValueScan, scan_values
from vitrail.data.sources.masks.voc import BORDER, MASK_LISTS, read_lists, voc_legend
from vitrail.data.sources.packed_strings import join_strings
from vitrail.errors import VitrailError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class MaskFileDataset(ImageFileDataset):
    """Image files below a folder, each with a file that is its mask, and optionally one that tells objects apart."""

    masks: Sequence[str]  # relative to the root
    classes: MaskClasses
    object_masks: Sequence[str] = ()  # relative to the root; empty: there are none

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.classes.names

    @property
    def has_mask_targets(self) -> bool:
        return True

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        path = self.root / self.masks[index]
        with naming_mask("mask", path):
            return self._upright(self.classes.encode(decode_mask(read_image_file(path))), index)

    def instances(self, index: int) -> Int32[ndarray, "h w"] | None:
        if not self.object_masks:
            return None
        path = self.root / self.object_masks[index]
        with naming_mask("mask of objects", path):
            objects = decode_mask(read_image_file(path))
            values = objects.indices()
            if values is None:
                raise BadImage("has colours, and the number of each object is needed; save it in grey or with a palette")
            return self._upright(np.where(values == BORDER, 0, values), index)

    def _upright(self, mask: ndarray, index: int) -> ndarray:
        try:
            content = self.read(index)
        except OSError:  # reading the image says so
            return mask
        return as_its_image(mask, content)

    def content_key(self) -> bytes:
        return super().content_key() + join_strings(self.masks) + self.classes.key()

    def cache_key(self) -> bytes:
        return super().cache_key() + self.masks_key(np.arange(len(self))) + self.classes.key()

    def masks_key(self, indices: ndarray) -> bytes:
        """Return bytes that change with any of these masks."""
        return masks_key(self.root, [self.masks[index] for index in indices.tolist()])


def masks_key(root: Path, masks: Sequence[str]) -> bytes:
    folder = root.absolute()
    return b"".join(file_key(folder / path) for path in masks)


def read_mask_folder(
    root: Path, pairs: MaskPairs, ignore: Sequence[str] = (), progress: Progress | None = None
) -> SourceSplits:
    """Return the splits of a folder, its images each with its mask; those without one are left out."""
    if not pairs.pairs:
        image = next(iter(pairs.unmasked.values()))[0]
        mask = next(file.location for file in pairs.left_out if file.reason != "has no mask")
        raise VitrailError(
            f"no image below {root} has a mask of its name, among them {image} and {mask}; name each mask as its image"
        )
    by_split, notes, left_out = _assign_splits(root, pairs)
    images, masks = ([pair[place] for split in by_split.values() for pair in split] for place in range(2))
    scan = scan_values(
        lambda index: read_image_file(root / masks[index]),
        len(masks),
        lambda chosen: masks_key(root, [masks[index] for index in chosen.tolist()]),
        progress,
    )
    folders = [root, *(root / folder for folder in _legend_folders(pairs))]
    stems = [PurePath(image).stem for image in images]
    legend = find_legend(folders) or voc_legend(scan, stems)
    try:
        classes, class_notes = find_classes(str(root), scan, legend, ignore)
    except UnnamedValues as error:
        raise VitrailError(f"{error}{_where_unnamed(error, scan, [root / path for path in masks])}") from None
    objects = [pairs.objects[image] for image in images if image in pairs.objects]
    if 0 < len(objects) < len(images):
        notes.append(f"objects are not told apart: {len(images) - len(objects):,} images have no mask of objects")
        objects = []
    labels = np.full(len(images), -1, np.int64)
    dataset = MaskFileDataset(root, images, labels, classes.names, masks, classes, objects)
    splits = split_dataset(dataset, {split: len(of_split) for split, of_split in by_split.items()})
    named = [LeftOutFile(str(root / file.location), file.reason, file.split) for file in left_out]
    return SourceSplits(
        splits, (*class_notes, *notes, *_left_out_notes(left_out)), Columns(masks=True, ignore=tuple(ignore)), tuple(named)
    )


def _where_unnamed(error: UnnamedValues, scan: ValueScan, masks: Sequence[Path]) -> str:
    """Return the rest of a sentence: where a value comes from that is one more than there are names."""
    if error.value is None:
        return ""
    if scan.num_lossy:
        return f"; {scan.num_lossy:,} masks are JPEG files, whose values are changed by compression: save masks as PNG"
    for index in evenly_spaced(len(masks), MAX_SCANNED).tolist():
        try:
            mask = decode_mask(read_image_file(masks[index]))
        except (OSError, VitrailError):  # it was not counted either
            continue
        values = mask.colours() if error.by_colour else mask.indices()
        if values is not None and (pixels := int((values == error.value).sum())):
            text = colour_text(error.value) if error.by_colour else error.value
            return f"; {text} is in {masks[index]}, {pixels:,} pixel{'' if pixels == 1 else 's'}"
    return ""


def images_of_mask_folder(root: Path, pairs: MaskPairs) -> dict[str, Dataset]:
    """Return the splits of a folder without its masks, for what needs no targets; images without a mask are among them."""
    by_split = pairs.images()
    if "" in by_split and len(by_split) > 1:  # those of no split are for training
        by_split["train"] = [*by_split.get("train", ()), *by_split.pop("")]
    paths = [path for split in by_split.values() for path in split]
    dataset = ImageFileDataset(root, paths, np.full(len(paths), -1, np.int64), ())
    return split_dataset(dataset, {split: len(of_split) for split, of_split in by_split.items()})


def _legend_folders(pairs: MaskPairs) -> Iterator[str]:
    """Yield the folders of the masks and those around them, the outermost first."""
    parents = {os.path.dirname(folder) for folder in pairs.folders}
    yield from sorted(parents - {""})
    yield from sorted(set(pairs.folders) - parents - {""})


Pairs = list[tuple[str, str]]


def _assign_splits(root: Path, pairs: MaskPairs) -> tuple[dict[str, Pairs], list[str], list[LeftOutFile]]:
    """Return the pairs by split, as the folders have them or the lists of Pascal VOC; notes; and what is left out."""
    by_split, left_out = dict(pairs.pairs), pairs.left_out
    notes = list[str]()
    listed = read_lists(root, MASK_LISTS) if set(by_split) == {""} else {}
    if listed:
        by_split, left_out, unlisted = _by_lists(listed, pairs)
        if not by_split:
            raise VitrailError(
                f"{root} has no image and mask that ImageSets/Segmentation lists; remove the lists, or correct them"
            )
        if unlisted:
            notes.append(f"{unlisted:,} images are in no list of ImageSets/Segmentation, and are not used")
    elif "" in by_split and len(by_split) > 1:
        notes.append(f"{len(by_split['']):,} images and masks outside the splits, skipped")
        del by_split[""]
    for split in SPLITS:
        without = [file for file in left_out if file.split == split and file.reason == "has no mask"]
        if without and split not in by_split:
            notes.append(f"{split} is left out: none of its {len(without):,} images has a mask")
            left_out = [file for file in left_out if file not in without]
    ordered = {split: sorted(by_split[split]) for split in ("", *SPLITS) if split in by_split}
    return ordered, notes, left_out


def _by_lists(listed: Mapping[str, str], pairs: MaskPairs) -> tuple[dict[str, Pairs], list[LeftOutFile], int]:
    """Return the pairs by the split that lists name, the listed files that lack one of the two, and the number of images in no
    list."""
    by_split: dict[str, Pairs] = {}
    unlisted = 0
    for image, mask in pairs.pairs[""]:
        split = listed.get(PurePath(image).stem)
        unlisted += split is None
        if split is not None:
            by_split.setdefault(split, []).append((image, mask))
    left_out = []
    for file in pairs.left_out:
        split = listed.get(PurePath(file.location).stem)
        unlisted += split is None and file.reason == "has no mask"
        if split is not None:
            left_out.append(LeftOutFile(file.location, file.reason, split))
    return by_split, left_out, unlisted


def _left_out_notes(left_out: Sequence[LeftOutFile]) -> Iterator[str]:
    for reason, singular, plural in (
        ("has no mask", "image has no mask and is left out", "images have no mask and are left out"),
        ("is a mask without an image", "mask has no image", "masks have no image"),
    ):
        files = [file.location for file in left_out if file.reason == reason]
        if files:
            more = f" and {len(files) - 3:,} more" if len(files) > 3 else ""
            yield f"{len(files):,} {singular if len(files) == 1 else plural}: {', '.join(files[:3])}{more}"
