"""Torch's own int8 linear layers (fbgemm), which CPUs without VNNI may run faster than onnxruntime's.

Weights have a scale per output; each call computes one scale for the activations of all its images, so a prediction depends on
the rest of the batch. That is why it is measured and not offered: neither an exported file nor a server may predict so, and
torch is going to drop its quantised tensors. Without VNNI activations take 7 bits, as sums of two products would overflow at 8;
that costs a real Ti/16 four of 250 images, where 8 bits cost none.

b batch, d width, o outputs.
"""

import warnings
from collections.abc import Collection

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.models.build import Model

ENGINE = "fbgemm"


def is_available() -> bool:
    """Return whether the CPU supports fbgemm."""
    return ENGINE in torch.backends.quantized.supported_engines


def quantise_linear_layers(model: Model, skip: Collection[str] = ()) -> Model:
    """Quantise the linear layers of the model's blocks in place, except those named."""
    for path, module in [*model.named_modules()]:
        for name, linear in [*module.named_children()]:
            if isinstance(linear, nn.Linear) and path.startswith("blocks.") and f"{path}.{name}" not in skip:
                setattr(module, name, _QuantisedLinear(linear))
    return model


class _QuantisedLinear(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = ENGINE  # weights are packed for one engine only
        try:
            with warnings.catch_warnings():  # the deprecation is discussed above
                warnings.filterwarnings("ignore", message=".*are deprecated", category=UserWarning)
                rounded = torch.quantize_per_channel(weight, scale, torch.zeros_like(scale).long(), 0, torch.qint8)
            # what the layer adds to nothing: its bias itself may be that of queries and values without the keys
            bias = None if linear.bias is None else linear(weight.new_zeros(1, 1, linear.in_features))[0, 0].detach()
            self.packed = torch.ops.quantized.linear_prepack(rounded, bias)
        finally:
            torch.backends.quantized.engine = before

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b o"]:
        return torch.ops.quantized.linear_dynamic(x, self.packed, reduce_range=not torch.cpu._is_vnni_supported())
