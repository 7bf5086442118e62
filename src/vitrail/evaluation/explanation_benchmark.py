"""Benchmark of explanation methods on a model: deletion and insertion on any images, object masks if there are some.

The predicted class is explained, of a segmentation model the region of the largest class that is predicted, and of a detection
model the box with the highest score, which is then the object that maps should point at. A random map and an edge detector are
rows of the same table, and a method beats both only if its paired difference is more than two standard errors. b images, m
metrics, r images that are explained, s steps, y and x the grid of patches.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.batch_transforms import EvalTransform
from vitrail.data.loader import build_eval_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import ArrayDataset, Dataset, Progress, Subset
from vitrail.errors import VitrailError
from vitrail.evaluation.box_selection import MIN_SHOWN_SCORE, best_boxes
from vitrail.evaluation.region_selection import largest_predicted_regions
from vitrail.explain.attention import as_vit, eval_mode
from vitrail.explain.box import BoxClassifier
from vitrail.explain.faithfulness import (
    DEFAULT_STEPS,
    edge_map,
    faithfulness,
    mass_on_object,
    pointing_game,
    pool_to_patches,
    random_map,
)
from vitrail.explain.region import RegionClassifier
from vitrail.explain.saliency import SALIENCY_METHODS, saliency
from vitrail.inference.predictor import TorchPredictor, require_classifier, require_preprocess
from vitrail.models.vit import ViT
from vitrail.tasks.registry import model_task

BASELINES = ("random", "edges")
METRIC_SIGNS = {"deletion": -1, "insertion": 1, "pointing_game": 1, "mass_on_object": 1}  # -1: lower is better
MIN_STANDARD_ERRORS, MIN_IMAGES = 2, 10  # standard errors, and images, below which no difference is significant
MAX_BATCH_SIZE, MAX_ATTENTION_BYTES = 16, 2**30  # largest batch, and bytes of its attention and gradients


@dataclass(frozen=True)
class MeanAndError:
    """Mean over the images and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class MethodScore:
    """Scores of one method. ``deletion`` is better low, the others high; None without masks."""

    method: str
    num_images: int
    deletion: MeanAndError
    insertion: MeanAndError
    pointing_game: MeanAndError | None
    mass_on_object: MeanAndError | None
    better_on: tuple[str, ...]  # metrics on which it significantly beats both baselines
    deletion_curve: tuple[float, ...]  # means over the images, from no patch to all
    insertion_curve: tuple[float, ...]


def benchmark_explanations(
    model: nn.Module,
    source: Dataset,
    methods: Sequence[str] | None = None,
    limit: int | None = None,
    steps: int = DEFAULT_STEPS,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    target: int | None = None,
) -> list[MethodScore]:
    """Score the methods, baselines first. ``limit``: number of images, evenly spaced. ``batch_size`` None: as many as fit.
    ``target``: the class whose maps and probabilities are measured; None: the most probable one of each image."""
    subset = evenly_spaced(source, limit)
    names = [*BASELINES, *(SALIENCY_METHODS if methods is None else methods)]
    rows: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}
    read = done = 0  # images
    for images, masks in _batches(model, subset, batch_size or max_batch_size(as_vit(model)), workers):
        read += images.shape[0]
        vit, classes, kept = _explained(model, images, target)
        images, masks = images[kept], _objects(vit, masks, kept)
        grid = vit.grid(images)
        for name in names if images.shape[0] else ():
            match name:
                case "random":
                    maps = random_map(images, grid, done)
                case "edges":
                    maps = edge_map(images, grid)
                case _:
                    maps = saliency(vit, images, name, classes)
            rows[name].append(_score_maps(vit, images, maps, classes, masks, steps))
        done += images.shape[0]
        if progress:
            progress("scoring explanations", read, len(subset))
    if not read:
        raise VitrailError("none of the images can be read; `vitrail data check` gives the reasons")
    if not done:
        raise VitrailError(_nothing_predicted(model, target))
    values = {name: torch.cat([part for part, _ in parts]) for name, parts in rows.items()}
    curves = {name: torch.cat([part for _, part in parts]) for name, parts in rows.items()}
    return [_summarise(name, values, curves[name]) for name in names]


def verdict(scores: Sequence[MethodScore]) -> str:
    """Return a sentence on which methods are faithful, the best first, and which are not."""
    ranked = sorted(scores, key=lambda row: (-len(row.better_on), row.deletion.mean - row.insertion.mean))
    significant = [row for row in ranked if row.better_on]
    insignificant = [row.method for row in ranked if not row.better_on and row.method not in BASELINES]
    if scores and scores[0].num_images < MIN_IMAGES:
        return f"{scores[0].num_images} images are too few for a verdict; use at least {MIN_IMAGES}, better 100."
    if not significant:
        return (
            f"None of {join_words(insignificant)} is significantly better than a random map and an edge "
            "detector here: no map is faithful."
            if insignificant
            else ""
        )
    metrics = {row.method: [name.replace("_", " ") for name in row.better_on] for row in significant}
    findings = "; ".join(f"{method} on {join_words(names)}" for method, names in metrics.items())
    rest = f"; {join_words(insignificant)} on none" if insignificant else ""
    best = significant[0].method
    return f"Most faithful: {best}. Significantly better than a random map and an edge detector: {findings}{rest}."


