"""Do inputs of the image's own aspect ratio pay? ``python -m scripts.aspect_buckets WEIGHTS DATA``.

Each image goes to the grid of about 14x14 patches whose aspect ratio is nearest to its own, so that nothing is cropped and
little is distorted, at the cost of a square input; a linear probe on the frozen features is compared with those of the square
input by centre crop and by stretching. A batch has images of one grid, as NaViT and NaFlex bucket them; the model is unchanged.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
from numpy import ndarray

import vitrail
from vitrail.data.image_index import index_images
from vitrail.data.preprocess import Fit
from vitrail.data.sources.dataset import Dataset, DatasetSplits, select_images
from vitrail.evaluation.linear_probe import linear_label_probe, linear_probe
from vitrail.inference.features import Features

GRIDS = ((14, 14), (16, 12), (12, 16), (17, 11), (11, 17), (20, 10), (10, 20))  # at most 204 patches
PATCH = 16


def square_features(weights: str, dataset: Dataset, fit: Fit) -> ndarray:
    """Return the features by the preprocessing of the weights, cropped or stretched."""
    model = vitrail.load(weights)
    assert model.preprocess is not None
    model.preprocess = model.preprocess.with_fit(fit)
    return vitrail.embed(model, dataset).values


def bucket_features(weights: str, dataset: Dataset) -> ndarray:
    """Return the features of each image at the grid of its own aspect ratio."""
    height, width = index_images(dataset).sizes.T
    aspects = np.log([rows / columns for rows, columns in GRIDS])
    nearest = np.abs(np.log(height / width)[:, None] - aspects).argmin(1)
    values: ndarray | None = None
    for number, (rows, columns) in enumerate(GRIDS):
        if not len(members := np.flatnonzero(nearest == number)):
            continue
        model = vitrail.load(weights, image=(rows * PATCH, columns * PATCH))
        assert model.preprocess is not None
        model.preprocess = replace(model.preprocess.with_fit("stretch"))
        features = vitrail.embed(model, select_images(dataset, members)).values
        values = np.zeros((len(dataset), features.shape[1]), np.float32) if values is None else values
        values[members] = features
    assert values is not None
    return values


def score(values: list[ndarray], data: DatasetSplits) -> float:
    """Return the linear probe's test accuracy or, of several labels per image, mean average precision."""
    splits = list(data.splits.values())
    if data.train.label_sets is not None:
        targets = [torch.from_numpy(np.stack(list(part.targets))).float() for part in splits]
        return linear_label_probe(values, targets, has_test=True)[0].map
    train, validation, test = (
        Features(rows, part.labels, np.arange(len(rows))) for rows, part in zip(values, splits, strict=True)
    )
    return linear_probe(train, validation, test, len(data.class_names)).accuracy


def main(weights: str, source: str) -> None:
    data = vitrail.open_dataset(source)
    for fit in ("crop", "stretch"):
        values = [square_features(weights, part, fit) for part in data.splits.values()]
        print(f"14x14 patches, {fit}: {score(values, data):.4f}", flush=True)  # noqa: T201
    values = [bucket_features(weights, part) for part in data.splits.values()]
    print(f"grid of the image's aspect ratio: {score(values, data):.4f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
