"""Batch transforms: from the images of a dataset to a model's input, for evaluation or augmented. n images, c channels.

All randomness is drawn from (seed, epoch, index), so the result is a pure function of those and of the image file.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int, Int16, Num, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.augment.affine import warp_boxes, warp_mask
from vitrail.augment.counter_rng import random_bits, uniforms
from vitrail.augment.crop import (
    CROP_SLOTS,
    clip_boxes,
    crop_mask,
    crop_resize,
    crop_resize_batch,
    draw_letterbox,
    draw_padded_crop,
    draw_random_resized_crop,
    draw_scale_jitter,
    letterbox,
    move_boxes,
    padded_crop,
    padded_crop_resize,
)
from vitrail.augment.policy import Policy
from vitrail.augment.randaugment import (
    COLOUR_OPERATIONS,
    JITTER_SLOTS,
    OPERATION_SLOTS,
    RandAugmentOps,
    affine_of,
    apply_operation,
    colour_jitter,
    draw_colour_jitter,
    draw_randaugment,
)
from vitrail.augment.random_erasing import ERASE_SLOTS, draw_erase, erase
from vitrail.data.bad_image import BadImage
from vitrail.data.decode import ImageSize, decode_array, to_pil
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import IGNORED, Dataset
from vitrail.data.sources.image_like import describe_value
from vitrail.data.sources.objects import Objects, box_areas
from vitrail.data.transforms import boxes_to_input, decode_model_bands, mask_to_input, normalise, to_pixels, upright_size
from vitrail.errors import VitrailError

Box = tuple[int, int, int, int]  # top, left, height, width
ImageTransform = Callable[..., Any]  # from a PIL image, and a numpy generator if it takes a second argument, to an image
# First random slot of each operation. Slots do not overlap, so switching one on does not change another.
CROP_OFFSET, FLIP_OFFSET, ERASE_OFFSET, JITTER_OFFSET, RANDAUGMENT_OFFSET, NOISE_OFFSET = 0, 100, 200, 300, 400, 1000
MASK_CROP_OFFSET, MASK_CROP_ATTEMPTS = 3000, 10  # of crops that are drawn until they have several classes
MAX_BATCHED_SIDE = 64  # pixels per side up to which a whole batch at once is faster than image by image


class InvalidTransform(VitrailError):
    """A function of the user's own has returned something else than an image; the image itself is not at fault."""


@dataclass(frozen=True)
class TransformedBatch:
    """The readable images, in order; ``readable`` marks them among the indices, ``read_errors`` says why others failed."""

    images: Float[Tensor, "n c height width"] | UInt8[Tensor, "n c height width"]
    readable: ndarray
    read_errors: dict[int, str]
    # Masks or objects that are the targets, cropped and flipped as their images. An object is left, top, right, bottom, label,
    # and 1 if it is ignored; a label of -1 fills up the rows of images with fewer objects than others.
    targets: Int16[Tensor, "n height width"] | Float[Tensor, "n k 6"] | None = None


@runtime_checkable
class BatchTransform(Protocol):
    """Reads and transforms the images of a batch."""

    @property
    def preprocess(self) -> Preprocess: ...

    def __call__(self, dataset: Dataset, epochs: ndarray, indices: ndarray) -> TransformedBatch: ...


@dataclass(frozen=True)
class PixelTransform:
    """Preprocessing for evaluation without normalisation: the images that a predictor takes, uint8, or float32 for bands."""

    preprocess: Preprocess

    def __call__(self, dataset: Dataset, epochs: Int[ndarray, " n"], indices: Int[ndarray, " n"]) -> TransformedBatch:
        preprocess = self.preprocess
        is_exact = preprocess.resize_to == preprocess.image_size  # no resize, no crop
        if is_exact and dataset.array_shape == (*preprocess.image_size, len(preprocess.mean)):
            images = rearrange(torch.from_numpy(_as_pixels(dataset.stack(indices), preprocess)), "n h w c -> n c h w")
            return TransformedBatch(images, np.ones(len(indices), bool), {})
        return _transform_images(
            dataset,
            indices,
            preprocess,
            lambda _, content: _to_chw(to_pixels(content, preprocess)),
            normalised=True,
            dtype=getattr(torch, preprocess.pixel_type),
        )


