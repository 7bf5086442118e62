"""How weights start, as in the official code. The names and numbers are those of Flax's initialisers."""

import math

from torch import Tensor, nn


def lecun_normal_(weight: Tensor) -> Tensor:
    """A normal cut off at two deviations, of variance 1 / fan-in."""
    fan_in = weight[0].numel()
    untruncated = 0.87962566103423978  # the deviation that a standard normal keeps when cut at +-2
    std = fan_in**-0.5 / untruncated
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def dense(linear: nn.Linear) -> nn.Linear:
    """Xavier-uniform kernel, zero bias."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def fused(linear: nn.Linear, parts: int) -> nn.Linear:
    """Several square projections in one matrix: each starts as if it stood alone, not as a part of the wide one."""
    for weight in linear.weight.detach().chunk(parts):
        bound = math.sqrt(6 / sum(weight.shape))
        nn.init.uniform_(weight, -bound, bound)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear
