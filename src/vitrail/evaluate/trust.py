"""Which explanation to trust on a model: deletion and insertion on any pictures, and the object's mask where it is known.

What is explained is what the model says. Random numbers and an edge detector are rows of the same table. b pictures, m
measures, y and x the grid of patches.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.loader import evaluation
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.panes import Panes
from vitrail.data.sources.source import Arrays, Part, Progress, Source
from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.evaluate.predict import preprocessing
from vitrail.explain.attention import at_rest, checked
from vitrail.explain.faithfulness import STEPS, edge_map, faithfulness, on_patches, overlap, pointing, random_map
from vitrail.explain.maps import METHODS, saliency
from vitrail.models.build import Model

BASELINES = ("random", "edges")
BATCH = 16


@dataclass(frozen=True)
class Score:
    """A mean over the pictures and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Trust:
    """``deletion`` is good where it is low, the others where they are high; none where no mask is known."""

    method: str
    deletion: Score
    insertion: Score
    pointing: Score | None = None
    overlap: Score | None = None


def trust(
    model: Model,
    source: Source,
    methods: Sequence[str] | None = None,
    limit: int | None = None,
    steps: int = STEPS,
    batch: int = BATCH,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Trust]:
    """The baselines first. ``limit``: only so many pictures, evenly spread."""
    vit = checked(model)
    chosen = some(source, limit)
    names = [*BASELINES, *(METHODS if methods is None else methods)]
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    done = 0
    for images, masks in _batches(model, chosen, batch, workers):
        with torch.no_grad(), at_rest(vit):
            said = vit(images).argmax(dim=1)
        grid = vit.grid(images)
        for name in names:
            match name:
                case "random":
                    found = random_map(images, grid, done)
                case "edges":
                    found = edge_map(images, grid)
                case _:
                    found = saliency(vit, images, name, said)
            rows[name].append(_measured(vit, images, found, said, masks, steps))
        done += images.shape[0]
        if progress:
            progress("measuring explanations", done, len(chosen))
    if not done:
        raise VitrailError("none of the pictures can be read; `vitrail data check` tells why")
    return [_summed_up(name, torch.cat(parts)) for name, parts in rows.items()]


def some(source: Source, limit: int | None) -> Source:
    if limit is None or limit >= len(source):
        return source
    return Part(source, np.linspace(0, len(source) - 1, limit).round().astype(np.int64))


def masks_of(source: Source, indices: Sequence[int], how: Preprocess) -> Float[Tensor, "b height width"] | None:
    """The object's share of every pixel that the model sees, where the source knows it."""
    places = [int(index) for index in indices]
    while isinstance(source, Part):
        places = [int(source.indices[place]) for place in places]
        source = source.whole
    if not isinstance(source, Panes):
        return None
    masks = np.stack([255 * source.scene(place).mask for place in places])[..., None]
    plain = Preprocess(how.image, how.crop, how.squash, how.interpolation, (0.0,), (1.0,))
    seen = Plain(plain)(
        Arrays(masks, np.zeros(len(masks), np.int64), ("",)), np.zeros(len(masks), np.int64), np.arange(len(masks))
    )
    return seen.images[:, 0].clamp(0, 1)


def _batches(model: Model, source: Source, batch: int, workers: int | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    how, weight = preprocessing(model), next(model.parameters())
    for part in evaluation(source, how, batch).batches(workers=workers):
        if part.images.shape[0]:
            yield part.images.to(weight.device, weight.dtype), masks_of(source, part.indices.tolist(), how)


def _measured(vit: Model, images: Tensor, maps: Tensor, said: Tensor, masks: Tensor | None, steps: int) -> Float[Tensor, "b m"]:
    found = faithfulness(vit, images, maps, said, steps)
    columns = [found.deleted.cpu(), found.inserted.cpu()]
    if masks is not None:
        objects = on_patches(masks, (maps.shape[1], maps.shape[2]))
        columns += [pointing(maps.cpu(), objects), overlap(maps.cpu(), objects)]
    return torch.stack(columns, dim=1)


def _summed_up(name: str, values: Float[Tensor, "b m"]) -> Trust:
    count = values.shape[0]
    spread = values.std(dim=0) / math.sqrt(count) if count > 1 else torch.full_like(values[0], math.nan)
    scores = [Score(mean, error) for mean, error in zip(values.mean(dim=0).tolist(), spread.tolist(), strict=True)]
    return Trust(name, *scores)