@dataclass(frozen=True)
class EvalTransform:
    """Preprocessing for evaluation, equal to the pixel to preprocessing each image alone."""

    preprocess: Preprocess

    def __call__(self, dataset: Dataset, epochs: Int[ndarray, " n"], indices: Int[ndarray, " n"]) -> TransformedBatch:
        transformed = PixelTransform(self.preprocess)(dataset, epochs, indices)
        images = transformed.images.to(torch.float32, memory_format=torch.contiguous_format)
        return replace(transformed, images=normalise(images, self.preprocess))


@dataclass(frozen=True)
class TrainTransform:
    """Preprocessing for training, with an augmentation policy.

    With ``fit="pad"`` the random resized crop becomes its counterpart that loses nothing: the whole image is resized into a
    random box of the input, and the rest is padding.
    """

    preprocess: Preprocess
    policy: Policy
    seed: int = 0

    def __call__(self, dataset: Dataset, epochs: Int[ndarray, " n"], indices: Int[ndarray, " n"]) -> TransformedBatch:
        transformed = self._transform_batched(dataset, epochs, indices) or self._transform_each(dataset, epochs, indices)
        policy = self.policy
        if policy.erase_prob:
            rows = epochs[transformed.readable], indices[transformed.readable]
            u = uniforms(self.seed, *rows, ERASE_SLOTS, ERASE_OFFSET)
            boxes = draw_erase(u, policy.erase_prob, policy.erase_scale, policy.erase_ratio, self.preprocess.image_size)
            erase(transformed.images, boxes, random_bits(self.seed, *rows, NOISE_OFFSET)[:, 0] if policy.erase_noise else None)
        return transformed

    def _transform_batched(self, dataset: Dataset, epochs: ndarray, indices: ndarray) -> TransformedBatch | None:
        """Transform small arrays of one size as a batch; None if the dataset or policy does not allow it."""
        policy, preprocess = self.policy, self.preprocess
        shape = dataset.array_shape
        if (
            shape is None
            or max(*shape[:2], *preprocess.image_size) > MAX_BATCHED_SIDE
            or shape[2] != len(preprocess.mean)
            or policy.randaug_layers
            or self._jitters
            or dataset.has_mask_targets
            or dataset.has_box_targets
        ):
            return None
        if policy.crop == "scale-jitter" or (policy.crop == "random-resized" and preprocess.fit == "pad"):
            return None
        if policy.crop != "random-resized" and (shape[:2] != preprocess.image_size or preprocess.resize_to != shape[:2]):
            return None
        stack = _as_pixels(dataset.stack(indices), preprocess)
        u, flips = uniforms(self.seed, epochs, indices, CROP_SLOTS, CROP_OFFSET), self._flips(epochs, indices)
        if policy.crop == "random-resized":
            sizes = np.broadcast_to(np.array(stack.shape[1:3]), (len(stack), 2))
            crops = draw_random_resized_crop(u, sizes, policy.crop_scale, policy.crop_ratio)
            images = crop_resize_batch(stack, crops, flips, preprocess.image_size, policy.interpolation)
        else:
            pad = policy.pad if policy.crop == "pad" else 0
            shifted = padded_crop(stack, draw_padded_crop(u, preprocess.image_size, pad), flips, pad, preprocess.padding)
            images = rearrange(torch.from_numpy(shifted), "n h w c -> n c h w").to(
                torch.float32, memory_format=torch.contiguous_format
            )
        return TransformedBatch(normalise(images, preprocess), np.ones(len(indices), bool), {})

    def _transform_each(self, dataset: Dataset, epochs: ndarray, indices: ndarray) -> TransformedBatch:
        policy = self.policy
        key = self.seed, epochs, indices
        crop, flips = self._crop_function(dataset, epochs, indices), self._flips(epochs, indices)
        operations = draw_randaugment(
            uniforms(*key, OPERATION_SLOTS * policy.randaug_layers, RANDAUGMENT_OFFSET),
            policy.randaug_layers,
            policy.randaug_magnitude,
        )
        factors, orders = draw_colour_jitter(
            uniforms(*key, JITTER_SLOTS, JITTER_OFFSET), policy.brightness, policy.contrast, policy.saturation, policy.hue
        )

        masks = torch.empty(len(indices), *self.preprocess.image_size, dtype=torch.int16) if dataset.has_mask_targets else None
        objects: list[ndarray] = [np.zeros((0, 6), np.float32)] * len(indices)

        def transform(row: int, content: bytes | ndarray) -> Tensor:
            mask = None if masks is None else dataset.mask(int(indices[row]))
            draw_crop = partial(crop, row) if mask is None else self._crop_with_mask(int(epochs[row]), int(indices[row]), mask)
            chw = self._crop_and_flip(content, draw_crop, bool(flips[row]))
            if mask is not None:
                mask = self._crop_mask(mask, draw_crop, bool(flips[row]))
            if policy.randaug_layers or self._jitters:
                chw = self._change_colours_and_warp(chw, operations, factors, orders, row)
                mask = None if mask is None else self._warp_mask(mask, operations, row)
            if dataset.has_box_targets:
                index = int(indices[row])
                size = upright_size(dataset, index, content)
                moved = self._move_objects(dataset.objects(index), draw_crop, size, bool(flips[row]))
                objects[row] = self._warp_objects(moved, operations, row)
            if mask is not None and masks is not None:
                masks[row] = torch.from_numpy(np.ascontiguousarray(mask))
            return chw

        transformed = _transform_images(dataset, indices, self.preprocess, transform)
        if dataset.has_box_targets:
            return replace(transformed, targets=_pad_objects([objects[row] for row in np.flatnonzero(transformed.readable)]))
        return transformed if masks is None else replace(transformed, targets=masks[torch.from_numpy(transformed.readable)])

    def _change_colours_and_warp(
        self, chw: Tensor, operations: RandAugmentOps, factors: ndarray, orders: ndarray, row: int
    ) -> Tensor:
        """Apply the drawn operations of RandAugment, then colour jitter."""
        if self.preprocess.raw:
            return self._transform_bands(chw, operations, row)
        image = to_pil(rearrange(chw, "c h w -> h w c").contiguous().numpy())
        for operation, strength, centre in zip(
            operations.indices[row], operations.strengths[row], operations.centres[row], strict=True
        ):
            image = apply_operation(image, operations.names[operation], float(strength), centre)
        if self._jitters:
            image = colour_jitter(image, factors[row], orders[row])
        return _to_chw(np.array(image).reshape(*self.preprocess.image_size, -1))

    def _warp_mask(self, mask: Int16[ndarray, "height width"], operations: RandAugmentOps, row: int) -> ndarray:
        """Move a mask as the drawn geometric operations have moved its image."""
        height, width = mask.shape
        for operation, strength in zip(operations.indices[row], operations.strengths[row], strict=True):
            affine = affine_of(operations.names[operation], float(strength), width, height)
            if affine is not None:
                warped = warp_mask(Image.fromarray(mask.astype(np.int32)), affine, IGNORED)
                mask = np.asarray(warped).astype(np.int16)
        return mask

    def _move_objects(
        self, objects: Objects, draw_crop: Callable[[ImageSize], Box], size: ImageSize, flip: bool
    ) -> Float[ndarray, "k 6"]:
        """Crop, resize and flip the objects of an image as the image; what is no longer visible of a box is cut off."""
        policy, input_size = self.policy, self.preprocess.image_size
        boxes = clip_boxes(objects.boxes, size)
        if self._crops_image:
            crop = self._source_window(draw_crop(size), size)
            if flip and self._draws_letterbox:  # an image is flipped within its box
                boxes, flip = move_boxes(boxes, (0, 0, *size), size, flip=True), False
        else:
            boxes, crop = boxes_to_input(boxes, size, self.preprocess), draw_crop(input_size)
        areas = box_areas(move_boxes(boxes, crop, input_size))
        boxes = boxes if self._crops_image else clip_boxes(boxes, input_size)  # what evaluation would not show is not moved in
        visible = clip_boxes(move_boxes(boxes, crop, input_size, flip), input_size)
        fraction = box_areas(visible) / np.maximum(areas, 1e-9)
        rows = np.column_stack([visible, objects.labels, objects.crowd | (fraction < policy.min_visible)])
        return rows[fraction > 0].astype(np.float32)

    def _warp_objects(self, rows: Float[ndarray, "k 6"], operations: RandAugmentOps, row: int) -> Float[ndarray, "k 6"]:
        """Move objects as the drawn geometric operations have moved their image."""
        height, width = self.preprocess.image_size
        for operation, strength in zip(operations.indices[row], operations.strengths[row], strict=True):
            affine = affine_of(operations.names[operation], float(strength), width, height)
            if affine is not None:
                rows = np.column_stack([warp_boxes(rows[:, :4], affine, width, height), rows[:, 4:]])
        return rows[box_areas(rows[:, :4]) > 0]

    def _crop_with_mask(self, epoch: int, index: int, mask: Int16[ndarray, "h w"]) -> Callable[[ImageSize], Box]:
        """Return a function from the size of an image, which must be that of its mask, to the drawn crop: the first of ten that
        is not nearly all of one class."""
        policy, size = self.policy, self.preprocess.image_size
        attempts = MASK_CROP_ATTEMPTS if policy.max_class_fraction < 1 else 1
        u = uniforms(
            self.seed,
            np.array([epoch]),
            np.array([index]),
            attempts * CROP_SLOTS,
            CROP_OFFSET if attempts == 1 else MASK_CROP_OFFSET,
        )
        boxes = self._boxes(u.reshape(attempts, CROP_SLOTS), np.broadcast_to(np.array(mask.shape), (attempts, 2)))
        crops = [(int(top), int(left), int(height), int(width)) for top, left, height, width in boxes]
        windows = [self._source_window(each, (mask.shape[0], mask.shape[1])) for each in crops]
        chosen = next(
            (
                each
                for each, window in zip(crops[:-1], windows, strict=False)
                if self._has_classes(crop_mask(mask, window, size, False, IGNORED))
            ),
            crops[-1],
        )

        def crop(image_size: ImageSize) -> Box:
            expected = size if policy.crop in ("pad", "none") else mask.shape  # those are drawn for the resized image
            if tuple(image_size) != tuple(expected):
                height, width = image_size
                raise VitrailError(f"is {width} x {height} pixels, and its mask {mask.shape[1]} x {mask.shape[0]}")
            return chosen

        return crop

    def _has_classes(self, mask: Int16[ndarray, "height width"]) -> bool:
        """Whether no class has more of the counted pixels than the policy allows."""
        counts = np.bincount(mask[mask != IGNORED])
        return bool(counts.max(initial=0) <= self.policy.max_class_fraction * counts.sum())

    def _crop_mask(
        self, mask: Int16[ndarray, "h w"], draw_crop: Callable[[ImageSize], Box], flip: bool
    ) -> Int16[ndarray, "height width"]:
        """Crop, resize and flip a mask as its image."""
        size = self.preprocess.image_size
        if self._crops_image:
            box = self._source_window(draw_crop((mask.shape[0], mask.shape[1])), (mask.shape[0], mask.shape[1]))
            if flip and self._draws_letterbox:  # an image is flipped within its box
                return crop_mask(mask[:, ::-1], box, size, False, IGNORED)
            return crop_mask(mask, box, size, flip, IGNORED)
        resized = mask_to_input(mask, self.preprocess)
        drawn, flipped = np.array([draw_crop(size)]), np.array([flip])
        pad = self.policy.pad if self.policy.crop == "pad" else 0
        return padded_crop(resized[None, ..., None], drawn, flipped, pad, (IGNORED,))[0, ..., 0]

    def _source_window(self, box: Box, image_size: ImageSize) -> tuple[int | float, ...]:
        """Return the part of an image that becomes the input: the crop or, if the box is that of the padded image in the input,
        what lies in the input around it."""
        if not self._draws_letterbox:
            return box
        top, left, height, width = box
        y_scale, x_scale = image_size[0] / height, image_size[1] / width
        high, wide = self.preprocess.image_size
        return -top * y_scale, -left * x_scale, high * y_scale, wide * x_scale

    def _transform_bands(self, image: Float[Tensor, "c height width"], operations: RandAugmentOps, row: int) -> Tensor:
        """Apply the drawn geometric operations to each band; the others are for 8-bit colours, and leave it as it is."""
        planes = [Image.fromarray(plane) for plane in image.numpy()]
        for operation, strength, centre in zip(
            operations.indices[row], operations.strengths[row], operations.centres[row], strict=True
        ):
            if (name := operations.names[operation]) not in COLOUR_OPERATIONS:
                planes = [
                    apply_operation(plane, name, float(strength), centre, fill=mean)
                    for plane, mean in zip(planes, self.preprocess.mean, strict=True)
                ]
        return torch.from_numpy(np.stack([np.array(plane) for plane in planes]))

    @property
    def _crops_image(self) -> bool:
        """Whether crops are drawn from the whole image, and not from the input of evaluation."""
        return self.policy.crop in ("random-resized", "scale-jitter")

    @property
    def _draws_letterbox(self) -> bool:
        """Whether a box of the input is drawn for the whole image, in place of a crop."""
        return self.policy.crop == "random-resized" and self.preprocess.fit == "pad"

    @property
    def _jitters(self) -> bool:
        policy = self.policy
        return not self.preprocess.raw and max(policy.brightness, policy.contrast, policy.saturation, policy.hue) > 0

    def _flips(self, epochs: ndarray, indices: ndarray) -> ndarray:
        return uniforms(self.seed, epochs, indices, 1, FLIP_OFFSET)[:, 0] < self.policy.hflip

    def _crop_function(self, dataset: Dataset, epochs: ndarray, indices: ndarray) -> Callable[[int, ImageSize], Box]:
        """Return a function from (row, image size) to the crop; all crops are drawn at once if the dataset knows the sizes."""
        u = uniforms(self.seed, epochs, indices, CROP_SLOTS, CROP_OFFSET)
        if self.policy.crop in ("pad", "none"):
            drawn: ndarray | None = self._boxes(u, np.broadcast_to(np.array(self.preprocess.image_size), (len(u), 2)))
        else:
            sizes = dataset.sizes(indices)
            drawn = None if sizes is None else self._boxes(u, sizes)

        def crop(row: int, image_size: ImageSize) -> Box:
            drawn_crop = drawn[row] if drawn is not None else None
            if drawn_crop is None:
                drawn_crop = self._boxes(u[row : row + 1], np.array([image_size]))[0]
            top, left, height, width = drawn_crop.tolist()
            return top, left, height, width

        return crop

    def _boxes(self, u: ndarray, sizes: ndarray) -> Int[ndarray, "n 4"]:
        """Return the box that is cut out of each image or, with padding, that of the input which the image is resized into."""
        policy, size = self.policy, self.preprocess.image_size
        if policy.crop in ("pad", "none"):
            return draw_padded_crop(u, size, policy.pad if policy.crop == "pad" else 0)
        if policy.crop == "scale-jitter":
            return self._jitter_boxes(u, sizes)
        if self._draws_letterbox:
            return draw_letterbox(u, sizes, size, policy.crop_scale, policy.crop_ratio)
        return draw_random_resized_crop(u, sizes, policy.crop_scale, policy.crop_ratio)

    def _jitter_boxes(self, u: ndarray, sizes: ndarray) -> Int[ndarray, "n 4"]:
        """Return crops of the image or, with padding, of the image with its margins, around which there is padding as well."""
        if self.preprocess.fit != "pad":
            return draw_scale_jitter(u, sizes, self.policy.jitter_scale)
        size = np.array(self.preprocess.image_size)
        padded = np.rint(size * (sizes / size).max(1, keepdims=True)).astype(np.int64)
        boxes = draw_scale_jitter(u, padded, self.policy.jitter_scale)
        boxes[:, :2] -= (padded - sizes) // 2
        return boxes

    def _crop_and_flip(self, content: bytes | ndarray, crop: Callable[[ImageSize], Box], flip: bool) -> Tensor:
        policy, preprocess = self.policy, self.preprocess
        if self._draws_letterbox:
            image, box = _decode_for_box(decode_model_bands(content, preprocess) if preprocess.raw else content, crop)
            channels = _with_channels(image, len(preprocess.mean))
            return letterbox(channels, box, preprocess.image_size, flip, policy.interpolation, preprocess.pad_colour)
        if policy.crop == "random-resized":
            image, box = _decode_for_crop(content, crop, preprocess)
            return crop_resize(
                _with_channels(image, len(preprocess.mean)), box, preprocess.image_size, flip, policy.interpolation
            )
        if policy.crop == "scale-jitter":
            image, box = _decode_for_crop(content, crop, preprocess)
            channels = _with_channels(image, len(preprocess.mean))
            return padded_crop_resize(channels, box, preprocess.image_size, flip, policy.interpolation, preprocess.pad_colour)
        pad = policy.pad if policy.crop == "pad" else 0
        resized = to_pixels(content, preprocess)
        drawn, flipped = np.array([crop(preprocess.image_size)]), np.array([flip])
        return _to_chw(padded_crop(resized[None], drawn, flipped, pad, preprocess.padding)[0])


