"""Attention weights of chosen layers, heads and queries, computed alongside the fused kernel and not instead of it.

Queries and keys are recorded at the kernel's input, so only the requested rows are computed, and never more at a time than
``ATTENTION_CHUNK_NUMEL`` weights. With merged tokens, each patch attends as its token does, and a token's weight is split over
its patches; dropped patches have rows and columns of zeros. b images, l layers, h heads, q queries, t tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.explain.held import holding, shared
from vitrail.layers.position import Grid, RelativeKeys
from vitrail.layers.tap import recording
from vitrail.models.merged import twin
from vitrail.models.vit import ViT

Numbers = Sequence[int] | None  # None: all of them
Take = Callable[[int, slice, Tensor], None]  # layer, slice of the rows, their weights: b h q t
ROOM = 2**23  # weights that are computed at a time


@torch.no_grad()
def attention(
    model: nn.Module,
    images: Float[Tensor, "b c height width"],
    layers: Numbers = None,
    heads: Numbers = None,
    queries: Numbers = None,
) -> Float[Tensor, "l b h q t"]:
    """Return the attention weights, rows that sum to one.

    Indices may count from the end. The first tokens are the class token, if there is one, and the registers; then come the
    patches, row by row.
    """
    vit = checked(model)
    tokens = vit.config.prefix + _patches(vit, images)
    chosen = numbers("layers", layers, len(vit.blocks))
    some = numbers("heads", heads, vit.config.heads)
    rows = numbers("queries", queries, tokens)
    found = images.new_empty(len(chosen), images.shape[0], len(some), len(rows), tokens)

    def take(layer: int, part: slice, weights: Tensor) -> None:
        for place, number in enumerate(chosen):
            if number == layer:
                found[place, :, :, part] = weights

    each(vit, images, chosen, some, rows, take)
    return found


@torch.no_grad()
def pooled_attention(
    model: nn.Module, images: Float[Tensor, "b c height width"], layers: Numbers = None, heads: Numbers = None
) -> Float[Tensor, "l b h t"]:
    """Return the attention of the pooled tokens: the class token's row, or the patches' rows weighted as they are pooled."""
    vit = checked(model)
    if vit.config.pool == "cls":
        return attention(vit, images, layers, heads, [0])[:, :, :, 0]
    chosen = numbers("layers", layers, len(vit.blocks))
    some = numbers("heads", heads, vit.config.heads)
    share = reading(vit, images)
    found = images.new_zeros(len(chosen), images.shape[0], len(some), share.shape[1])

    def take(layer: int, part: slice, weights: Tensor) -> None:
        mixed = torch.einsum("bq,bhqt->bht", share[:, part], weights)
        for place, number in enumerate(chosen):
            if number == layer:
                found[place] += mixed

    each(vit, images, chosen, some, list(range(share.shape[1])), take)
    return found


@torch.no_grad()
def each(
    vit: ViT, images: Float[Tensor, "b c height width"], layers: Sequence[int], heads: list[int], rows: list[int], take: Take
) -> None:
    """Call ``visit`` with the weights, layer by layer and some rows at a time, while the images pass the fused kernel."""
    asking: list[Tensor] = []

    def ask(q: Tensor) -> Tensor:
        q = q[:, heads]
        asking.append((held[-1][:, None].mT.to(q.dtype) @ q if held else q)[:, :, rows])
        return q.new_empty(0)

    def answer(layer: int, k: Tensor) -> Tensor:
        q, k = asking.pop(), k[:, heads]
        block: Any = vit.blocks[layer]
        relative = block.attention.relative
        most = max(ROOM // (k.shape[0] * k.shape[1] * k.shape[2]), 1)
        for first in range(0, len(rows), most):
            part = slice(first, min(first + most, len(rows)))
            scores = q[:, :, part] @ k.mT
            if isinstance(relative, RelativeKeys):
                scores = scores + _offsets(relative, q[:, :, part], heads, rows[part])
            scores = scores * q.shape[-1] ** -0.5
            if held:
                sizes, there = held[-1].sum(dim=-1), held[-1].sum(dim=1)[:, None, rows[part], None]
                weights = (scores + sizes.log()[:, None, None].to(scores.dtype)).softmax(dim=-1)
                take(layer, part, shared(weights, held[-1]) * there.to(scores.dtype))
            else:
                take(layer, part, scores.softmax(dim=-1))
        return k.new_empty(0)

    with at_rest(vit), ExitStack() as stack:
        held = stack.enter_context(holding(vit))
        for layer in set(layers):  # in a block, queries are recorded before keys
            stack.enter_context(recording(vit, f"blocks.{layer}.attention.queries", keep=ask))
            stack.enter_context(recording(vit, f"blocks.{layer}.attention.keys", keep=partial(answer, layer)))
        vit.features(images)


@torch.no_grad()
def reading(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t"]:
    """Return the weight of each token in the pooling: the class token's alone, uniform for the mean, attention for MAP."""
    vit = checked(model)
    prefix, patches = vit.config.prefix, _patches(vit, images)
    share = images.new_zeros(images.shape[0], prefix + patches)
    match vit.config.pool:
        case "cls":
            share[:, 0] = 1
        case "gap":
            places = vit.places(images)
            if places is None:
                share[:, prefix:] = 1 / patches
            else:
                share.scatter_(1, places + prefix, 1 / places.shape[1])
        case "map":
            with at_rest(vit), holding(vit) as held, recording(vit, "pool.weights", keep=_mean_of_heads) as seen:
                vit.features(images)
            weights = F.pad(seen["pool.weights"][0], (prefix, 0))
            share = shared(weights, held[-1]) if held else weights
    return share


