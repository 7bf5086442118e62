"""SmoothQuant (Xiao et al. 2023): make activations easier to quantise to 8 bits without changing the model's function.

A few channels of a linear layer's input are far larger than the others, and with one scale for all channels the others get
few quantisation levels. Dividing each input channel by s and multiplying its weights by s leaves the output unchanged; the
division is folded into the preceding layer: a norm's weights, or attention's value rows. s = max|x|^1/2 / max|w|^1/2.

b images, c channels, d width.
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
    """Return a smoothed copy with the same outputs; a model that is not a Vision Transformer is returned unchanged."""
    if not isinstance(model, ViT):
        return model
    made = deepcopy(model)
    with _largest(made) as seen:
        for picture in images.split(8):
            made(picture)
    for block in made.blocks:
        assert isinstance(block, Block)
        _through_values(block, seen)
        if not isinstance(block, PostNormBlock):  # in post-norm, the residual branch also uses the norm's output
            _through_norm(block.norm1, block.attention.qkv, seen)
            _through_norm(block.norm2, block.mlp.up, seen)
    return made


@contextmanager
def _largest(model: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Record, for the input of each linear layer, the largest absolute value of each channel."""
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
    """Fold the scale into the value rows: attention mixes tokens within a channel, never channels."""
    qkv, out = block.attention.qkv, block.attention.out
    scale = _scale(out, seen)
    values = slice(2 * out.in_features, None)
    qkv.weight[values].div_(scale[:, None])
    if qkv.bias is not None:
        qkv.bias[values].div_(scale)
    out.weight.mul_(scale)
