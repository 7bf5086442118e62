"""Norms of tokens: layer norm (Ba et al. 2016), or RMSNorm, without a mean and a bias (Zhang and Sennrich 2019)."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

NormKind = Literal["layer", "rms"]
NormLayer = Callable[[int], nn.Module]  # builds the norm of a width


def norm_layer(kind: NormKind = "layer", eps: float = 1e-6) -> NormLayer:
    return partial(nn.LayerNorm if kind == "layer" else nn.RMSNorm, eps=eps)
