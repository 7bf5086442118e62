"""Benchmark of explanation methods on a model: deletion and insertion on any images, and the object's mask where it is known.

The predicted class is explained. A random map and an edge detector are rows of the same table, and a method beats both
only if its paired difference is more than two standard errors. b images, m metrics, s steps, y and x the grid of patches.
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
from vitrail.models.vit import ViT

BASELINES = ("random", "edges")
MEASURES = {"deletion": -1, "insertion": 1, "pointing_game": 1, "mass_on_object": 1}  # -1: lower is better
CLEARLY, FEWEST = 2, 10  # standard errors, and images, below which no difference is significant
BATCH, MOST = 16, 2**30  # largest batch, and bytes of its attention and gradients


@dataclass(frozen=True)
class Score:
    """Mean over the images and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Trust:
    """Scores of one method. ``deletion`` is better low, the others high; None without masks."""

    method: str
    pictures: int
    deletion: Score
    insertion: Score
    pointing: Score | None
    overlap: Score | None
    better: tuple[str, ...]  # metrics on which it significantly beats both baselines
    deletion_curve: tuple[float, ...]  # means over the images, from no patch to all
    insertion_curve: tuple[float, ...]


def trust(
    model: Model,
    source: Source,
    methods: Sequence[str] | None = None,
    limit: int | None = None,
    steps: int = STEPS,
    batch: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Trust]:
    """Score the methods, baselines first. ``limit``: number of images, evenly spaced. ``batch_size`` None: as many as fit."""
    vit = checked(model)
    chosen = some(source, limit)
    names = [*BASELINES, *(METHODS if methods is None else methods)]
    rows: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}
    done = 0
    for images, masks in _batches(model, chosen, batch or fitting(vit), workers):
        with torch.no_grad(), at_rest(vit):
            logits = vit(images)
        if not logits.isfinite().all():
            raise VitrailError("the model's logits are not finite (NaN/Inf); its weights may be damaged")
        said = logits.argmax(dim=1)
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
            progress("scoring explanations", done, len(chosen))
    if not done:
        raise VitrailError("none of the images can be read; `vitrail data check` gives the reasons")
    values = {name: torch.cat([part for part, _ in parts]) for name, parts in rows.items()}
    curves = {name: torch.cat([part for _, part in parts]) for name, parts in rows.items()}
    return [_summed_up(name, values, curves[name]) for name in names]


def verdict(rows: Sequence[Trust]) -> str:
    """Return a sentence on which methods are faithful, the best first, and which are not."""
    ranked = sorted(rows, key=lambda row: (-len(row.better), row.deletion.mean - row.insertion.mean))
    good = [row for row in ranked if row.better]
    poor = [row.method for row in ranked if not row.better and row.method not in BASELINES]
    if rows and rows[0].pictures < FEWEST:
        return f"{rows[0].pictures} images are too few for a verdict; use at least {FEWEST}, better 100."
    if not good:
        return (
            f"None of {listing(poor)} is significantly better than a random map and an edge detector here: no map is faithful."
            if poor
            else ""
        )
    said = "; ".join(f"{row.method} on {listing(row.better)}" for row in good)
    rest = f"; {listing(poor)} on none" if poor else ""
    return f"Most faithful: {good[0].method}. Significantly better than a random map and an edge detector: {said}{rest}."


def listing(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def fitting(vit: ViT) -> int:
    """Return the largest batch whose attention in all layers, and its gradients, fits in memory."""
    c = vit.config
    return min(BATCH, max(MOST // (2 * 4 * c.depth * c.heads * c.tokens**2), 1))


def some(source: Source, limit: int | None) -> Source:
    if limit is None or limit >= len(source):
        return source
    return Part(source, np.linspace(0, len(source) - 1, limit).round().astype(np.int64))


def masks_of(source: Source, indices: Sequence[int], how: Preprocess) -> Float[Tensor, "b height width"] | None:
    """Return the object's fraction of every preprocessed pixel, or None if the dataset has no masks."""
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


def _measured(
    vit: Model, images: Tensor, maps: Tensor, said: Tensor, masks: Tensor | None, steps: int
) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b 2 s"]]:
    found = faithfulness(vit, images, maps, said, steps)
    columns = [found.deleted.cpu(), found.inserted.cpu()]
    if masks is not None:
        objects = on_patches(masks, (maps.shape[1], maps.shape[2]))
        columns += [pointing(maps.cpu().float(), objects), overlap(maps.cpu().float(), objects)]
    return torch.stack(columns, dim=1), torch.stack([found.deletion, found.insertion], dim=1).cpu()


def _summed_up(name: str, values: dict[str, Float[Tensor, "b m"]], curves: Float[Tensor, "b 2 s"]) -> Trust:
    own = values[name]
    scores = [Score(mean, error) for mean, error in zip(own.mean(dim=0).tolist(), _error(own).tolist(), strict=True)]
    gone, come = curves.mean(dim=0).tolist()
    known: list[Score | None] = [*scores, *[None] * (len(MEASURES) - len(scores))]
    better = _better(name, values)
    return Trust(name, own.shape[0], scores[0], scores[1], known[2], known[3], better, tuple(gone), tuple(come))


def _better(name: str, values: dict[str, Float[Tensor, "b m"]]) -> tuple[str, ...]:
    if name in BASELINES or values[name].shape[0] < FEWEST:
        return ()
    sign = torch.tensor([float(way) for way in MEASURES.values()])[: values[name].shape[1]]
    gains = [sign * (values[name] - values[other]) for other in BASELINES]
    clear = torch.stack([gain.mean(dim=0) > CLEARLY * _error(gain) for gain in gains]).all(dim=0)
    return tuple(measure for measure, sure in zip(MEASURES, clear.tolist(), strict=False) if sure)


def _error(values: Float[Tensor, "b m"]) -> Float[Tensor, " m"]:
    count = values.shape[0]
    return values.std(dim=0) / math.sqrt(count) if count > 1 else torch.full_like(values[0], math.nan)