@dataclass(frozen=True)
class CustomTransform:
    """Preprocessing for training by a function of the user's own, in place of an augmentation policy.

    The function gets a PIL image and returns one, an array (h w c, uint8), or a tensor (c h w): uint8, or float and already
    normalised. If it takes a second argument, that is a numpy generator seeded by (seed, epoch, index), which makes a run
    reproducible.
    """

    preprocess: Preprocess
    function: ImageTransform
    seed: int = 0

    def __call__(self, dataset: Dataset, epochs: Int[ndarray, " n"], indices: Int[ndarray, " n"]) -> TransformedBatch:
        takes_generator = _num_arguments(self.function) > 1

        def transform(row: int, content: bytes | ndarray) -> Tensor:
            key = [self.seed, int(epochs[row]), int(indices[row])]
            image = decode_model_bands(content, self.preprocess) if self.preprocess.raw else to_pil(content)
            return self._to_input(self.function(image, *([np.random.default_rng(key)] if takes_generator else [])))

        return _transform_images(dataset, indices, self.preprocess, transform, normalised=True)

    def _to_input(self, image: Any) -> Float[Tensor, "c height width"]:
        """Return the model's input from what the function has returned."""
        preprocess = self.preprocess
        expected = (len(preprocess.mean), *preprocess.image_size)
        if isinstance(image, Tensor) and image.is_floating_point():
            if tuple(image.shape) != expected:
                raise InvalidTransform(
                    f"transform must return a normalised tensor of shape {expected}, got {describe_value(image)}; resize it, "
                    "or return a PIL image, which is resized"
                )
            return image.float()
        pixels = _to_bands(image, preprocess) if preprocess.raw else _to_pixels(image)
        return normalise(_to_chw(to_pixels(pixels, preprocess)).float(), preprocess)