def join_words(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def max_batch_size(vit: ViT) -> int:
    """Return the largest batch whose attention in all layers, and its gradients, fits in memory."""
    c = vit.config
    return min(MAX_BATCH_SIZE, max(MAX_ATTENTION_BYTES // (2 * 4 * c.depth * c.heads * c.tokens**2), 1))


def evenly_spaced(source: Dataset, limit: int | None) -> Dataset:
    if limit is None or limit >= len(source):
        return source
    return Subset(source, np.linspace(0, len(source) - 1, limit).round().astype(np.int64))


def object_masks(source: Dataset, indices: Sequence[int], preprocess: Preprocess) -> Float[Tensor, "b height width"] | None:
    """Return the object's fraction of every preprocessed pixel, or None if the dataset has no masks."""
    known = [mask for index in indices if (mask := source.object_mask(int(index))) is not None]
    if len(known) < len(indices):
        return None
    masks = np.stack([255 * mask for mask in known])[..., None]
    plain = replace(preprocess, mean=(0.0,), std=(1.0,), raw=False)
    transformed = EvalTransform(plain)(
        ArrayDataset(masks, np.zeros(len(masks), np.int64), ("",)), np.zeros(len(masks), np.int64), np.arange(len(masks))
    )
    return transformed.images[:, 0].clamp(0, 1)


def _explained(model: Any, images: Tensor, target: int | None) -> tuple[ViT, Tensor, Tensor]:
    """Return the classifier whose maps are scored, which images it can explain, and the class of each of them."""
    if model_task(model).has_pixel_classes:
        return largest_predicted_regions(model, images, target)
    if model_task(model).config.has_boxes:
        return best_boxes(model, images, target)
    vit = as_vit(model)
    with torch.no_grad(), eval_mode(vit):
        logits = vit(images)
    if not logits.isfinite().all():
        raise VitrailError("the model's logits are not finite (NaN/Inf); its weights may be damaged")
    classes = logits.argmax(dim=1) if target is None else torch.full_like(logits[:, 0], target, dtype=torch.long)
    return vit, classes, torch.ones_like(classes, dtype=torch.bool)


def _objects(vit: ViT, masks: Float[Tensor, "b height width"] | None, kept: Tensor) -> Float[Tensor, "r height width"] | None:
    """Return where the explained object of each image is that is kept; of a region, nobody says where its object is."""
    if isinstance(vit, BoxClassifier):
        return vit.box_masks(vit.input_size).cpu()
    return None if masks is None or isinstance(vit, RegionClassifier) else masks[kept]


def _nothing_predicted(model: nn.Module, target: int | None) -> str:
    if not model_task(model).config.has_boxes:
        return "no pixel of these images is predicted to be of this class; name another with --class"
    what = "nothing" if target is None else f"no {model_task(model).class_names[target]}"
    return f"{what} is detected in these images with a score of at least {MIN_SHOWN_SCORE}; name other images, or train longer"


def _batches(model: nn.Module, source: Dataset, batch_size: int, workers: int | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    task = model_task(model)
    if not (task.has_pixel_classes or task.config.has_boxes):
        require_classifier(TorchPredictor(model))
    preprocess, weight = require_preprocess(model), next(model.parameters())
    for part in build_eval_loader(source, preprocess, batch_size).batches(workers=workers):
        if part.images.shape[0]:
            yield part.images.to(weight.device, weight.dtype), object_masks(source, part.indices.tolist(), preprocess)


def _score_maps(
    vit: ViT, images: Tensor, maps: Tensor, classes: Tensor, masks: Tensor | None, steps: int
) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b 2 s"]]:
    result = faithfulness(vit, images, maps, classes, steps)
    columns = [result.deletion_auc.cpu(), result.insertion_auc.cpu()]
    if masks is not None:
        objects = pool_to_patches(masks, (maps.shape[1], maps.shape[2]))
        columns += [pointing_game(maps.cpu().float(), objects), mass_on_object(maps.cpu().float(), objects)]
    return torch.stack(columns, dim=1), torch.stack([result.deletion_curve, result.insertion_curve], dim=1).cpu()


def _summarise(name: str, values: dict[str, Float[Tensor, "b m"]], curves: Float[Tensor, "b 2 s"]) -> MethodScore:
    own_values = values[name]
    scores = [
        MeanAndError(mean, error)
        for mean, error in zip(own_values.mean(dim=0).tolist(), _standard_error(own_values).tolist(), strict=True)
    ]
    deletion_curve, insertion_curve = curves.mean(dim=0).tolist()
    padded: list[MeanAndError | None] = [*scores, *[None] * (len(METRIC_SIGNS) - len(scores))]
    better = _better_than_baselines(name, values)
    return MethodScore(
        name,
        own_values.shape[0],
        scores[0],
        scores[1],
        padded[2],
        padded[3],
        better,
        tuple(deletion_curve),
        tuple(insertion_curve),
    )


def _better_than_baselines(name: str, values: dict[str, Float[Tensor, "b m"]]) -> tuple[str, ...]:
    if name in BASELINES or values[name].shape[0] < MIN_IMAGES:
        return ()
    sign = torch.tensor([float(direction) for direction in METRIC_SIGNS.values()])[: values[name].shape[1]]
    gains = [sign * (values[name] - values[other]) for other in BASELINES]
    significant = torch.stack([gain.mean(dim=0) > MIN_STANDARD_ERRORS * _standard_error(gain) for gain in gains]).all(dim=0)
    return tuple(measure for measure, sure in zip(METRIC_SIGNS, significant.tolist(), strict=False) if sure)


def _standard_error(values: Float[Tensor, "b m"]) -> Float[Tensor, " m"]:
    count = values.shape[0]
    return values.std(dim=0) / math.sqrt(count) if count > 1 else torch.full_like(values[0], math.nan)
