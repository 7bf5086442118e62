"""Explanations of single images: the prediction, a saliency map per method, the attention of every head, and the logit lens.

l layers, s states between them, h heads, k classes, t tokens, c channels, y and x the grid of patches.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.evaluate.given import Given, Picture, listed
from vitrail.evaluate.ready import ready
from vitrail.explain.attention import at_rest, attention, checked, numbers, pooled_attention
from vitrail.explain.distance import norms
from vitrail.explain.gradient import lens
from vitrail.explain.maps import CLASSLESS, METHODS, saliency
from vitrail.explain.odds import odds
from vitrail.layers.position import Grid
from vitrail.models.build import Model
from vitrail.models.vit import ViT

POOL = "pool"  # the query is what the classifier reads


@dataclass(frozen=True)
class Views:
    """Layers, heads and query tokens whose attention is returned; None: all layers and heads, and the pooled tokens as query.

    A token is given by the row and column of its patch, ``3,5``, or it is ``class``, ``register0``, ``register1`` and so on.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Explained:
    """Explanation of one image. ``attention_rows`` is keyed by query token."""

    file: str
    image: Float[Tensor, "c height width"]  # preprocessed
    grid: Grid
    logits: Float[Tensor, " k"]
    odds: Float[Tensor, " k"]
    target: int | None  # the class that is explained; None without a head
    maps: dict[str, Float[Tensor, "y x"]]
    layers: list[int]  # layers of the rows
    numbers: list[int]  # indices of the heads
    heads: dict[str, Float[Tensor, "l h t"]]
    lens: Float[Tensor, "s k"]  # class probabilities before the first block and after each
    norms: Float[Tensor, "s t"]


def explained(
    model: Model,
    pictures: Sequence[Picture],
    methods: Sequence[str] | None = None,
    target: int | None = None,
    views: Views | None = None,
) -> Iterator[Explained]:
    """Explain images one by one. ``target``: the class to explain; None: the predicted one. An empty ``methods`` gives no maps.

    A model without a head has no classes: there are attention-based maps only, and neither logits nor logit lens.
    """
    vit, asked = checked(model), views or Views()
    headless = not vit.config.classes
    drawn = tuple(CLASSLESS if headless else METHODS) if methods is None else methods
    classy = [name for name in drawn if name not in CLASSLESS]
    if headless and (classy or target is not None):
        raise VitrailError(
            f"{classy[0] if classy else '--class'} needs a class, and a model without a head (classes=0) has none; "
            f"try {' or '.join(CLASSLESS)}, or add a head: vitrail finetune RUN DATA"
        )
    layers = numbers("layers", asked.layers, len(vit.blocks))
    heads = numbers("heads", asked.heads, vit.config.heads)
    source = Given(listed(pictures))
    for index in range(len(source)):
        images = ready(vit, source, [index])
        with torch.no_grad(), at_rest(vit):
            answer = vit(images)[0]
        if not answer.isfinite().all():
            raise VitrailError(
                f"the model's output for {source.where(index)} is not finite (NaN/Inf); its weights may be damaged"
            )
        logits = answer[:0] if headless else answer
        wanted = target if target is not None or headless else int(logits.argmax())
        which = None if wanted is None else torch.tensor([wanted], device=images.device)
        yield Explained(
            file=source.where(index),
            image=images[0].cpu(),
            grid=vit.grid(images),
            logits=logits.cpu(),
            odds=odds(vit, logits).cpu(),
            target=wanted,
            maps={name: saliency(vit, images, name, which)[0].cpu() for name in drawn},
            layers=layers,
            numbers=heads,
            heads=_rows(vit, images, layers, heads, asked.queries),
            lens=torch.zeros(len(vit.blocks) + 1, 0) if headless else odds(vit, lens(vit, images)[:, 0]).cpu(),
            norms=norms(vit, images)[:, 0].cpu(),
        )


def check_queries(model: Model, views: Views) -> None:
    """Raise an error if a query token does not exist, before any computation."""
    vit, how = checked(model), preprocess_of(model)
    for name in views.queries or ():
        token(vit, name, (how.image[0] // vit.config.stride[0], how.image[1] // vit.config.stride[1]))


def token(vit: ViT, name: str, grid: Grid) -> int:
    """Return the index of the token with this name."""
    config, (rows, columns) = vit.config, grid
    place, register = re.fullmatch(r"(\d{1,6}),(\d{1,6})", name), re.fullmatch(r"register(\d{1,6})", name)
    if name == "class" and config.has_class_token:
        return 0
    if register and int(register[1]) < config.registers:
        return int(config.has_class_token) + int(register[1])
    if place and int(place[1]) < rows and int(place[2]) < columns:
        return config.prefix + int(place[1]) * columns + int(place[2])
    others = [
        *(["class"] if config.has_class_token else []),
        *([f"register0 to register{config.registers - 1}"] if config.registers else []),
    ]
    more = f", or {' or '.join(others)}" if others else ""
    raise VitrailError(
        f"a query must be ROW,COLUMN of a patch, from 0,0 to {rows - 1},{columns - 1}{more}; got {name[:40]!r}, "
        f"try {rows // 2},{columns // 2}"
    )


def _rows(
    vit: ViT, images: Tensor, layers: list[int], heads: list[int], queries: tuple[str, ...] | None
) -> dict[str, Float[Tensor, "l h t"]]:
    if queries is None:
        return {POOL: pooled_attention(vit, images, layers, heads)[:, 0].cpu()}
    tokens = [token(vit, name, vit.grid(images)) for name in queries]
    found = attention(vit, images, layers, heads, tokens)[:, 0].cpu()
    return {name: found[:, :, place] for place, name in enumerate(queries)}