def _to_pixels(image: Any) -> UInt8[ndarray, "h w c"]:
    """Return the pixels of an image that a function of the user's own has returned."""
    if isinstance(image, Image.Image):
        pixels = np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))
    elif isinstance(image, ndarray | Tensor) and str(image.dtype).removeprefix("torch.") == "uint8" and image.ndim in (2, 3):
        pixels = np.moveaxis(image.numpy(), 0, -1) if isinstance(image, Tensor) and image.ndim == 3 else np.asarray(image)
    else:
        raise InvalidTransform(
            "transform must return a PIL image, a uint8 array (h w c), or a tensor (c h w) that is uint8 or float and "
            f"normalised, got {describe_value(image)}; try the PIL image that it is given"
        )
    return np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[..., None])


def _to_bands(image: Any, preprocess: Preprocess) -> Num[ndarray, "h w c"]:
    """Return the bands that a function of the user's own has returned."""
    if isinstance(image, Tensor) and image.ndim == 3:
        image = np.moveaxis(image.numpy(), 0, -1)
    if not isinstance(image, ndarray) or image.ndim != 3 or image.shape[2] != preprocess.channels:
        raise InvalidTransform(
            f"transform must return the {preprocess.channels} bands as an array (h w c), or as a tensor (c h w) of integers or "
            f"of normalised floats, got {describe_value(image)}; try the array that it is given"
        )
    return image


