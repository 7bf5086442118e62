"""Explanations of single images: the prediction, a saliency map per method, the attention of every head, and the logit lens.

l layers, s states between them, h heads, k outputs, t tokens, c channels, y and x the grid of patches.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError, did_you_mean
from vitrail.evaluation.box_selection import BoxSelection, ExplainedBox, select_boxes
from vitrail.evaluation.region_selection import PixelSelection, Region, RegionCurves, region_curves, select_regions
from vitrail.explain.attention import as_vit, attention, check_indices, eval_mode, pooled_attention
from vitrail.explain.gradient import has_logit_lens, logit_lens
from vitrail.explain.head_statistics import token_norms
from vitrail.explain.saliency import CLASS_AGNOSTIC_METHODS, SALIENCY_METHODS, saliency
from vitrail.inference.inputs import as_images
from vitrail.inference.predictor import require_preprocess
from vitrail.inference.preprocess_images import load_image, preprocess_subset
from vitrail.layers.position import Grid
from vitrail.models.vit import ViT
from vitrail.tasks.registry import model_task
from vitrail.tasks.task import Task

POOL_QUERY = "pool"  # the query is what the classifier reads


@dataclass(frozen=True)
class AttentionSelection:
    """Layers, heads and query tokens whose attention is returned; None: all layers and heads, and the pooled tokens as query.

    A token is given by the row and column of its patch, ``3,5``, or it is ``class``, ``register0``, ``register1`` and so on.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Explanation:
    """Explanation of one image. ``attention_rows`` is keyed by query token."""

    file: str
    image: Float[Tensor, "c height width"]  # preprocessed
    grid: Grid
    outputs: Float[Tensor, " k"]  # of a classifier, its logits
    probabilities: Float[Tensor, " k"] | None  # of the classes; None if the model is no classifier
    target: int | None  # the class or other output that is explained; None without a head
    saliency_maps: dict[str, Float[Tensor, "y x"]]
    layers: list[int]  # layers of the rows
    head_indices: list[int]  # indices of the heads
    attention_rows: dict[str, Float[Tensor, "l h t"]]
    logit_lens: Float[Tensor, "s k"]  # probabilities, or outputs without any, before the first block and after each
    token_norms: Float[Tensor, "s t"]
    predicted_labels: tuple[str, ...] | None = None  # if the model predicts several labels per image
    is_another_target: bool = False  # the same image as the explanation before, and another class
    region: Region | ExplainedBox | None = None  # the pixels that are explained of a segmentation model, or the detection
    curves: dict[str, RegionCurves] = field(default_factory=dict)  # how faithful the maps are to the region, by method

    @property
    def target_lens(self) -> list[float] | None:
        """The logit lens of the target; None without a target, or if the head cannot be applied after each block."""
        return self.logit_lens[:, self.target].tolist() if self.target is not None and self.logit_lens.shape[1] else None


def explain_images(
    model: nn.Module,
    images: Any,
    methods: Sequence[str] | None = None,
    target: int | Sequence[int] | None = None,
    attention_selection: AttentionSelection | None = None,
    pixels: PixelSelection | None = None,
    box: BoxSelection | None = None,
) -> Iterator[Explanation]:
    """Explain images one by one. ``target``: the class to explain, or several, each of which is explained in turn; None: the
    most probable one. An empty ``methods`` gives no maps.

    Of a model for another task, the target is the index of an output, by default the largest, or the first number. A model
    without a head has no outputs: there are attention-based maps only, and no logit lens.

    Of a segmentation model, the class of some ``pixels`` of each image is explained; None: all pixels of the target, or of the
    largest class, as they are predicted. Of a detection model, the class of a ``box``; None: the best one, or the best one of
    the target.
    """
    selection = attention_selection or AttentionSelection()
    targets = (target,) if target is None or isinstance(target, int) else tuple(target)
    source, task = as_images(images), model_task(model)
    _check_task(task, pixels, box)
    for index in range(len(source)):
        file, batch = source.describe(index), preprocess_subset(model, source, [index])
        if not (task.has_pixel_classes or task.config.has_boxes):
            yield from _explain(as_vit(model), file, batch, methods, targets, selection)
            continue
        size = load_image(source.read(index)).size
        regions = (
            select_boxes(model, batch, size, targets, box)
            if task.config.has_boxes
            else select_regions(model, batch, size, targets, pixels)
        )
        for region, classifier, region_targets in regions:
            for explanation in _explain(classifier, file, batch, methods, region_targets, selection):
                assert explanation.target is not None
                curves = region_curves(classifier, batch, explanation.saliency_maps, explanation.target)
                yield replace(explanation, region=region, curves=curves)


def _check_task(task: Task, pixels: PixelSelection | None, box: BoxSelection | None) -> None:
    """Raise an error if the model does not predict what is to be explained of it."""
    if pixels is not None and not task.has_pixel_classes:
        raise VitrailError(
            "pixels are explained of segmentation models, and this model predicts none; leave --pixel and --region out"
        )
    if box is not None and not task.config.has_boxes:
        raise VitrailError("boxes are explained of detection models, and this model predicts none; leave --box out")


