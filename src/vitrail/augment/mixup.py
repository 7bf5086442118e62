"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019). n images, k classes.

An image is mixed with the one before it in the batch, the first with the last. The partners are passed as a second batch,
because with several processes the first image's partner belongs to another process.
"""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import one_hot

ATTEMPTS = 24  # at an acceptance rate of 1/2, the lowest up to Beta(3, 3), one draw in 17 million accepts none
MIX_SLOTS = 4 + 2 * ATTEMPTS
BLEND_CHUNK_NUMEL = 2**18  # values blended at a time: a few images fit into the cache; a whole batch takes twice as long


@dataclass(frozen=True)
class Mix:
    """Mixing drawn for a batch: a rectangle with area is pasted from the partner; without one the images are blended."""

    lam: Float[ndarray, " n"]  # weight of the image itself, in its pixels and in its loss; 1: not mixed
    boxes: Int[ndarray, "n 4"]  # top, left, height, width

    @property
    def is_identity(self) -> bool:
        return bool((self.lam == 1).all())


def draw_mix(
    u: Float[ndarray, "n slots"],
    mixup: float,
    cutmix: float,
    probability: float,
    cutmix_prob: float,
    per_sample: bool,
    size: tuple[int, int],
) -> Mix:
    """Draw lambda from Beta(mixup, mixup) or Beta(cutmix, cutmix), 0: off; if both are on, CutMix has ``cutmix_prob``.

    Unless drawn per sample, the first row's numbers apply to all: every process passes the same first row.
    ``size`` is (height, width) of the images.
    """
    if not per_sample:
        u = np.broadcast_to(u[:1], u.shape)
    mixed = (u[:, 0] < probability) & bool(mixup or cutmix)
    cut = u[:, 1] < (cutmix_prob if mixup and cutmix else float(cutmix > 0))
    lam = np.where(mixed, _beta(np.where(cut, cutmix, mixup), u[:, 4:MIX_SLOTS]), 1.0)
    boxes = _boxes(np.where(cut, lam, 1.0), u[:, 2:4], size)
    # The image border clips some rectangles, so lambda is the fraction that remains, not the one drawn.
    remaining = 1 - boxes[:, 2] * boxes[:, 3] / (size[0] * size[1])
    return Mix(np.where(cut, remaining, lam), boxes)


def apply_mix(images: Float[Tensor, "n c h w"], partners: Float[Tensor, "n c h w"], mix: Mix) -> Float[Tensor, "n c h w"]:
    """Mix each image with its partner, in place."""
    if images.untyped_storage().data_ptr() == partners.untyped_storage().data_ptr():
        partners = partners.clone()  # one batch may be a view of the other, and partners must be unmixed
    cut = mix.boxes[:, 2] * mix.boxes[:, 3] > 0
    _blend(images, partners, np.where(cut, 1.0, mix.lam))
    _paste(images, partners, mix.boxes, cut)
    return images


def soft_targets(
    labels: Int[Tensor, " n"], partners: Int[Tensor, " n"], lam: Float[Tensor, " n"], classes: int
) -> Float[Tensor, "n k"]:
    """Return soft targets: ``lam`` for the image's own class and 1 - ``lam`` for its partner's.

    The same loss without the table is lam * loss(labels) + (1 - lam) * loss(partners).
    """
    lam = rearrange(lam, "n -> n 1")
    own, other = one_hot(labels, classes), one_hot(partners, classes)
    return (own * lam + other * (1 - lam)).float()


def _beta(a: ndarray, u: ndarray) -> ndarray:
    """Sample Beta(a, a) per row by rejection: the first accepted attempt, or the closest one if none is accepted.

    For a < 1 by Jöhnk (1964), in logarithms, because the powers underflow for a small ``a``. Its acceptance rate falls for
    a > 1; there a uniform proposal is accepted with its density relative to the maximum, which is at 1/2.
    """
    a = np.where(a > 0, a, 1.0)[:, None]
    u = u.reshape(len(u), ATTEMPTS, 2)
    with np.errstate(divide="ignore", invalid="ignore"):  # in the formula that the row does not use
        x, y = np.log1p(-u[..., 0]) / np.minimum(a, 1), np.log1p(-u[..., 1]) / np.minimum(a, 1)
        density = (a - 1) * np.log(4 * u[..., 0] * (1 - u[..., 0]))
    total = np.logaddexp(x, y)
    excess = np.where(a < 1, total, np.log1p(-u[..., 1]) - np.where(a > 1, density, 0))
    values = np.where(a < 1, np.exp(x - total), u[..., 0])
    accepted = (excess <= 0).any(axis=1)
    attempt = np.where(accepted, (excess <= 0).argmax(axis=1), excess.argmin(axis=1))
    return values[np.arange(len(u)), attempt]


def _boxes(lam: ndarray, u: ndarray, size: tuple[int, int]) -> ndarray:
    sides = np.array(size)
    centre = np.floor(u * sides)
    half = np.floor(0.5 * np.sqrt(1 - lam)[:, None] * sides)  # half a side: the rectangle has the image's aspect ratio
    low, high = np.maximum(centre - half, 0), np.minimum(centre + half, sides)
    return np.concatenate([low, high - low], axis=1).astype(np.int64)


def _blend(images: Tensor, partners: Tensor, lam: ndarray) -> None:
    dtype = torch.promote_types(images.dtype, torch.float32)  # lambda in half precision would be off by a thousandth
    weights = torch.from_numpy(np.stack([lam, 1 - lam])).to(images.device, dtype)
    own, other = rearrange(weights, "two n -> two n 1 1 1")
    step = max(1, BLEND_CHUNK_NUMEL // max(1, images.shape[1:].numel()))
    for start in range(0, len(images), step):
        chunk = slice(start, start + step)
        if (lam[chunk] < 1).any():
            images[chunk].mul_(own[chunk]).add_(partners[chunk] * other[chunk])


def _paste(images: Tensor, partners: Tensor, boxes: ndarray, cut: ndarray) -> None:
    if cut.any() and (boxes == boxes[0]).all():
        top, left, high, wide = boxes[0]
        images[..., top : top + high, left : left + wide] = partners[..., top : top + high, left : left + wide]
        return
    for i in np.flatnonzero(cut):
        top, left, high, wide = boxes[i]
        images[i, :, top : top + high, left : left + wide] = partners[i, :, top : top + high, left : left + wide]
