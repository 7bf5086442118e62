"""Who looks at whom: attention weights of chosen layers, heads and queries, beside the fused kernel and not instead of it.

Queries and keys are read on their way into the kernel, so only what is asked for is computed once more. b pictures, l layers,
h heads, q queries, t tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.layers.position import Grid, RelativeKeys
from vitrail.layers.tap import recording
from vitrail.models.vit import ViT

Numbers = Sequence[int] | None  # none: all of them


@torch.no_grad()
def attention(
    model: nn.Module,
    images: Float[Tensor, "b c height width"],
    layers: Numbers = None,
    heads: Numbers = None,
    queries: Numbers = None,
) -> Float[Tensor, "l b h q t"]:
    """How much of each token a query takes, rows that sum to one.

    Numbers may count from the end. The first tokens are the class token, where there is one, and the registers; then come the
    patches, row by row.
    """
    vit = checked(model)
    tokens = vit.config.prefix + _patches(vit, images)
    chosen = numbers("layers", layers, len(vit.blocks))
    some = numbers("heads", heads, vit.config.heads)
    rows = numbers("queries", queries, tokens)
    names = [f"blocks.{layer}.attention" for layer in chosen]
    with (
        at_rest(vit),
        recording(vit, *(f"{name}.queries" for name in names), keep=lambda q: q[:, some][:, :, rows]) as asking,
        recording(vit, *(f"{name}.keys" for name in names), keep=lambda k: k[:, some]) as asked,
    ):
        vit.features(images)
    found = []
    for layer, name in zip(chosen, names, strict=True):
        (q,), (k,) = asking.pop(f"{name}.queries"), asked.pop(f"{name}.keys")
        scores = q @ k.mT
        block: Any = vit.blocks[layer]
        if isinstance(block.attention.relative, RelativeKeys):
            scores = scores + _offsets(block.attention.relative, q, some, rows)
        found.append((scores * q.shape[-1] ** -0.5).softmax(dim=-1))
    return torch.stack(found)


@torch.no_grad()
def reading(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t"]:
    """What the pooling takes of each token: all of the class token, the same of every patch, or what its own query looks at."""
    vit = checked(model)
    prefix, patches = vit.config.prefix, _patches(vit, images)
    share = images.new_zeros(images.shape[0], prefix + patches)
    match vit.config.pool:
        case "cls":
            share[:, 0] = 1
        case "gap":
            share[:, prefix:] = 1 / patches
        case "map":
            with at_rest(vit), recording(vit, "pool.weights", keep=lambda weights: weights.mean(1)[:, 0]) as seen:
                vit.features(images)
            share[:, prefix:] = seen["pool.weights"][0]
    return share


def on_grid(
    model: nn.Module, images: Float[Tensor, "b c height width"], values: Float[Tensor, "b t"]
) -> Float[Tensor, "b y x"]:
    """Those of the patches where they lie."""
    vit = checked(model)
    rows, _ = vit.grid(images)
    return rearrange(values[:, vit.config.prefix :], "b (y x) -> b y x", y=rows)


def checked(model: nn.Module) -> ViT:
    """What a compiled model was made of; others than Vision Transformers have no attention to look at."""
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, ViT):
        raise VitrailError(f"a {type(model).__name__} has no attention to look at; load a Vision Transformer or a hybrid")
    return model


@contextmanager
def at_rest(model: ViT) -> Iterator[None]:
    """Without dropout, every module run once, and afterwards as it was."""
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
        raise VitrailError(f"{what} must be numbers from 0 to {of - 1}, got {wrong[0] if wrong else 'none'}; try {what}=[0]")
    return [number % of for number in wanted]


def _patches(vit: ViT, images: Tensor) -> int:
    grid: Grid = vit.grid(images)
    return grid[0] * grid[1]


def _offsets(relative: RelativeKeys, q: Tensor, heads: list[int], rows: list[int]) -> Float[Tensor, "b h q t"]:
    keys = torch.stack([torch.stack([relative.of(head, row) for row in rows]) for head in heads])
    return torch.einsum("bhqk,hqtk->bhqt", q, keys)