def _mean_of_heads(weights: Float[Tensor, "b h 1 t"]) -> Float[Tensor, "b t"]:
    return weights.mean(1)[:, 0]


def on_grid(
    model: nn.Module, images: Float[Tensor, "b c height width"], values: Float[Tensor, "b t"]
) -> Float[Tensor, "b y x"]:
    """Return the values of the patches, arranged on the grid."""
    vit = checked(model)
    rows, _ = vit.grid(images)
    return rearrange(values[:, vit.config.prefix :], "b (y x) -> b y x", y=rows)


def checked(model: nn.Module) -> ViT:
    """Return the model as a ViT, a compiled one uncompiled; other models have no attention."""
    model = getattr(model, "_orig_mod", model)
    model = model if model._compiled_call_impl is None else twin(model)
    if not isinstance(model, ViT):
        raise VitrailError(f"a {type(model).__name__} has no attention; load a Vision Transformer or a hybrid")
    return model


@contextmanager
def at_rest(model: ViT) -> Iterator[None]:
    """Switch dropout and activation checkpointing off, and restore the previous mode afterwards."""
    free: Any = model
    was, again = model.training, free.checkpointing
    model.eval()
    free.checkpointing = False
    try:
        yield
    finally:
        model.train(was)
        free.checkpointing = again


def numbers(what: str, wanted: Numbers, of: int) -> list[int]:
    if wanted is None:
        return list(range(of))
    wrong = [number for number in wanted if not -of <= number < of]
    if wrong or not wanted:
        raise VitrailError(f"{what} must be indices from 0 to {of - 1}, got {wrong[0] if wrong else 'none'}; try {what}=[0]")
    return [number % of for number in wanted]


def _patches(vit: ViT, images: Tensor) -> int:
    grid: Grid = vit.grid(images)
    return grid[0] * grid[1]


def _offsets(
    relative: RelativeKeys, q: Float[Tensor, "b h q k"], heads: list[int], rows: list[int]
) -> Float[Tensor, "b h q t"]:
    """Return the scores of relative positions, as in ``RelativeKeys``: token t of query q meets the key of their offset."""
    tokens = (relative.keys.shape[1] + 1) // 2
    every = q @ relative.keys[heads].mT
    places = torch.arange(tokens, device=q.device) + tokens - 1 - torch.tensor(rows, device=q.device)[:, None]
    return every.gather(-1, places.expand(*every.shape[:2], -1, -1))
