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

from vitrail.data.batch_transforms import EvalTransform
from vitrail.data.sources.dataset import Dataset, DatasetSplits, evenly_spaced
from vitrail.errors import VitrailError
from vitrail.explain.attention import as_vit
from vitrail.explain.embeddings import patch_filters, position_kind, position_similarity
from vitrail.explain.head_statistics import head_statistics
from vitrail.explain.saliency import saliency
from vitrail.inference.predictor import require_preprocess
from vitrail.models.build import Model
from vitrail.report.contact_sheet import denormalise

MEASURED_IMAGES, DRAWN_IMAGES = 128, 6  # images whose attention is measured, as in the paper, and those that are drawn
BATCH_SIZE = 16


@dataclass(frozen=True)
class ModelSnapshot:
    """Attention distances in pixels, patch filters, rollout maps with their images, position similarity, image width."""

    attention_distance: Float[ndarray, "l h"]
    filters: Float[ndarray, "n c p q"]
    rollout: Float[ndarray, "b y x"]
    images: UInt8[ndarray, "b height width 3"]
    position_similarity: Float[ndarray, "y x v u"] | None
    width: int

    @property
    def neighbour_similarity(self) -> tuple[float, float] | None:
        """Mean position similarity of neighbours, and of all other pairs; None without positions."""
        if self.position_similarity is None:
            return None
        distances, similarities = _position_distances(self.position_similarity.shape[:2]), self.position_similarity.reshape(-1)
        return float(similarities[distances == 1].mean()), float(similarities[distances > 1].mean())

    @property
    def distance_correlation(self) -> float | None:
        """Correlation of position similarity with negative distance; None without positions."""
        if self.position_similarity is None:
            return None
        distances, similarities = _position_distances(self.position_similarity.shape[:2]), self.position_similarity.reshape(-1)
        others = distances > 0
        return float(np.corrcoef(similarities[others], -distances[others])[0, 1])

    @property
    def mirror_similarity(self) -> float | None:
        """Mean similarity of a position and its left-right mirror image; None without positions or with one column."""
        if self.position_similarity is None or self.position_similarity.shape[1] < 2:
            return None
        columns = self.position_similarity.shape[1]
        means = [
            self.position_similarity[:, x, :, columns - 1 - x].diagonal().mean() for x in range(columns) if 2 * x != columns - 1
        ]
        return float(np.mean(means))

    def to_json_dict(self) -> dict[str, Any]:
        """Return a JSON object of a few kilobytes."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, ndarray)}
        half_precision = {
            name: value.astype(np.float16) if value.dtype.kind == "f" else value for name, value in arrays.items()
        }
        stream = io.BytesIO()
        np.savez_compressed(stream, allow_pickle=False, **half_precision)
        return {"width": self.width, "arrays": base64.b64encode(stream.getvalue()).decode()}


def snapshot_from_json(content: dict[str, Any]) -> ModelSnapshot:
    """Restore a snapshot from JSON."""
    try:
        with np.load(io.BytesIO(base64.b64decode(content["arrays"])), allow_pickle=False) as file:
            arrays = {
                name: file[name].astype(np.float32) if file[name].dtype.kind == "f" else file[name] for name in file.files
            }
        return ModelSnapshot(**{"position_similarity": None, **arrays}, width=int(content["width"]))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise VitrailError(f"the saved model snapshot is damaged ({error}); delete rows/, and it is computed again") from None


def take_snapshot(model: Model, data: DatasetSplits, count: int = MEASURED_IMAGES) -> ModelSnapshot:
    """Take the snapshot of a model on images of the test split."""
    vit = as_vit(model.eval())
    source = next(split for split in (data.test, data.validation, data.train) if len(split))
    batches = list(_batches(vit, source, evenly_spaced(len(source), count)))  # folders are ordered by class
    if not batches:
        raise VitrailError(f"{data.name} has no readable image; try --data fashion")
    preprocess = require_preprocess(vit)
    drawn_batch = next(_batches(vit, source, evenly_spaced(len(source), DRAWN_IMAGES)), batches[0][:DRAWN_IMAGES])
    drawn_images = denormalise(drawn_batch.cpu().float(), preprocess)
    return ModelSnapshot(
        attention_distance=head_statistics(vit, iter(batches)).distance.cpu().float().numpy(),
        filters=patch_filters(vit).cpu().float().numpy(),
        rollout=saliency(vit, drawn_batch, "rollout").cpu().float().numpy(),
        images=np.stack([np.asarray(image.convert("RGB")) for image in drawn_images]),
        position_similarity=None if position_kind(vit.config) == "none" else position_similarity(vit).cpu().float().numpy(),
        width=vit.config.image[1],
    )


def _batches(model: Model, source: Dataset, indices: Int[ndarray, " n"]) -> Iterator[Float[Tensor, "b c height width"]]:
    transform = EvalTransform(require_preprocess(model))
    for first in range(0, len(indices), BATCH_SIZE):
        chunk = indices[first : first + BATCH_SIZE]
        images = transform(source, np.zeros_like(chunk), chunk).images
        if images.shape[0]:
            yield images


def _position_distances(grid: tuple[int, ...]) -> Float[ndarray, " pairs"]:
    """Return the Euclidean distance in patches of every pair of positions."""
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    positions = torch.stack([y.flatten(), x.flatten()], dim=1).double()
    return torch.cdist(positions, positions, compute_mode="donot_use_mm_for_euclid_dist").flatten().numpy()
