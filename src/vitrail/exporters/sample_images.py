"""Images to verify or calibrate an exported file on: the caller's, else the model's own dataset, else synthetic ones.

n images, c channels, k classes; an image h high and w wide.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int, Int16, Num, UInt8
from numpy import ndarray
from torch import nn

from vitrail.data.decode import ImageSize
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.dataset import IGNORED, Dataset, DatasetSplits, Progress, Subset
from vitrail.data.sources.objects import Objects
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.data.transforms import to_pixels, upright_size
from vitrail.errors import VitrailError
from vitrail.evaluation.label_matching import match_targets, select_split
from vitrail.evaluation.leakage import open_like_training
from vitrail.inference.predictor import TorchPredictor, require_preprocess
from vitrail.models.build import get_encoder
from vitrail.tasks.registry import model_task

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
    masks: Callable[[int], Int16[ndarray, "h w"]] | None = None  # the mask of an image at its own size, if they are known
    objects: list[tuple[Objects, ImageSize]] | None = None  # of each image and its size, if they are known


def load_sample_images(
    model: nn.Module,
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
    encoder = get_encoder(model)
    macs = model_task(encoder).config.cost(encoder.config).macs
    num_images = count or int(min(max(MAX_MACS / macs, MIN_IMAGES), MAX_IMAGES))
    dataset = str(encoder.metadata.get("dataset", {}).get("name", "")) if data is None else data
    try:
        if dataset:
            return _from_dataset(model, dataset, num_images, progress, role)
        reason = "the model does not record its dataset"
    except (VitrailError, OSError) as error:
        if data is not None:
            raise
        reason = f"its own dataset is not available: {error}"
    return _synthesise(model, count or NUM_SYNTHETIC, reason)


def _from_dataset(model: nn.Module, name: str, count: int, progress: Progress | None, role: Role | None) -> SampleImages:
    try:
        predictor = TorchPredictor(model)
        labelled = predictor.task.config.labelled
        splits = open_like_training(name, predictor, progress, labelled)
        split, source = _select_split(splits, role, labelled)
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
    masks = None if matched is None else _mask_reader(matched, predictor.class_names, read_indices)
    objects = None if matched is None or not matched.has_box_targets else _read_objects(matched, read_indices)
    return SampleImages(np.stack(images), labels, f"{split} of {name}", label_sets=label_sets, masks=masks, objects=objects)


def _read_objects(source: Dataset, indices: list[int]) -> list[tuple[Objects, ImageSize]]:
    return [(source.objects(index), upright_size(source, index)) for index in indices]


def _mask_reader(source: Dataset, names: tuple[str, ...], indices: list[int]) -> Callable[[int], ndarray] | None:
    """Return a function from the number of an image to its mask; None unless the masks have the classes of the model."""
    if not source.has_mask_targets or not set(source.mask_names) <= set(names):
        return None
    numbers = np.array([*map(names.index, source.mask_names), IGNORED], np.int16)  # the last is that of index -1
    return lambda index: numbers[source.mask(indices[index])]


def _select_split(splits: DatasetSplits, role: Role | None, labelled: bool) -> tuple[str, Dataset]:
    split, source = select_split(splits, None, labelled)
    has_train = split != "all" and bool(splits.train.has_label.any() if labelled else len(splits.train))
    if role == "calibrate" and has_train:
        return select_split(splits, "train", labelled)
    return (split, source) if has_train else _reserve_calibration(split, source, role)


def _reserve_calibration(split: str, source: Dataset, role: Role | None) -> tuple[str, Dataset]:
    """Reserve every fourth image for calibration; a single image is used for both."""
    if role is None or len(source) < 2:
        return split, source
    fourth = np.arange(len(source)) % 4 == 1
    fraction, selected = ("a quarter", fourth) if role == "calibrate" else ("three quarters", ~fourth)
    return fraction if split == "all" else f"{fraction} of {split}", Subset(source, np.flatnonzero(selected))


def _match_targets(model: nn.Module, splits: DatasetSplits, source: Dataset) -> Dataset | None:
    """Return the dataset with the labels or boxes of the model, or its masks; None if it has other classes, or none of them."""
    predictor = TorchPredictor(model)
    if predictor.task.config.has_masks:
        return source
    has_labels = predictor.task.has_classes and predictor.config.classes > 0
    try:
        return match_targets(source, predictor, splits.name) if has_labels or predictor.task.config.has_boxes else None
    except VitrailError:
        return None


def _iter_images(model: nn.Module, source: Dataset, indices: ndarray) -> Iterator[tuple[int, ndarray]]:
    """Yield index and preprocessed image, skipping those that cannot be read."""
    preprocess = require_preprocess(get_encoder(model))
    for index in indices.tolist():
        try:
            yield index, to_pixels(source.read(index), preprocess)
        except (VitrailError, OSError):
            continue


def _synthesise(model: nn.Module, count: int, reason: str) -> SampleImages:
    """Generate synthetic images: windows of ``panes``, and noise, which covers what images do not; of bands, noise only."""
    preprocess, num_noise = require_preprocess(get_encoder(model)), count // 4
    if preprocess.raw:
        noise = np.random.default_rng(0).normal(
            preprocess.mean, preprocess.std, (count, *preprocess.image_size, preprocess.channels)
        )
        return SampleImages(noise.astype(np.float32), np.full(count, -1), f"noise, as {reason}", False)
    windows = build_panes("test", count - num_noise, (64, 64), 0)
    images = [to_pixels(windows.read(index), preprocess) for index in range(len(windows))]
    noise = np.random.default_rng(0).integers(0, 256, (num_noise, *preprocess.image_size, len(preprocess.mean)), np.uint8)
    return SampleImages(np.concatenate([np.stack(images), noise]), np.full(count, -1), f"synthetic images, as {reason}", False)