def _explain(
    vit: ViT,
    file: str,
    batch: Float[Tensor, "1 c height width"],
    methods: Sequence[str] | None,
    targets: Sequence[int | None],
    selection: AttentionSelection,
) -> Iterator[Explanation]:
    """Explain one image, each target in turn."""
    task = model_task(vit)
    headless = not vit.config.classes
    selected_methods = tuple(CLASS_AGNOSTIC_METHODS if headless else SALIENCY_METHODS) if methods is None else methods
    class_specific = [name for name in selected_methods if name not in CLASS_AGNOSTIC_METHODS]
    if headless and (class_specific or targets != (None,)):
        raise VitrailError(
            f"{class_specific[0] if class_specific else '--class'} needs a class, and a model without a head (classes=0) has "
            f"none; try {' or '.join(CLASS_AGNOSTIC_METHODS)}, or add a head: vitrail finetune RUN DATA"
        )
    layers = check_indices("layers", selection.layers, len(vit.blocks))
    heads = check_indices("heads", selection.heads, vit.config.heads)
    with torch.no_grad(), eval_mode(vit):
        output = vit(batch)[0]
    if not output.isfinite().all():
        raise VitrailError(f"the model's output for {file} is not finite (NaN/Inf); its weights may be damaged")
    outputs = output[:0] if headless else output
    lens = logit_lens(vit, batch)[:, 0] if has_logit_lens(vit) else outputs.new_zeros(len(vit.blocks) + 1, 0)
    explanation = Explanation(
        file=file,
        image=batch[0].cpu(),
        grid=vit.grid(batch),
        outputs=outputs.cpu() if headless else task.restore(outputs).cpu(),
        probabilities=_probabilities(task, outputs),
        predicted_labels=predicted_labels(task, outputs),
        target=None,
        saliency_maps={},
        layers=layers,
        head_indices=heads,
        attention_rows=_attention_rows(vit, batch, layers, heads, selection.queries),
        logit_lens=_readable_lens(task, lens),
        token_norms=token_norms(vit, batch)[:, 0].cpu(),
    )
    for number, each in enumerate(targets):
        chosen = each if each is not None or headless else task.default_output(outputs)
        classes = None if chosen is None else torch.tensor([chosen], device=batch.device)
        maps = {name: saliency(vit, batch, name, classes)[0].cpu() for name in selected_methods}
        yield replace(explanation, target=chosen, saliency_maps=maps, is_another_target=number > 0)


def predicted_labels(task: Task, outputs: Float[Tensor, " k"]) -> tuple[str, ...] | None:
    """Return the labels that an image is predicted to have; None if the model predicts one class, or none."""
    if not task.config.several_labels or not outputs.numel():
        return None
    prediction: Any = task.predictions(outputs[None].cpu(), 1)[0]
    return tuple(prediction.labels)


def output_names(task: Task) -> tuple[str, ...]:
    """Return the names of a model's outputs: the classes of a classifier, else their indices."""
    return task.output_names


def output_index(name: str, task: Task) -> int:
    """Return the index of a class by its name or index, or that of another task's output."""
    names = output_names(task)
    kind = "class" if task.has_classes or task.has_pixel_classes or task.config.has_boxes else "output"
    if name in names:
        return names.index(name)
    if name.isascii() and name.isdecimal() and len(name) < 7 and int(name) < len(names):
        return int(name)
    if not names:
        raise VitrailError("a class needs a head, and a model without one (classes=0) has no classes; leave it out")
    hint = did_you_mean(name[:80], names[:1000]) or f"; name one of its {len(names):,}, or a number from 0 to {len(names) - 1}"
    raise VitrailError(f"the model has no {kind} {name[:80]!r}{hint}")


def _probabilities(task: Task, outputs: Float[Tensor, "*s k"]) -> Float[Tensor, "*s k"] | None:
    return task.probabilities(outputs.double()).cpu() if task.has_classes and outputs.shape[-1] else None


def _readable_lens(task: Task, lens: Float[Tensor, "s k"]) -> Float[Tensor, "s k"]:
    """Return the probabilities of the classes, or the outputs of another task in its units."""
    probabilities = _probabilities(task, lens)
    if probabilities is not None:
        return probabilities
    return (task.restore(lens.double()) if lens.shape[-1] else lens.double()).cpu()


def check_queries(model: nn.Module, selection: AttentionSelection) -> None:
    """Raise an error if a query token does not exist, before any computation."""
    vit, preprocess = as_vit(model), require_preprocess(model)
    for name in selection.queries or ():
        token_index(
            vit,
            name,
            (preprocess.image_size[0] // vit.config.patch_stride[0], preprocess.image_size[1] // vit.config.patch_stride[1]),
        )


def token_index(vit: ViT, name: str, grid: Grid) -> int:
    """Return the index of the token with this name."""
    config, (rows, columns) = vit.config, grid
    patch, register = re.fullmatch(r"(\d{1,6}),(\d{1,6})", name), re.fullmatch(r"register(\d{1,6})", name)
    if name == "class" and config.has_class_token:
        return 0
    if register and int(register[1]) < config.registers:
        return int(config.has_class_token) + int(register[1])
    if patch and int(patch[1]) < rows and int(patch[2]) < columns:
        return config.prefix_tokens + int(patch[1]) * columns + int(patch[2])
    others = [
        *(["class"] if config.has_class_token else []),
        *([f"register0 to register{config.registers - 1}"] if config.registers else []),
    ]
    more = f", or {' or '.join(others)}" if others else ""
    raise VitrailError(
        f"a query must be ROW,COLUMN of a patch, from 0,0 to {rows - 1},{columns - 1}{more}; got {name[:40]!r}, "
        f"try {rows // 2},{columns // 2}"
    )


def _attention_rows(
    vit: ViT, images: Tensor, layers: list[int], heads: list[int], queries: tuple[str, ...] | None
) -> dict[str, Float[Tensor, "l h t"]]:
    if queries is None:
        return {POOL_QUERY: pooled_attention(vit, images, layers, heads)[:, 0].cpu()}
    tokens = [token_index(vit, name, vit.grid(images)) for name in queries]
    weights = attention(vit, images, layers, heads, tokens)[:, 0].cpu()
    return {name: weights[:, :, position] for position, name in enumerate(queries)}
