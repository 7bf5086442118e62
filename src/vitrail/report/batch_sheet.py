"""A preprocessed and augmented batch of a dataset as a contact sheet, with some of its images by each fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int16
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.augment.crop import clip_boxes
from vitrail.augment.policy import Policy
from vitrail.data.band_statistics import find_bands, measure_bands
from vitrail.data.band_view import to_view
from vitrail.data.loader import Batch, Loader, build_eval_loader, build_train_loader
from vitrail.data.preprocess import Fit, Preprocess
from vitrail.data.sources.dataset import Dataset, DatasetSplits, label_name
from vitrail.data.sources.objects import Objects, build_objects
from vitrail.data.transforms import boxes_to_input, mask_to_input, upright_size
from vitrail.errors import VitrailError
from vitrail.report.box_view import box_caption, boxed_sheet
from vitrail.report.contact_sheet import contact_sheet, denormalise, stack_sheets
from vitrail.report.fit_sheet import draw_fits
from vitrail.report.mask_view import mask_caption, masked_sheet

DEFAULT_IMAGE_SIZE = (224, 224)
NUM_FITTED = 4  # images of the batch that are drawn by each fit


@dataclass(frozen=True)
class BatchSheet:
    sheet: Image.Image
    indices: list[int]
    labels: list[str]
    preprocess: Preprocess


def draw_batch(
    data: DatasetSplits,
    split: str,
    policy: Policy,
    image_size: tuple[int, int] | None,
    batch_size: int,
    step: int,
    seed: int,
    fit: Fit = "crop",
    bands: Sequence[int] = (),
) -> BatchSheet:
    """Draw a batch: train images augmented as in training, validation and test images as in evaluation, with their masks or
    boxes over them if these are the targets. Below it are its first images by each fit, unless they all have the input's
    aspect ratio.

    ``bands``: numbers of those to draw, from 1; by default the colours of 8-bit images, and the first three of other bands.
    """
    source = data.splits[split]
    if not len(source):
        available = [name for name, part in data.splits.items() if len(part)]
        raise VitrailError(f"{data.name} has no {split} split; try --split {available[0] if available else 'train'}")
    if split == "train" and (policy.mixup or policy.cutmix) and (source.has_mask_targets or source.has_box_targets):
        raise VitrailError("masks and boxes cannot be mixed; try --set augment.mixup=0 --set augment.cutmix=0")
    loader = replace(_build_loader(source, split, policy, image_size, batch_size, seed, fit), targets=_image_indices)
    batch = loader.batch(step)
    preprocess = loader.transform.preprocess
    images = denormalise(batch.images, preprocess, bands)
    if source.has_mask_targets:
        masks = _input_masks(source, batch, preprocess)
        labels = [mask_caption(source.class_names, mask) for mask in masks]
        sheet = masked_sheet(images, masks, labels, source.class_names)
    elif source.has_box_targets:
        objects = _input_objects(source, batch, preprocess)
        labels = [box_caption(source.class_names, each) for each in objects]
        sheet = boxed_sheet(images, objects, source.class_names)
    else:
        labels = _captions(source, batch)
        sheet = contact_sheet(images, labels)
    originals = [source.read(index) for index in batch.indices[:NUM_FITTED].tolist()]
    if not all(_has_aspect_ratio(content, preprocess.image_size) for content in originals):
        sheet = stack_sheets(sheet, draw_fits(originals, preprocess, bands))
    return BatchSheet(sheet, batch.indices.tolist(), labels, preprocess)


def _has_aspect_ratio(content: bytes | ndarray, image_size: tuple[int, int]) -> bool:
    image = to_view(content)
    return image.width * image_size[0] == image.height * image_size[1]


def _input_masks(source: Dataset, batch: Batch, preprocess: Preprocess) -> list[Int16[ndarray, "height width"]]:
    """Return the masks of a batch, which have been cropped and flipped as the images; an evaluation loader has none."""
    if batch.targets.ndim == 3:
        return list(batch.targets.numpy())
    return [mask_to_input(source.mask(index), preprocess) for index in batch.indices.tolist()]


def _input_objects(source: Dataset, batch: Batch, preprocess: Preprocess) -> list[Objects]:
    """Return the objects of a batch, which have been cropped and flipped as the images; an evaluation loader has none."""
    if batch.targets.ndim == 3:
        rows = [each[each[:, 4] >= 0] for each in batch.targets.double().numpy()]  # -1 fills up rows
        return [build_objects(each[:, :4], each[:, 4], each[:, 5] > 0) for each in rows]
    indices = batch.indices.tolist()
    objects = [source.objects(index) for index in indices]
    sizes = [upright_size(source, index) for index in indices]
    return [
        replace(each, boxes=clip_boxes(boxes_to_input(each.boxes, size, preprocess), preprocess.image_size))
        for each, size in zip(objects, sizes, strict=True)
    ]


def _build_loader(
    source: Dataset, split: str, policy: Policy, image_size: tuple[int, int] | None, batch_size: int, seed: int, fit: Fit
) -> Loader:
    """Build a loader without a model to set the image size: small images keep theirs, others get the default."""
    first, bands = source.read(0), find_bands(source)
    channels = 1 if not isinstance(first, bytes) and first.shape[2] == 1 else 3
    native_size = (
        (first.shape[0], first.shape[1]) if not isinstance(first, bytes) and max(first.shape[:2]) <= 96 else DEFAULT_IMAGE_SIZE
    )
    preprocess = Preprocess(image_size or native_size, fit=fit, mean=(0.5,) * channels, std=(0.5,) * channels)
    if bands is not None:
        measured = measure_bands(source, bands.bands)
        preprocess = replace(preprocess, mean=measured.mean, std=measured.std, raw=True)
    return (
        build_train_loader(source, preprocess, batch_size, policy, seed)
        if split == "train"
        else build_eval_loader(source, preprocess, batch_size)
    )


def _image_indices(source: Dataset, indices: ndarray) -> Tensor:
    """Return the indices in place of targets, so that whatever the targets are can be looked up for the captions."""
    return torch.from_numpy(indices)


def _captions(source: Dataset, batch: Batch) -> list[str]:
    if batch.mixed_targets is None or batch.lam is None:
        return [label_name(source, index) for index in batch.targets.tolist()]
    mixes = zip(batch.targets.tolist(), batch.mixed_targets.tolist(), batch.lam.tolist(), strict=True)
    return [_mixed_caption(label_name(source, own), label_name(source, other), lam) for own, other, lam in mixes]


def _mixed_caption(own: str, other: str, lam: float) -> str:
    """Return the caption of a mixed image, the larger part first; a part below half a percent is left out."""
    (larger, first), (smaller, second) = sorted([(lam, own), (1 - lam, other)], reverse=True)
    return first if smaller < 0.005 or first == second else f"{larger:.0%} {first}, {smaller:.0%} {second}"
