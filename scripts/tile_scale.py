"""Mean IoU of large images as a whole and in tiles: ``python -m scripts.tile_scale RUN DATA``.

Two kinds of large images from the test images: a mosaic, whose objects have as many pixels as in training, and single images
enlarged four times, which show what training images show. 8-bit images without ignored pixels.
"""

import sys
from collections.abc import Iterable

import numpy as np
import torch
from numpy import ndarray
from PIL import Image

import vitrail
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset, evenly_spaced
from vitrail.inference.load import load_predictor
from vitrail.tasks.segmentation_metrics import confusion_matrix, iou_per_class

SIDE, ROWS, COLUMNS, ENLARGEMENT, NUM_ENLARGED = 256, 6, 8, 4, 8
Pair = tuple[ndarray, ndarray]  # pixels and mask


def read(dataset: Dataset, index: int) -> tuple[Image.Image, ndarray]:
    return dataset[index][0], dataset.mask(index)


def square(image: Image.Image, mask: ndarray) -> Pair:
    """Return the centre of an image and of its mask as a tile of the mosaic."""
    side = min(mask.shape)
    top, left = (mask.shape[0] - side) // 2, (mask.shape[1] - side) // 2
    part = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    rows = (np.arange(SIDE) * 2 + 1) * side // (2 * SIDE)
    return np.asarray(part), mask[top + rows][:, left + rows]


def mosaic(dataset: Dataset) -> Pair:
    squares = [square(*read(dataset, index)) for index in evenly_spaced(len(dataset), ROWS * COLUMNS).tolist()]
    rows = [squares[start : start + COLUMNS] for start in range(0, ROWS * COLUMNS, COLUMNS)]
    pixels, masks = ([np.concatenate([pair[part] for pair in row], axis=1) for row in rows] for part in (0, 1))
    return np.concatenate(pixels), np.concatenate(masks)


def enlarged(dataset: Dataset, index: int) -> Pair:
    image, mask = read(dataset, index)
    size = image.width * ENLARGEMENT, image.height * ENLARGEMENT
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC)), mask.repeat(ENLARGEMENT, 0).repeat(ENLARGEMENT, 1)


def mean_iou(pairs: Iterable[tuple[ndarray, ndarray]], classes: int) -> float:
    total = sum(confusion_matrix(torch.from_numpy(found), torch.from_numpy(true), classes) for found, true in pairs)
    assert isinstance(total, torch.Tensor)
    return float(iou_per_class(total).nanmean())


def main(run: str, data: str) -> None:
    predictor, dataset = load_predictor(run), vitrail.open_dataset(data, columns=Columns(masks=True)).test
    singles = [enlarged(dataset, index) for index in evenly_spaced(len(dataset), NUM_ENLARGED).tolist()]
    for name, images in (("mosaic", [mosaic(dataset)]), ("enlarged", singles)):
        for tile in ("none", "auto"):
            rows = vitrail.predict(predictor, [pixels for pixels, _ in images], tile=tile)
            score = mean_iou(((row.mask, mask) for row, (_, mask) in zip(rows, images, strict=True)), len(dataset.class_names))
            print(f"{name}, tile {tile}: mean IoU {score:.3f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
