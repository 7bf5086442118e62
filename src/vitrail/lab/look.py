"""A look inside a Vision Transformer that can be kept with the numbers of its training: what Figures 6, 7, 10 and 11 draw.

b pictures, l layers, h heads, y and x a place in the grid and v and u another, n filters of c channels and p by q pixels.
"""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.source import Data, Source
from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.explain.attention import checked
from vitrail.explain.distance import heads
from vitrail.explain.maps import saliency
from vitrail.explain.similarity import filters, position_similarity
from vitrail.models.build import Model
from vitrail.report.pictures import restored

PICTURES, SHOWN = 128, 6  # whose attention is measured, as in the paper; whose maps are drawn
TOGETHER = 16


@dataclass(frozen=True)
class Look:
    """``far``: how far each head looks, in pixels; ``width``: of the picture."""

    far: Float[ndarray, "l h"]
    filters: Float[ndarray, "n c p q"]
    maps: Float[ndarray, "b y x"]
    pictures: UInt8[ndarray, "b height width 3"]
    positions: Float[ndarray, "y x v u"] | None
    width: int

    @property
    def near(self) -> tuple[float, float] | None:
        """How alike neighbours think they are, and all other places; none without positions."""
        if self.positions is None:
            return None
        apart, alike = _apart(self.positions.shape[:2]), self.positions.reshape(-1)
        return float(alike[apart == 1].mean()), float(alike[apart > 1].mean())

    @property
    def order(self) -> float | None:
        """The correlation of how alike two places are with how near they lie."""
        if self.positions is None:
            return None
        apart, alike = _apart(self.positions.shape[:2]), self.positions.reshape(-1)
        others = apart > 0
        return float(np.corrcoef(alike[others], -apart[others])[0, 1])

    @property
    def mirrored(self) -> float | None:
        """How alike a place and its mirror image are, left and right; none without positions or with one column."""
        if self.positions is None or self.positions.shape[1] < 2:
            return None
        wide = self.positions.shape[1]
        found = [self.positions[:, x, :, wide - 1 - x].diagonal().mean() for x in range(wide) if 2 * x != wide - 1]
        return float(np.mean(found))

    def kept(self) -> dict[str, Any]:
        """As text, a few kilobytes of it."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, ndarray)}
        small = {name: value.astype(np.float16) if value.dtype.kind == "f" else value for name, value in arrays.items()}
        stream = io.BytesIO()
        np.savez_compressed(stream, allow_pickle=False, **small)
        return {"width": self.width, "arrays": base64.b64encode(stream.getvalue()).decode()}


def again(kept: dict[str, Any]) -> Look:
    """What was kept."""
    try:
        with np.load(io.BytesIO(base64.b64decode(kept["arrays"])), allow_pickle=False) as file:
            arrays = {
                name: file[name].astype(np.float32) if file[name].dtype.kind == "f" else file[name] for name in file.files
            }
        return Look(**{"positions": None, **arrays}, width=int(kept["width"]))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise VitrailError(
            f"what was kept of a look inside is damaged ({error}); take rows/ away, and it is made anew"
        ) from None


def looked(model: Model, data: Data, count: int = PICTURES) -> Look:
    vit = checked(model.eval())
    source = next(split for split in (data.test, data.validation, data.train) if len(split))
    batches = list(_batches(vit, source, spread(len(source), count)))
    if not batches:
        raise VitrailError(f"{data.name} has no picture that can be read; try --data fashion")
    how, shown = preprocess_of(vit), next(_batches(vit, source, spread(len(source), SHOWN)), batches[0][:SHOWN])
    pictures = restored(shown.cpu().float(), how.mean, how.std)
    return Look(
        far=heads(vit, iter(batches)).distance.cpu().float().numpy(),
        filters=filters(vit).cpu().float().numpy(),
        maps=saliency(vit, shown, "rollout").cpu().float().numpy(),
        pictures=np.stack([np.asarray(picture.convert("RGB")) for picture in pictures]),
        positions=None if vit.config.position == "none" else position_similarity(vit).cpu().float().numpy(),
        width=vit.config.image[1],
    )


def spread(count: int, some: int) -> Int[ndarray, " n"]:
    """So many numbers from the first to the last: folders come class by class."""
    return np.linspace(0, count - 1, min(count, some)).round().astype(np.int64)


def _batches(model: Model, source: Source, which: Int[ndarray, " n"]) -> Iterator[Float[Tensor, "b c height width"]]:
    view = Plain(preprocess_of(model))
    for first in range(0, len(which), TOGETHER):
        indices = which[first : first + TOGETHER]
        images = view(source, np.zeros_like(indices), indices).images
        if images.shape[0]:
            yield images


def _apart(grid: tuple[int, ...]) -> Float[ndarray, " pairs"]:
    """Of every two places, how many places lie between, along a straight line."""
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    spots = torch.stack([y.flatten(), x.flatten()], dim=1).double()
    return torch.cdist(spots, spots, compute_mode="donot_use_mm_for_euclid_dist").flatten().numpy()
