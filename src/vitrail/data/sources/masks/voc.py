"""Pascal VOC: its 21 classes of pixels and their palette, and the lists of its splits."""

import re
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.sources.masks.legend import Legend, LegendClass
from vitrail.data.sources.masks.scan_values import ValueScan
from vitrail.errors import VitrailError, first_line

CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
BORDER = 255
STEM = re.compile(r"(\d{4}_)?\d{6}")  # of its images: 2007_000027, or 000032
LISTS = {"train": "train", "val": "validation", "test": "test"}
MASK_LISTS, BOX_LISTS = Path("ImageSets", "Segmentation"), Path("ImageSets", "Main")


def palette_colour(index: int) -> int:
    """Return the colour of an index: its bits, three at a time, are the highest bits left of red, green and blue."""
    red = green = blue = 0
    for place in range(8):
        red |= (index >> (3 * place) & 1) << (7 - place)
        green |= (index >> (3 * place + 1) & 1) << (7 - place)
        blue |= (index >> (3 * place + 2) & 1) << (7 - place)
    return red << 16 | green << 8 | blue


def voc_legend(scan: ValueScan, stems: Sequence[str]) -> Legend | None:
    """Return the 21 classes if palette, values and names of the files are those of Pascal VOC."""
    if scan.palette is None or not all(map(STEM.fullmatch, stems)):
        return None
    fits = all(scan.palette[index] == palette_colour(index) for index in range(len(CLASSES)))
    if not fits or not all(value < len(CLASSES) or value == BORDER for value in scan.indices):
        return None
    return Legend("the palette of Pascal VOC", tuple(LegendClass(name, value) for value, name in enumerate(CLASSES)))


def read_lists(root: Path, lists: Path) -> dict[str, str]:
    """Return the split of each name that the lists of a folder have; empty if there are none. ``trainval`` stands for both if
    they are missing."""
    folder = root / lists
    listed = {name: _read_list(folder / f"{name}.txt") for name in (*LISTS, "trainval")}
    splits: dict[str, str] = {}
    for name, split in LISTS.items():
        for stem in listed[name] or ():
            if splits.setdefault(stem, split) != split:
                raise VitrailError(f"{folder} lists {stem} for {splits[stem]} and for {split}; keep it in one list")
    for stem in listed["trainval"] or ():
        splits.setdefault(stem, "train")
    return splits


def _read_list(path: Path) -> list[str] | None:
    try:
        return [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise VitrailError(f"{path} cannot be read: {first_line(error)}; write one name per line") from None
