"""The pixels of an image that are explained of a segmentation model, and how faithful saliency maps are to them.

h and w the sides of an image, height and width those of the model's input, k classes, s steps, y and x the grid of patches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int16
from numpy import ndarray
from torch import Tensor, nn

from vitrail.data.transforms import crop_window
from vitrail.errors import VitrailError
from vitrail.explain.faithfulness import Faithfulness, edge_map, faithfulness, random_map
from vitrail.explain.region import RegionClassifier, region_weights
from vitrail.inference.predictor import require_preprocess
from vitrail.tasks.registry import model_task

REGION_BASELINES = {"random": random_map, "edges": edge_map}  # maps that do not use the model


@dataclass(frozen=True)
class PixelSelection:
    """A pixel by column and row, or a rectangle by column, row, width and height, in pixels of the upright image."""

    pixel: tuple[int, int] | None = None
    box: tuple[int, int, int, int] | None = None

    @property
    def rectangle(self) -> tuple[int, int, int, int]:
        return self.box if self.box is not None else (*(self.pixel or (0, 0)), 1, 1)


@dataclass(frozen=True)
class Region:
    """Pixels that are explained together: a pixel, a rectangle, or all that are predicted to be of one class."""

    selection: PixelSelection | None
    text: str
    num_pixels: int
    size: tuple[int, int]  # width and height of the image
    weights: Float[Tensor, "height width"]  # of the model's input, see ``explain.region``
    predicted: Int[Tensor, "height width"]  # class of each pixel of the model's input

    @property
    def inside(self) -> Bool[Tensor, "height width"]:
        """The pixels of the model's input that the region is predicted from."""
        return self.weights > 0

    def plain(self) -> dict[str, Any]:
        """Return the region as plain values, for JSON."""
        selection = self.selection or PixelSelection()
        return {"region": {"pixel": selection.pixel, "box": selection.box, "pixels": self.num_pixels, "size": self.size}}


@dataclass(frozen=True)
class RegionCurves:
    """The class's probability over the region while patches are deleted and inserted, and while only its context is."""

    everywhere: Faithfulness
    context: Faithfulness | None  # None: every patch has a part of the region


def select_regions(
    model: Any,
    batch: Float[Tensor, "1 c height width"],
    size: tuple[int, int],
    targets: Sequence[int | None],
    pixels: PixelSelection | None,
) -> Iterator[tuple[Region, RegionClassifier, tuple[int | None, ...]]]:
    """Yield each region of an image, its classifier, and the classes of it to explain; ``size`` is the image's width and
    height."""
    task, preprocess = model_task(model), require_preprocess(model)
    logits = segment(model, batch)[0].float().cpu()
    classes = logits.argmax(0)

    def region(mask: Bool[ndarray, "h w"], text: str) -> tuple[Region, RegionClassifier]:
        weights = region_weights(mask, preprocess, (batch.shape[2], batch.shape[3]))
        return Region(pixels, text, int(mask.sum()), size, weights[0], classes), RegionClassifier(model, weights.to(batch))

    if pixels is not None:
        yield *region(*_rectangle(pixels, size, crop_window(size, preprocess)[1])), tuple(targets)
        return
    names, predicted = task.class_names, _predicted_mask(task, logits, size)
    for target in targets:
        chosen = largest_class(np.bincount(predicted.ravel()).tolist(), names) if target is None else target
        mask = predicted == chosen
        count = int(mask.sum())
        if not count:
            raise VitrailError(
                f"no pixel of the image is predicted as {names[chosen]}, so there is no region of it to explain; "
                "name one with --pixel X,Y, or a class that is predicted"
            )
        text = f"the {count:,} pixels that are predicted as {names[chosen]}" if count > 1 else f"the pixel of {names[chosen]}"
        yield *region(mask, text), (chosen,)


def largest_class(counts: Sequence[int], names: Sequence[str]) -> int:
    """Return the class of most pixels, and the background only if there is no other."""
    order = np.argsort(-np.asarray(counts), kind="stable").tolist()
    return next((index for index in order if counts[index] and names[index].lower() != "background"), order[0])


def _predicted_mask(task: Any, logits: Float[Tensor, "k height width"], size: tuple[int, int]) -> Int16[ndarray, "h w"]:
    """Return the class of each pixel of an image of this width and height."""
    mask = np.empty((size[1], size[0]), np.int16)
    for band, rows, _ in task.predict_mask(logits, (size[1], size[0])):
        mask[band] = rows
    return mask


