"""Snapshot of a Vision Transformer that is saved with the results of its run: the data of Figures 6, 7, 10 and 11.

b images, l layers, h heads, y and x a position in the grid and v and u another, n filters of c channels and p by q pixels.
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

PICTURES, SHOWN = 128, 6  # images whose attention is measured, as in the paper, and those that are drawn
TOGETHER = 16


@dataclass(frozen=True)
class Look:
    """Attention distances in pixels, patch filters, rollout maps with their images, position similarity, image width."""

    far: Float[ndarray, "l h"]
    filters: Float[ndarray, "n c p q"]
    maps: Float[ndarray, "b y x"]
    pictures: UInt8[ndarray, "b height width 3"]
    positions: Float[ndarray, "y x v u"] | None
    width: int

    @property
    def near(self) -> tuple[float, float] | None:
        """Mean position similarity of neighbours, and of all other pairs; None without positions."""
        if self.positions is None:
            return None
        apart, alike = _apart(self.positions.shape[:2]), self.positions.reshape(-1)
        return float(alike[apart == 1].mean()), float(alike[apart > 1].mean())

    @property
    def order(self) -> float | None:
        """Correlation of position similarity with negative distance; None without positions."""
        if self.positions is None:
            return None
        apart, alike = _apart(self.positions.shape[:2]), self.positions.reshape(-1)
        others = apart > 0
        return float(np.corrcoef(alike[others], -apart[others])[0, 1])

    @property
    def mirrored(self) -> float | None:
        """Mean similarity of a position and its left-right mirror image; None without positions or with one column."""
        if self.positions is None or self.positions.shape[1] < 2:
            return None
        wide = self.positions.shape[1]
        found = [self.positions[:, x, :, wide - 1 - x].diagonal().mean() for x in range(wide) if 2 * x != wide - 1]
        return float(np.mean(found))

    def kept(self) -> dict[str, Any]:
        """Return a JSON object of a few kilobytes."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, ndarray)}
        small = {name: value.astype(np.float16) if value.dtype.kind == "f" else value for name, value in arrays.items()}
        stream = io.BytesIO()
        np.savez_compressed(stream, allow_pickle=False, **small)
        return {"width": self.width, "arrays": base64.b64encode(stream.getvalue()).decode()}


def again(kept: dict[str, Any]) -> Look:
    """Restore a snapshot from JSON."""
    try:
        with np.load(io.BytesIO(base64.b64decode(kept["arrays"])), allow_pickle=False) as file:
            arrays = {
                name: file[name].astype(np.float32) if file[name].dtype.kind == "f" else file[name] for name in file.files
            }
        return Look(**{"positions": None, **arrays}, width=int(kept["width"]))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise VitrailError(f"the saved model snapshot is damaged ({error}); delete rows/, and it is computed again") from None


def looked(model: Model, data: Data, count: int = PICTURES) -> Look:
    """Take the snapshot of a model on images of the test split."""
    vit = checked(model.eval())
    source = next(split for split in (data.test, data.validation, data.train) if len(split))
    batches = list(_batches(vit, source, spread(len(source), count)))
    if not batches:
        raise VitrailError(f"{data.name} has no readable image; try --data fashion")
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
    """Return evenly spaced indices from the first to the last: folders are ordered by class."""
    return np.linspace(0, count - 1, min(count, some)).round().astype(np.int64)


def _batches(model: Model, source: Source, which: Int[ndarray, " n"]) -> Iterator[Float[Tensor, "b c height width"]]:
    view = Plain(preprocess_of(model))
    for first in range(0, len(which), TOGETHER):
        indices = which[first : first + TOGETHER]
        images = view(source, np.zeros_like(indices), indices).images
        if images.shape[0]:
            yield images


def _apart(grid: tuple[int, ...]) -> Float[ndarray, " pairs"]:
    """Return the Euclidean distance in patches of every pair of positions."""
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    spots = torch.stack([y.flatten(), x.flatten()], dim=1).double()
    return torch.cdist(spots, spots, compute_mode="donot_use_mm_for_euclid_dist").flatten().numpy()
