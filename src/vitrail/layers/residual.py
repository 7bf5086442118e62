"""Dropping and scaling residual branches: stochastic depth (Huang et al. 2016), layer scale (Touvron et al. 2021)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class StochasticDepth(nn.Module):
    """Drop an image's residual branch at this rate during training, and rescale those that are kept."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        if not self.training or self.rate == 0:
            return x
        mask = torch.empty(x.shape[0], 1, 1, dtype=x.dtype, device=x.device).bernoulli_(1 - self.rate)
        return x * mask / (1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}"


class LayerScale(nn.Module):
    """A learned factor per channel, initially small, so that a deep model starts close to the identity."""

    def __init__(self, width: int, init_value: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), init_value))

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return x * self.scale