@torch.no_grad()
def segment(model: nn.Module, batch: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k height width"]:
    """Return the logits of the pixels of the model's input, which are finite."""
    was_training = model.training
    model.eval()
    try:
        logits: Tensor = model(batch)
    finally:
        model.train(was_training)
    if not logits.isfinite().all():
        raise VitrailError("the model's logits are not finite (NaN/Inf); its weights may be damaged")
    return logits


def region_curves(
    classifier: RegionClassifier,
    batch: Float[Tensor, "1 c height width"],
    maps: Mapping[str, Float[Tensor, "y x"]],
    target: int,
) -> dict[str, RegionCurves]:
    """Measure the maps of a region, and the baselines, by deletion and insertion of all patches and of its context alone."""
    if not maps:
        return {}
    grid = classifier.grid(batch)
    measured = {name: baseline(batch, grid)[0] for name, baseline in REGION_BASELINES.items()} | dict(maps)
    own, classes = classifier.own_patches(batch), torch.tensor([target], device=batch.device)
    curves = {}
    for name, values in measured.items():
        rows = values[None].to(batch)
        everywhere = faithfulness(classifier, batch, rows, classes)
        context = None if own.all() else faithfulness(classifier, batch, rows, classes, keep=own)
        curves[name] = RegionCurves(everywhere, context)
    return curves


def region_json(region: Any, curves: Mapping[str, RegionCurves]) -> dict[str, Any]:
    """Return a region or a box, and the curves of its maps, as plain values; nothing of a classifier."""
    if region is None:
        return {}
    return {**region.plain(), "curves": {method: _curves_json(each) for method, each in curves.items()}}


def _curves_json(curves: RegionCurves) -> dict[str, Any]:
    context = curves.context
    return {
        "deletion_auc": curves.everywhere.deletion_auc.item(),
        "insertion_auc": curves.everywhere.insertion_auc.item(),
        "context_deletion_auc": None if context is None else context.deletion_auc.item(),
        "deletion": curves.everywhere.deletion_curve[0].tolist(),
        "insertion": curves.everywhere.insertion_curve[0].tolist(),
        "context_deletion": None if context is None else context.deletion_curve[0].tolist(),
    }


def largest_predicted_regions(
    model: Any, batch: Float[Tensor, "b c height width"], target: int | None = None
) -> tuple[RegionClassifier, Int[Tensor, " r"], Bool[Tensor, " b"]]:
    """Return a classifier of the pixels of the largest predicted class of each image, or of the target, the classes, and which
    of the images have such pixels: r of them. They are the pixels of the model's input, not of the image."""
    predicted = segment(model, batch).argmax(1)
    names = model_task(model).class_names
    largest = [largest_class(torch.bincount(image.flatten(), minlength=len(names)).tolist(), names) for image in predicted]
    classes = torch.tensor(largest if target is None else [target] * len(largest), device=batch.device)
    masks = (predicted == classes[:, None, None]).to(batch)
    present = masks.flatten(1).any(1)
    weights = masks[present] / masks[present].sum((1, 2), keepdim=True)
    return RegionClassifier(model, weights), classes[present], present


def _rectangle(
    pixels: PixelSelection, size: tuple[int, int], seen: tuple[float, float, float, float]
) -> tuple[Bool[ndarray, "h w"], str]:
    """Return the chosen pixels and their description; ``seen`` is the box of the image that the model gets."""
    (width, height), (left, top, w, h) = size, pixels.rectangle
    option, value = ("--region", f"{left},{top},{w},{h}") if pixels.box is not None else ("--pixel", f"{left},{top}")
    if w < 1 or h < 1 or left < 0 or top < 0 or left + w > width or top + h > height:
        middle = f"{width // 2},{height // 2}" + (f",{-(-width // 4)},{-(-height // 4)}" if pixels.box is not None else "")
        raise VitrailError(f"{option} must lie in the image, which is {width}x{height}, got {value}; try {middle}")
    if left + w <= seen[0] or top + h <= seen[1] or left >= seen[2] or top >= seen[3]:
        box = ",".join(f"{edge:.0f}" for edge in seen)
        raise VitrailError(f"{option} {value} lies outside of the crop that the model gets, from {box}; try a pixel in it")
    mask = np.zeros((height, width), bool)
    mask[top : top + h, left : left + w] = True
    if pixels.box is None:
        return mask, f"the pixel at column {left}, row {top}"
    return mask, f"the {w} x {h} pixels from column {left}, row {top}"
