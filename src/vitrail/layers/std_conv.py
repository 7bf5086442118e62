"""Convolutions of the BiT family (Kolesnikov et al. 2020): kernels standardised at every use (Qiao et al. 2019), and
TensorFlow's SAME padding, which is asymmetric if the stride does not divide the side.

o output channels, i input channels.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.weight_init import lecun_normal_


class StdConv2d(nn.Conv2d):
    """Convolution with weight standardisation (mean 0, standard deviation 1); SAME or symmetric padding."""

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int,
        *,
        stride: int = 1,
        pad: Literal["same", "even"],
        rule: Literal["std", "variance"],
        eps: float,
    ) -> None:
        super().__init__(channels, width, kernel, stride, padding=kernel // 2 if pad == "even" else 0, bias=False)
        self.pad = pad
        self.rule = rule
        self.eps = eps
        lecun_normal_(self.weight)

    def forward(self, input: Float[Tensor, "b i height width"]) -> Float[Tensor, "b o high wide"]:
        x = pad_same(input, self.kernel_size[0], self.stride[0]) if self.pad == "same" else input
        return self._conv_forward(x, standardise(self.weight, self.rule, self.eps), None)


def standardise(weight: Float[Tensor, "o i p q"], rule: str, eps: float) -> Float[Tensor, "o i p q"]:
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, correction=0)
    divisor = variance.sqrt() + eps if rule == "std" else (variance + eps).sqrt()
    return (weight - mean) / divisor


def pad_same(x: Float[Tensor, "b i height width"], kernel: int, stride: int, value: float = 0.0) -> Float[Tensor, "b i h w"]:
    """Pad so that the output side is ceil(side / stride); an odd remainder goes to the bottom and right."""
    (top, bottom), (left, right) = (_same_padding(side, kernel, stride) for side in x.shape[2:])
    if not (top or bottom or left or right):
        return x  # F.pad would copy it
    return F.pad(x, (left, right, top, bottom), value=value)


def _same_padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2
