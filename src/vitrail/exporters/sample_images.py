"""Images to verify or calibrate an exported file on: the caller's, else the model's own dataset, else synthetic ones.

n images, c channels, k classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int, Num, UInt8
from numpy import ndarray

from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.dataset import Dataset, DatasetSplits, Progress, Subset
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.data.transforms import to_pixels
from vitrail.errors import VitrailError
from vitrail.evaluation.label_matching import match_targets, select_split
from vitrail.evaluation.leakage import open_like_training
from vitrail.inference.predictor import TorchPredictor, require_preprocess
from vitrail.models.build import Model
from vitrail.models.cost import cost

MAX_IMAGES, MIN_IMAGES = 250, 16
MAX_MACS = 2e12  # of a comparison with the default number of images: about a minute
NUM_SYNTHETIC = 32
Role = Literal["evaluate", "calibrate"]  # quantisation is never evaluated on the images it was calibrated on


@dataclass(frozen=True)
class SampleImages:
    """Preprocessed but not normalised images, with labels as the model's class indices, -1 if unknown."""

    images: Num[ndarray, "n height width c"]
    labels: Int[ndarray, " n"]
    description: str  # their origin
    is_real: bool = True
    label_sets: UInt8[ndarray, "n k"] | None = None  # ones and zeros, if images may have several labels and theirs are known


def load_sample_images(
    model: Model,
    data: str | None = None,
    count: int | None = None,
    progress: Progress | None = None,
    role: Role | None = None,
) -> SampleImages:
    """Load ``count`` images spread evenly over test, else validation, else all; None: as many as take about a minute, at most
    250. ``calibrate`` uses train, or a quarter if there is only one split, which ``evaluate`` leaves out.
    """
    if count is not None and count < 1:
        raise VitrailError(f"the number of images must be at least 1, got {count}; try 64")
    num_images = count or int(min(max(MAX_MACS / cost(model.config).macs, MIN_IMAGES), MAX_IMAGES))
    dataset = str(model.metadata.get("dataset", {}).get("name", "")) if data is None else data
    try:
        if dataset:
            return _from_dataset(model, dataset, num_images, progress, role)
        reason = "the model does not record its dataset"
    except (VitrailError, OSError) as error:
        if data is not None:
            raise
        reason = f"its own dataset is not available: {error}"
    return _synthesise(model, count or NUM_SYNTHETIC, reason)


def _from_dataset(model: Model, name: str, count: int, progress: Progress | None, role: Role | None) -> SampleImages:
    try:
        splits = open_like_training(name, TorchPredictor(model), progress)
        split, source = _select_split(splits, role)
        matched = _match_targets(model, splits, source)
    except VitrailError as error:  # a comparison needs no labels
        splits = open_dataset(name, labelled=False, progress=progress)
        everything = ConcatDataset([part for part in splits.splits.values() if len(part)])
        if not len(everything):
            raise error from None
        split, source = _reserve_calibration("all", everything, role)
        matched = None
    indices = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    read_indices, images = [], []
    for number, (index, image) in enumerate(_iter_images(model, source, indices), 1):
        read_indices.append(index)
        images.append(image)
        if progress is not None:
            progress("reading images", number, len(indices))
    if not images:
        raise VitrailError(f"no image of {name} can be read; `vitrail data check {name}` gives the reasons")
    labels = np.full(len(images), -1) if matched is None else matched.labels[read_indices]
    label_sets = None if matched is None or matched.label_sets is None else matched.label_sets.rows(np.array(read_indices))
    return SampleImages(np.stack(images), labels, f"{split} of {name}", label_sets=label_sets)


def _select_split(splits: DatasetSplits, role: Role | None) -> tuple[str, Dataset]:
    split, source = select_split(splits, None)
    has_train = split != "all" and splits.train.has_label.any()
    if role == "calibrate" and has_train:
        return select_split(splits, "train")
    return (split, source) if has_train else _reserve_calibration(split, source, role)


def _reserve_calibration(split: str, source: Dataset, role: Role | None) -> tuple[str, Dataset]:
    """Reserve every fourth image for calibration; a single image is used for both."""
    if role is None or len(source) < 2:
        return split, source
    fourth = np.arange(len(source)) % 4 == 1
    fraction, selected = ("a quarter", fourth) if role == "calibrate" else ("three quarters", ~fourth)
    return fraction if split == "all" else f"{fraction} of {split}", Subset(source, np.flatnonzero(selected))


def _match_targets(model: Model, splits: DatasetSplits, source: Dataset) -> Dataset | None:
    """Return the dataset with the labels of the model; None if it has other classes, or no labels."""
    predictor = TorchPredictor(model)
    try:
        return match_targets(source, predictor, splits.name) if predictor.task.has_classes and model.config.classes else None
    except VitrailError:
        return None


def _iter_images(model: Model, source: Dataset, indices: ndarray) -> Iterator[tuple[int, ndarray]]:
    """Yield index and preprocessed image, skipping those that cannot be read."""
    preprocess = require_preprocess(model)
    for index in indices.tolist():
        try:
            yield index, to_pixels(source.read(index), preprocess)
        except (VitrailError, OSError):
            continue


def _synthesise(model: Model, count: int, reason: str) -> SampleImages:
    """Generate synthetic images: windows of ``panes``, and noise, which covers what images do not; of bands, noise only."""
    preprocess, num_noise = require_preprocess(model), count // 4
    if preprocess.raw:
        noise = np.random.default_rng(0).normal(
            preprocess.mean, preprocess.std, (count, *preprocess.image_size, preprocess.channels)
        )
        return SampleImages(noise.astype(np.float32), np.full(count, -1), f"noise, as {reason}", False)
    windows = build_panes("test", count - num_noise, (64, 64), 0)
    images = [to_pixels(windows.read(index), preprocess) for index in range(len(windows))]
    noise = np.random.default_rng(0).integers(0, 256, (num_noise, *preprocess.image_size, len(preprocess.mean)), np.uint8)
    return SampleImages(np.concatenate([np.stack(images), noise]), np.full(count, -1), f"synthetic images, as {reason}", False)
