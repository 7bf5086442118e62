"""Weight initialisation as in the official code, with the names and numbers of Flax's initialisers."""

import math

from torch import Tensor, nn


def lecun_normal_(weight: Tensor) -> Tensor:
    """Fill with a normal of variance 1 / fan-in, truncated at two standard deviations."""
    fan_in = weight[0].numel()
    truncated_std = 0.87962566103423978  # the standard deviation of a standard normal truncated at +-2
    std = fan_in**-0.5 / truncated_std
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def xavier_linear(linear: nn.Linear) -> nn.Linear:
    """Initialise a linear layer: Xavier-uniform weight, zero bias."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def xavier_fused_linear(linear: nn.Linear, parts: int) -> nn.Linear:
    """Initialise several projections in one matrix, each as if it were a layer of its own."""
    for weight in linear.weight.detach().chunk(parts):
        bound = math.sqrt(6 / sum(weight.shape))
        nn.init.uniform_(weight, -bound, bound)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear
