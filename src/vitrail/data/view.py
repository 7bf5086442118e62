"""Batch transforms: from the images of a dataset to a model's input, for evaluation or augmented. n images, c channels.

All randomness is drawn from (seed, epoch, index), so the result is a pure function of those and of the image file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.augment.chance import bits, uniforms
from vitrail.augment.colour import JITTER_SLOTS, OPERATION_SLOTS, apply_operation, draw_jitter, draw_operations, jitter
from vitrail.augment.erase import ERASE_SLOTS, draw_erase, erase
from vitrail.augment.geometry import CROP_SLOTS, crop_resize, draw_inception, draw_shift, resample, shift
from vitrail.augment.policy import Policy
from vitrail.data.decode import Size, as_picture, pixels
from vitrail.data.pack import Ragged
from vitrail.data.prepare import fitted, normalise
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.panes import Panes
from vitrail.data.sources.source import Arrays, Part, Source
from vitrail.errors import VitrailError

# First random slot of each operation. Slots do not overlap, so switching one on does not change another.
CROP, FLIP, ERASE, JITTER, OPERATIONS, NOISE = 0, 100, 200, 300, 400, 1000
SMALL = 64  # pixels per side up to which a whole batch at once is faster than image by image


@dataclass(frozen=True)
class Seen:
    """The readable images, in order; ``readable`` marks them among the indices, ``read_errors`` says why others failed."""

    images: Float[Tensor, "n c height width"]
    kept: ndarray
    problems: dict[int, str]


@runtime_checkable
class View(Protocol):
    """Reads and transforms the images of a batch."""

    @property
    def preprocess(self) -> Preprocess: ...

    def __call__(self, source: Source, epochs: ndarray, indices: ndarray) -> Seen: ...


@dataclass(frozen=True)
class Plain:
    """Preprocessing for evaluation, equal to the pixel to preprocessing each image alone."""

    preprocess: Preprocess

    def __call__(self, source: Source, epochs: Int[ndarray, " n"], indices: Int[ndarray, " n"]) -> Seen:
        how = self.preprocess
        stack = _stack(source, indices) if _shape(source) == (*how.image, len(how.mean)) and how.crop == 1 else None
        if stack is not None:
            images = rearrange(torch.from_numpy(stack), "n h w c -> n c h w").to(
                torch.float32, memory_format=torch.contiguous_format
            )
            return Seen(normalise(images, how), np.ones(len(indices), bool), {})
        return _one_by_one(source, indices, how, lambda _, content: _planes(fitted(as_picture(content), how)))


@dataclass(frozen=True)
class Augmented:
    """Preprocessing for training, with an augmentation policy."""

    preprocess: Preprocess
    policy: Policy
    seed: int = 0

    def __call__(self, source: Source, epochs: Int[ndarray, " n"], indices: Int[ndarray, " n"]) -> Seen:
        seen = self._together(source, epochs, indices) or self._apart(source, epochs, indices)
        policy = self.policy
        if policy.erase:
            rows = epochs[seen.kept], indices[seen.kept]
            boxes = draw_erase(
                uniforms(self.seed, *rows, ERASE_SLOTS, ERASE), policy.erase, policy.erase_area, policy.erase_ratio,
                self.preprocess.image,
            )  # fmt: skip
            erase(seen.images, boxes, bits(self.seed, *rows, NOISE)[:, 0] if policy.erase_noise else None)
        return seen

    def _together(self, source: Source, epochs: ndarray, indices: ndarray) -> Seen | None:
        """Transform small arrays of one size as a batch; None if the dataset or policy does not allow it."""
        policy, how = self.policy, self.preprocess
        shape = _shape(source)
        if shape is None or max(*shape[:2], *how.image) > SMALL or shape[2] != len(how.mean) or policy.layers or self._jitters:
            return None
        if policy.crop != "random-resized" and (shape[:2] != how.image or how.crop < 1):
            return None
        stack = _stack(source, indices)
        u, flips = uniforms(self.seed, epochs, indices, CROP_SLOTS, CROP), self._flips(epochs, indices)
        if policy.crop == "random-resized":
            sizes = np.broadcast_to(np.array(stack.shape[1:3]), (len(stack), 2))
            crops = draw_inception(u, sizes, policy.area, policy.ratio)
            images = resample(stack, crops, flips, how.image, policy.interpolation)
        else:
            pad = policy.pad if policy.crop == "pad" else 0
            moved = shift(stack, draw_shift(u, how.image, pad), flips, pad)
            images = rearrange(torch.from_numpy(moved), "n h w c -> n c h w").to(
                torch.float32, memory_format=torch.contiguous_format
            )
        return Seen(normalise(images, how), np.ones(len(indices), bool), {})

    def _apart(self, source: Source, epochs: ndarray, indices: ndarray) -> Seen:
        policy = self.policy
        key = self.seed, epochs, indices
        crop, flips = self._crops(source, epochs, indices), self._flips(epochs, indices)
        operations = draw_operations(
            uniforms(*key, OPERATION_SLOTS * policy.layers, OPERATIONS), policy.layers, policy.magnitude
        )
        factors, orders = draw_jitter(
            uniforms(*key, JITTER_SLOTS, JITTER), policy.brightness, policy.contrast, policy.saturation, policy.hue
        )

        def see(row: int, content: bytes | ndarray) -> Tensor:
            planes = self._cut(content, partial(crop, row), bool(flips[row]))
            if not (policy.layers or self._jitters):
                return planes
            picture = as_picture(rearrange(planes, "c h w -> h w c").contiguous().numpy())
            for chosen, strength, centre in zip(
                operations.chosen[row], operations.strengths[row], operations.centres[row], strict=True
            ):
                picture = apply_operation(picture, operations.names[chosen], float(strength), centre)
            if self._jitters:
                picture = jitter(picture, factors[row], orders[row])
            return _planes(np.array(picture).reshape(*self.preprocess.image, -1))

        return _one_by_one(source, indices, self.preprocess, see)

    @property
    def _jitters(self) -> bool:
        policy = self.policy
        return max(policy.brightness, policy.contrast, policy.saturation, policy.hue) > 0

    def _flips(self, epochs: ndarray, indices: ndarray) -> ndarray:
        return uniforms(self.seed, epochs, indices, 1, FLIP)[:, 0] < self.policy.flip

    def _crops(self, source: Source, epochs: ndarray, indices: ndarray) -> Callable[[int, Size], tuple[int, int, int, int]]:
        """Return a function from (row, image size) to the crop; all crops are drawn at once if the dataset knows the sizes."""
        policy, size = self.policy, self.preprocess.image
        u = uniforms(self.seed, epochs, indices, CROP_SLOTS, CROP)
        if policy.crop != "random-resized":
            drawn: ndarray | None = draw_shift(u, size, policy.pad if policy.crop == "pad" else 0)
        else:
            sizes = known_sizes(source, indices)
            drawn = None if sizes is None else draw_inception(u, sizes, policy.area, policy.ratio)

        def crop(row: int, of: Size) -> tuple[int, int, int, int]:
            found = drawn[row] if drawn is not None else None
            if found is None:
                found = draw_inception(u[row : row + 1], np.array([of]), policy.area, policy.ratio)[0]
            top, left, high, wide = found.tolist()
            return top, left, high, wide

        return crop

    def _cut(self, content: bytes | ndarray, crop: Callable[[Size], tuple[int, int, int, int]], flip: bool) -> Tensor:
        policy, how = self.policy, self.preprocess
        if policy.crop == "random-resized":
            picture, part = _part(content, crop, how)
            return crop_resize(_with_channels(picture, len(how.mean)), part, how.image, flip, policy.interpolation)
        pad = policy.pad if policy.crop == "pad" else 0
        whole = fitted(as_picture(content), how)
        return _planes(shift(whole[None], np.array([crop(how.image)]), np.array([flip]), pad)[0])


def _part(
    content: bytes | ndarray, crop: Callable[[Size], tuple[int, int, int, int]], how: Preprocess
) -> tuple[ndarray, tuple[int, int, int, int]]:
    """Return pixels and crop box. The crop is drawn at full size; a JPEG is decoded at no higher resolution than it needs."""
    if isinstance(content, ndarray):
        return content, crop((content.shape[0], content.shape[1]))
    drawn: list[tuple[int, ...]] = []

    def least(size: Size) -> Size:
        drawn.append((*size, *crop(size)))
        *_, high, wide = drawn[0]
        return -(-size[0] * how.image[0] // high), -(-size[1] * how.image[1] // wide)

    picture = pixels(content, least=least)
    full_high, full_wide, top, left, high, wide = drawn[0]
    down, across = picture.shape[0] / full_high, picture.shape[1] / full_wide
    if down == across == 1:
        return picture, (top, left, high, wide)
    low, early = round(top * down), round(left * across)
    return picture, (low, early, max(round((top + high) * down) - low, 1), max(round((left + wide) * across) - early, 1))


def known_sizes(source: Source, indices: ndarray) -> Int[ndarray, "n 2"] | None:
    """Return heights and widths if the dataset knows them without reading the images, else None."""
    if isinstance(source, Part):
        return known_sizes(source.whole, source.indices[indices])
    if isinstance(source, Arrays | Panes):
        size = source.images.shape[1:3] if isinstance(source, Arrays) else source.size
        return np.broadcast_to(np.array(size), (len(indices), 2))
    return source.shapes[indices, :2] if isinstance(source, Ragged) and source.shapes is not None else None


def _shape(source: Source) -> tuple[int, int, int] | None:
    """Return h w c of an in-memory array dataset, else None."""
    if isinstance(source, Part):
        return _shape(source.whole)
    if not isinstance(source, Arrays):
        return None
    _, high, wide, channels = source.images.shape
    return high, wide, channels


def _stack(source: Source, indices: ndarray) -> ndarray:
    """Return rows (n h w c) of an in-memory array dataset."""
    if isinstance(source, Part):
        return _stack(source.whole, source.indices[indices])
    assert isinstance(source, Arrays)
    return source.images[indices]


def _one_by_one(source: Source, indices: ndarray, how: Preprocess, see: Callable[[int, bytes | ndarray], Tensor]) -> Seen:
    images = torch.empty(len(indices), len(how.mean), *how.image)
    kept, problems, filled = np.zeros(len(indices), bool), {}, 0
    for row, index in enumerate(indices.tolist()):
        try:
            normalise(images[filled].copy_(see(row, source.content(index))), how)
        except (OSError, VitrailError) as error:
            problems[index] = f"{source.where(index)}: {str(error).removeprefix('the image ')}"
            continue
        kept[row] = True
        filled += 1
    return Seen(images[:filled], kept, problems)


def _with_channels(picture: ndarray, channels: int) -> ndarray:
    if picture.shape[2] == channels:
        return picture
    if picture.shape[2] == 1:
        return repeat(picture, "h w 1 -> h w c", c=channels)
    return np.asarray(Image.fromarray(picture).convert("L"))[..., None]


def _planes(picture: ndarray) -> Tensor:
    return rearrange(torch.from_numpy(picture), "h w c -> c h w")
