"""Activations made easy to round to 8 bits without changing the model (Xiao et al. 2023, "SmoothQuant").

A few channels of what enters a linear layer are far larger than the others, and one scale for all would leave the others few
steps. Dividing each channel by s and multiplying the weights that it meets by s changes nothing but that; the division goes
into the layer before: a norm's own weights, or the rows of the values of attention. s = max|x|^1/2 / max|w|^1/2.

b pictures, c channels, d width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.block import Block, PostNormBlock
from vitrail.models.build import Model
from vitrail.models.vit import ViT

SMALLEST = 1e-5


@torch.no_grad()
def even(model: Model, images: Float[Tensor, "b c height width"]) -> Model:
    """A copy that answers the same; what is no Vision Transformer comes back as it is."""
    if not isinstance(model, ViT):
        return model
    made = deepcopy(model)
    with _largest(made) as seen:
        for picture in images.split(8):
            made(picture)
    for block in made.blocks:
        assert isinstance(block, Block)
        _through_values(block, seen)
        if not isinstance(block, PostNormBlock):  # there, what the norm gives is also added to
            _through_norm(block.norm1, block.attention.qkv, seen)
            _through_norm(block.norm2, block.mlp.up, seen)
    return made


@contextmanager
def _largest(model: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Of what enters each linear layer, the largest of each channel."""
    seen: dict[nn.Module, Tensor] = {}

    def look(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        found = given[0].abs().flatten(0, -2).amax(dim=0)
        seen[layer] = torch.maximum(seen[layer], found) if layer in seen else found

    hooks = [layer.register_forward_pre_hook(look) for layer in model.modules() if isinstance(layer, nn.Linear)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _scale(layer: nn.Linear, seen: dict[nn.Module, Tensor]) -> Float[Tensor, " d"]:
    return (seen[layer].clamp(min=SMALLEST) / layer.weight.abs().amax(dim=0).clamp(min=SMALLEST)).sqrt()


def _through_norm(norm: nn.LayerNorm, layer: nn.Linear, seen: dict[nn.Module, Tensor]) -> None:
    scale = _scale(layer, seen)
    norm.weight.div_(scale)
    norm.bias.div_(scale)
    layer.weight.mul_(scale)


def _through_values(block: Block, seen: dict[nn.Module, Tensor]) -> None:
    """Attention mixes the values of a channel among tokens, never channels."""
    qkv, out = block.attention.qkv, block.attention.out
    scale = _scale(out, seen)
    values = slice(2 * out.in_features, None)
    qkv.weight[values].div_(scale[:, None])
    if qkv.bias is not None:
        qkv.bias[values].div_(scale)
    out.weight.mul_(scale)
