"""COCO files to test with: random polygons and run lengths of three categories, with crowds, gaps in the ids and overlaps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.mask_codes import decode_rle, encode_rle, encode_uncompressed_rle, mask_area, mask_box, rasterise

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 1, "name": "cat"}, {"id": 3, "name": "parrot"}]
CLASSES = ("background", "cat", "parrot", "dog")  # in the order of the ids
CLASS_OF_ID = {1: 1, 3: 2, 7: 3}


def random_annotations(rng: np.random.Generator, size: tuple[int, int], count: int) -> list[dict[str, Any]]:
    """Return annotations of an image, every fifth one a crowd."""
    height, width = size
    annotations = []
    for number in range(count):
        corners = rng.uniform(-2, np.array([width, height]) + 2, (rng.integers(3, 7), 2)).round(1).ravel().tolist()
        inside = rasterise([corners], size)
        kind = number % 3
        region = [corners] if kind == 0 else encode_rle(inside) if kind == 1 else encode_uncompressed_rle(inside)
        is_crowd = number % 5 == 4
        annotations.append(
            {
                "id": number + 1,
                "category_id": int(rng.choice(list(CLASS_OF_ID))),
                "segmentation": encode_uncompressed_rle(inside) if is_crowd else region,
                "area": float(mask_area(inside)),
                "bbox": mask_box(inside),
                "iscrowd": int(is_crowd),
            }
        )
    return annotations


def write_image(path: Path, size: tuple[int, int], seed: int, exif: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tags = Image.Exif()
    tags[0x0112] = exif
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path, exif=tags)


def write_coco(
    path: Path,
    folder: Path,
    annotations: dict[str, list[dict[str, Any]]],
    size: tuple[int, int],
    changes: dict[str, Any] | None = None,
) -> None:
    """Write a COCO file of these annotations by name of the image, with changes to its members, and the images."""
    listed, entries = [], list[dict[str, Any]]()
    for number, (name, of_image) in enumerate(annotations.items()):
        write_image(folder / name, size, number)
        listed.append({"id": 1000 + number, "file_name": name, "height": size[0], "width": size[1]})
        entries += [{**each, "image_id": 1000 + number} for each in of_image]
    content = {"info": {"year": 2026}, "images": listed, "annotations": entries, "categories": CATEGORIES}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | (changes or {}), ensure_ascii=False), encoding="utf-8")


def painted(annotations: list[dict[str, Any]], size: tuple[int, int]) -> ndarray:
    """Return the mask of annotations: crowds below, then the larger regions, then the smaller ones."""
    mask = np.zeros(size, np.int16)
    regions = []
    for annotation in annotations:
        region = annotation["segmentation"]
        inside = decode_rle(region) if isinstance(region, dict) else rasterise(region, size)
        regions.append((annotation["iscrowd"], inside, CLASS_OF_ID.get(annotation["category_id"], -1)))
    for is_crowd, inside, number in sorted(regions, key=lambda region: (-region[0], -region[1].sum())):
        mask[inside] = -1 if is_crowd else number
    return mask