def _num_arguments(function: ImageTransform) -> int:
    """Return how many positional arguments a function takes, without ``*args``: that of a torch module stands for the image."""
    kinds = [parameter.kind for parameter in signature(function).parameters.values()]
    return sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


def _decode_for_crop(content: bytes | ndarray, crop: Callable[[ImageSize], Box], preprocess: Preprocess) -> tuple[ndarray, Box]:
    """Return pixels and crop box. The crop is drawn at full size; a JPEG is decoded at no higher resolution than it needs."""
    if preprocess.raw:
        content = decode_model_bands(content, preprocess)
    if isinstance(content, ndarray):
        return content, crop((content.shape[0], content.shape[1]))
    drawn: list[tuple[int, ...]] = []

    def min_size(size: ImageSize) -> ImageSize:
        drawn.append((*size, *crop(size)))
        *_, height, width = drawn[0]
        return -(-size[0] * preprocess.image_size[0] // height), -(-size[1] * preprocess.image_size[1] // width)

    image = decode_array(content, min_size=min_size)
    full_height, full_width, top, left, height, width = drawn[0]
    y_scale, x_scale = image.shape[0] / full_height, image.shape[1] / full_width
    if y_scale == x_scale == 1:
        return image, (top, left, height, width)
    new_top, new_left = round(top * y_scale), round(left * x_scale)
    return image, (
        new_top,
        new_left,
        max(round((top + height) * y_scale) - new_top, 1),
        max(round((left + width) * x_scale) - new_left, 1),
    )


def _decode_for_box(content: bytes | ndarray, box: Callable[[ImageSize], Box]) -> tuple[ndarray, Box]:
    """Return pixels and the box they are resized into, drawn at full size; a JPEG is decoded at no higher resolution."""
    if isinstance(content, ndarray):
        return content, box((content.shape[0], content.shape[1]))
    drawn: list[Box] = []

    def min_size(size: ImageSize) -> ImageSize:
        drawn.append(box(size))
        *_, height, width = drawn[0]
        return height, width

    image = decode_array(content, min_size=min_size)
    return image, drawn[0]


def _transform_images(
    dataset: Dataset,
    indices: ndarray,
    preprocess: Preprocess,
    transform: Callable[[int, bytes | ndarray], Tensor],
    normalised: bool = False,
    dtype: torch.dtype = torch.float32,
) -> TransformedBatch:
    images = torch.empty(len(indices), len(preprocess.mean), *preprocess.image_size, dtype=dtype)
    readable, read_errors, filled = np.zeros(len(indices), bool), {}, 0
    for row, index in enumerate(indices.tolist()):
        try:
            image = images[filled].copy_(transform(row, dataset.read(index)))
            if not normalised:
                normalise(image, preprocess)
        except InvalidTransform:
            raise
        except (OSError, VitrailError) as error:
            read_errors[index] = f"{dataset.describe(index)}: {str(error).removeprefix('the image ')}"
            continue
        readable[row] = True
        filled += 1
    return TransformedBatch(images[:filled], readable, read_errors)


def _pad_objects(objects: list[ndarray]) -> Float[Tensor, "n k 6"]:
    """Return the objects of images as one tensor, with as many rows for each as the image with most objects has."""
    padded = torch.full((len(objects), max(map(len, objects), default=0), 6), -1.0)
    for rows, of_image in zip(padded, objects, strict=True):
        rows[: len(of_image)] = torch.from_numpy(of_image)
    return padded


def _as_pixels(images: Num[ndarray, "n h w c"], preprocess: Preprocess) -> Num[ndarray, "n h w c"]:
    """Return the images of a batch in the type that they are resized in; 8-bit ones are not copied."""
    if not preprocess.raw and images.dtype != np.uint8:
        raise BadImage(f"the images have {images.shape[3]} bands of {images.dtype}, and 8-bit RGB or grey is needed")
    return images.astype(preprocess.pixel_type, copy=False)


def _with_channels(image: ndarray, channels: int) -> ndarray:
    if image.shape[2] == channels:
        return image
    if image.shape[2] == 1:
        return repeat(image, "h w 1 -> h w c", c=channels)
    return np.asarray(Image.fromarray(image).convert("L"))[..., None]


def _to_chw(image: ndarray) -> Tensor:
    return rearrange(torch.from_numpy(image), "h w c -> c h w")
