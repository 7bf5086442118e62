"""Norms of tokens: layer norm (Ba et al. 2016), or RMSNorm, without a mean and a bias (Zhang and Sennrich 2019)."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

NormKind = Literal["layer", "rms"]
NormLayer = Callable[[int], nn.Module]  # builds the norm of a width


class RMSNorm(nn.RMSNorm):
    """RMSNorm in the precision of its weights, as autocast computes a layer norm."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return super().forward(x.to(self.weight.dtype))


def norm_layer(kind: NormKind = "layer", eps: float = 1e-6) -> NormLayer:
    return partial(nn.LayerNorm if kind == "layer" else RMSNorm, eps=eps)
