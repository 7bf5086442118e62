"""Attention weights of chosen layers, heads and queries, computed alongside the fused kernel and not instead of it.

Queries and keys are recorded at the kernel's input, so only the requested rows are computed, and never more at a time than
``ATTENTION_CHUNK_NUMEL`` weights. With merged tokens, each patch attends as its token does, and a token's weight is split over
its patches; dropped patches have rows and columns of zeros. Where a head adds tokens of its own to some blocks, behind the
patches, the weights of those are left out, so that rows sum to less than one. b images, l layers, h heads, q queries, t tokens.
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
from vitrail.explain.merged_tokens import split_over_patches, track_merging
from vitrail.explain.region import RegionClassifier
from vitrail.layers.position import Grid
from vitrail.layers.tap import record_activations
from vitrail.models.build import get_encoder
from vitrail.models.token_reduced_vit import shallow_copy
from vitrail.models.vit import ViT

IndexSelection = Sequence[int] | None  # None: all of them
RowVisitor = Callable[[int, slice, Tensor], None]  # layer, slice of the rows, their weights: b h q t
ATTENTION_CHUNK_NUMEL = 2**23  # weights that are computed at a time


@torch.no_grad()
def attention(
    model: nn.Module,
    images: Float[Tensor, "b c height width"],
    layers: IndexSelection = None,
    heads: IndexSelection = None,
    queries: IndexSelection = None,
) -> Float[Tensor, "l b h q t"]:
    """Return the attention weights, rows that sum to one.

    Indices may count from the end. The first tokens are the class token, if there is one, and the registers; then come the
    patches, row by row.
    """
    vit = as_vit(model)
    tokens = count_tokens(vit, images)
    layer_indices = check_indices("layers", layers, len(vit.blocks))
    head_indices = check_indices("heads", heads, vit.config.heads)
    rows = check_indices("queries", queries, tokens)
    result = images.new_empty(len(layer_indices), images.shape[0], len(head_indices), len(rows), tokens)

    def visit(layer: int, part: slice, weights: Tensor) -> None:
        for position, number in enumerate(layer_indices):
            if number == layer:
                result[position, :, :, part] = weights

    visit_attention_rows(vit, images, layer_indices, head_indices, rows, visit)
    return result


@torch.no_grad()
def pooled_attention(
    model: nn.Module, images: Float[Tensor, "b c height width"], layers: IndexSelection = None, heads: IndexSelection = None
) -> Float[Tensor, "l b h t"]:
    """Return the attention of the pooled tokens: the class token's row, or the patches' rows weighted as they are pooled."""
    vit = as_vit(model)
    if vit.config.pool == "cls":
        return attention(vit, images, layers, heads, [0])[:, :, :, 0]
    layer_indices = check_indices("layers", layers, len(vit.blocks))
    head_indices = check_indices("heads", heads, vit.config.heads)
    weights_by_token = pooling_weights(vit, images)
    result = images.new_zeros(len(layer_indices), images.shape[0], len(head_indices), weights_by_token.shape[1])

    def visit(layer: int, part: slice, weights: Tensor) -> None:
        weighted = torch.einsum("bq,bhqt->bht", weights_by_token[:, part], weights)
        for position, number in enumerate(layer_indices):
            if number == layer:
                result[position] += weighted

    visit_attention_rows(vit, images, layer_indices, head_indices, list(range(weights_by_token.shape[1])), visit)
    return result


@torch.no_grad()
def visit_attention_rows(
    vit: ViT,
    images: Float[Tensor, "b c height width"],
    layers: Sequence[int],
    heads: list[int],
    rows: list[int],
    visit: RowVisitor,
) -> None:
    """Call ``visit`` with the weights, layer by layer and some rows at a time, while the images pass the fused kernel."""
    recorded_queries: list[Tensor] = []
    tokens = count_tokens(vit, images)

    def record_queries(q: Tensor) -> Tensor:
        q = q[:, heads]
        recorded_queries.append((membership[-1][:, None].mT.to(q.dtype) @ q if membership else q)[:, :, rows])
        return q.new_empty(0)

    def visit_rows(layer: int, k: Tensor) -> Tensor:
        q, k = recorded_queries.pop(), k[:, heads]
        block: Any = vit.blocks[layer]
        grid, bias = vit.grid(images), relative_bias(vit, vit.grid(images), layer)
        chunk = max(ATTENTION_CHUNK_NUMEL // (k.shape[0] * k.shape[1] * k.shape[2]), 1)
        for first in range(0, len(rows), chunk):
            part = slice(first, min(first + chunk, len(rows)))
            scores = block.attention.scores(q[:, :, part], k, grid, rows[part], heads)
            if bias is not None:  # never combined with merged tokens
                own = F.pad(bias[heads][:, rows[part]], (0, scores.shape[-1] - tokens))
                scores = scores + own.to(scores.dtype)
            if membership:
                sizes, present = membership[-1].sum(dim=-1), membership[-1].sum(dim=1)[:, None, rows[part], None]
                weights = (scores + sizes.log()[:, None, None].to(scores.dtype)).softmax(dim=-1)
                visit(layer, part, split_over_patches(weights, membership[-1]) * present.to(scores.dtype))
            else:
                visit(layer, part, scores.softmax(dim=-1)[..., :tokens])
        return k.new_empty(0)

    with eval_mode(vit), ExitStack() as stack:
        membership = stack.enter_context(track_merging(vit))
        for layer in set(layers):  # in a block, queries are recorded before keys
            stack.enter_context(record_activations(vit, f"blocks.{layer}.attention.queries", transform=record_queries))
            stack.enter_context(record_activations(vit, f"blocks.{layer}.attention.keys", transform=partial(visit_rows, layer)))
        vit.features(images)


@torch.no_grad()
def pooling_weights(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t"]:
    """Return the weight of each token in the pooling: the class token's, uniform for the mean, attention for MAP.

    Two halves of a representation count equally. Of a region, they are its patches, as much as they have of it.
    """
    vit = as_vit(model)
    if isinstance(vit, RegionClassifier):
        return vit.token_weights(images)
    prefix, patches = vit.config.prefix_tokens, _num_patches(vit, images)
    result = images.new_zeros(images.shape[0], prefix + patches)
    match vit.config.pool:
        case "cls":
            result[:, 0] = 1
        case "cls+register":
            result[:, :2] = 1 / 2
        case "gap" | "cls+gap":
            kept = vit.kept_patches(images)
            if kept is None:
                result[:, prefix:] = 1 / patches
            else:
                result.scatter_(1, kept + prefix, 1 / kept.shape[1])
            if vit.config.pool == "cls+gap":
                result[:, 0] = 1
                result /= 2
        case "map":
            with (
                eval_mode(vit),
                track_merging(vit) as membership,
                record_activations(vit, "pool.weights", transform=_mean_of_heads) as recorded,
            ):
                vit.features(images)
            weights = pad_pooled_prefix(vit, recorded["pool.weights"][0])
            result = split_over_patches(weights, membership[-1]) if membership else weights
    return result


def pad_pooled_prefix(vit: ViT, weights: Float[Tensor, "b n"]) -> Float[Tensor, "b t"]:
    """Return the weights of an attention pooling for all tokens: 0 for the prefix, unless it is pooled too."""
    return F.pad(weights, (0 if vit.config.pool_prefix else vit.config.prefix_tokens, 0))


def relative_bias(vit: ViT, grid: Grid, layer: int) -> Float[Tensor, "h t t"] | None:
    """Return what a layer adds to its scaled scores by the offset of two patches; None without such a bias."""
    modules = vit.relative_bias
    return modules[layer if len(modules) > 1 else 0](grid) if len(modules) else None  # one of each layer, or of all


def _mean_of_heads(weights: Float[Tensor, "b h 1 t"]) -> Float[Tensor, "b t"]:
    return weights.mean(1)[:, 0]


def to_grid(
    model: nn.Module, images: Float[Tensor, "b c height width"], values: Float[Tensor, "b t"]
) -> Float[Tensor, "b y x"]:
    """Return the values of the patches, arranged on the grid."""
    vit = as_vit(model)
    rows, _ = vit.grid(images)
    return rearrange(values[:, vit.config.prefix_tokens :], "b (y x) -> b y x", y=rows)


def as_vit(model: nn.Module) -> ViT:
    """Return the model as a ViT, a compiled one uncompiled, of one with a decoder the encoder; others have no attention."""
    model = get_encoder(getattr(model, "_orig_mod", model))
    model = model if model._compiled_call_impl is None else shallow_copy(model)
    if not isinstance(model, ViT):
        raise VitrailError(f"a {type(model).__name__} has no attention; load a Vision Transformer or a hybrid")
    return model


@contextmanager
def eval_mode(model: ViT) -> Iterator[None]:
    """Switch dropout and activation checkpointing off, and restore the previous mode afterwards."""
    settable: Any = model
    was_training, was_checkpointing = model.training, settable.activation_checkpointing
    model.eval()
    settable.activation_checkpointing = False
    try:
        yield
    finally:
        model.train(was_training)
        settable.activation_checkpointing = was_checkpointing


@contextmanager
def visit_states(model: ViT, visit: Callable[[Float[Tensor, "b t d"]], None]) -> Iterator[None]:
    """Pass on the tokens before the first block and after each, without those that a head adds behind them in later blocks."""
    count = 0

    def visit_first(tokens: Tensor) -> None:
        nonlocal count
        count = tokens.shape[1]
        visit(tokens)

    hooks = [block.register_forward_hook(lambda _, __, output: visit(output[:, :count])) for block in model.blocks]
    hooks.append(model.blocks[0].register_forward_pre_hook(lambda _, inputs: visit_first(inputs[0])))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_indices(name: str, indices: IndexSelection, size: int) -> list[int]:
    if indices is None:
        return list(range(size))
    wrong = [number for number in indices if not -size <= number < size]
    if wrong or not indices:
        raise VitrailError(f"{name} must be indices from 0 to {size - 1}, got {wrong[0] if wrong else 'none'}; try {name}=[0]")
    return [number % size for number in indices]


def count_tokens(vit: ViT, images: Float[Tensor, "b c height width"]) -> int:
    """Return the number of prefix tokens and patches."""
    return vit.config.prefix_tokens + _num_patches(vit, images)


def _num_patches(vit: ViT, images: Tensor) -> int:
    grid: Grid = vit.grid(images)
    return grid[0] * grid[1]
