"""SmoothQuant (Xiao et al. 2023): make activations easier to quantise to 8 bits without changing the model's function.

A few channels of a linear layer's input are far larger than the others, and with one scale for all channels the others get
few quantisation levels. Dividing each input channel by s and multiplying its weights by s leaves the output unchanged; the
division is folded into the preceding layer: a norm's weights or, where no norm precedes it, attention's value rows.
s = max|x|^1/2 / max|w|^1/2.

b images, c channels, d width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.block import Block
from vitrail.models.build import get_encoder
from vitrail.models.vit import ViT

MIN_MAGNITUDE = 1e-5


@torch.no_grad()
def smooth_activations(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Any:
    """Return a copy with a smoothed encoder and the same outputs; without a Vision Transformer, the model is unchanged."""
    smoothed = deepcopy(model)
    encoder = get_encoder(smoothed)
    if not isinstance(encoder, ViT):
        return model
    with _record_channel_max(smoothed) as channel_max:
        for batch in images.split(8):
            smoothed(batch)
    for block in encoder.blocks:
        assert isinstance(block, Block)
        if isinstance(block.attention.norm, nn.Identity):
            _fold_into_values(block, channel_max)
        else:  # it mixes channels, so the scale cannot pass it
            _fold_into_norm(block.attention.norm, block.attention.out, channel_max)
        if not isinstance(block.mlp.norm, nn.Identity):
            _fold_into_norm(block.mlp.norm, block.mlp.down, channel_max)
        if type(block) is Block:  # in the other orders, a norm's output is not only the input of these layers
            _fold_into_norm(block.norm1, block.attention.qkv, channel_max)
            _fold_into_norm(block.norm2, block.mlp.up, channel_max)
    return smoothed


@contextmanager
def _record_channel_max(model: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Record, for the input of each linear layer, the largest absolute value of each channel."""
    channel_max: dict[nn.Module, Tensor] = {}

    def record(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        largest = inputs[0].abs().flatten(0, -2).amax(dim=0)
        channel_max[layer] = torch.maximum(channel_max[layer], largest) if layer in channel_max else largest

    hooks = [layer.register_forward_pre_hook(record) for layer in model.modules() if isinstance(layer, nn.Linear)]
    try:
        yield channel_max
    finally:
        for hook in hooks:
            hook.remove()


def _scale(layer: nn.Linear, channel_max: dict[nn.Module, Tensor]) -> Float[Tensor, " d"]:
    return (channel_max[layer].clamp(min=MIN_MAGNITUDE) / layer.weight.abs().amax(dim=0).clamp(min=MIN_MAGNITUDE)).sqrt()


def _fold_into_norm(norm: nn.Module, layer: nn.Linear, channel_max: dict[nn.Module, Tensor]) -> None:
    scale = _scale(layer, channel_max)
    for weight in norm.parameters():  # RMSNorm has no bias
        weight.div_(scale)
    layer.weight.mul_(scale)


def _fold_into_values(block: Block, channel_max: dict[nn.Module, Tensor]) -> None:
    """Fold the scale into the value rows: attention mixes tokens within a channel, never channels."""
    qkv, out = block.attention.qkv, block.attention.out
    scale = _scale(out, channel_max)
    values = slice(-out.in_features, None)  # also of a bias without that of the keys
    qkv.weight[values].div_(scale[:, None])
    if qkv.bias is not None:
        qkv.bias[values].div_(scale)
    out.weight.mul_(scale)
