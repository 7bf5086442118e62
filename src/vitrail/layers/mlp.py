"""The MLP of a block: expand, GELU, project (Dosovitskiy et al. 2021, section 3.1 and B.1); and one with a gate."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.norm import NormLayer
from vitrail.layers.weight_init import xavier_fused_linear, xavier_linear

Gelu = Literal["tanh", "exact", "quick"]


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x), the approximation of a GELU that OpenAI's CLIP uses (Radford et al. 2021)."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return x * torch.sigmoid(1.702 * x)


class MLP(nn.Module):
    """Two linear layers with a GELU, applied to each token separately; ``norm``: of the hidden layer (NormFormer)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        gelu: Gelu = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        norm: NormLayer | None = None,
    ) -> None:
        super().__init__()
        self.up = xavier_linear(nn.Linear(width, hidden, bias=bias))
        self.gelu = QuickGELU() if gelu == "quick" else nn.GELU(approximate="tanh" if gelu == "tanh" else "none")
        self.norm = nn.Identity() if norm is None else norm(hidden)
        self.down = xavier_linear(nn.Linear(hidden, width, bias=bias))
        self.dropout = nn.Dropout(dropout)
        _start_biases(self.up, self.down)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        hidden = self.up(x)
        if isinstance(self.gelu, nn.GELU) and self._can_gelu_in_place():
            hidden = torch.ops.aten.gelu_(hidden, approximate=self.gelu.approximate)
        else:
            hidden = self.gelu(hidden)
        return self.dropout(self.down(self.norm(self.dropout(hidden))))

    def _can_gelu_in_place(self) -> bool:
        """Whether the GELU may overwrite its input, because neither a gradient nor a hook reads it. Allocating the widest
        of all tensors costs a large batch up to a fifth of its time."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        return not (self.up._forward_hooks or self.gelu._forward_hooks or self.gelu._forward_pre_hooks)


class SwiGLU(nn.Module):
    """MLP whose hidden layer is silu(gate) * value, two projections of each token (Shazeer 2020); DINOv2's giant has it."""

    def __init__(
        self, width: int, hidden: int, *, dropout: float = 0.0, bias: bool = True, norm: NormLayer | None = None
    ) -> None:
        super().__init__()
        self.up = xavier_fused_linear(nn.Linear(width, 2 * hidden, bias=bias), parts=2)  # the gate, then the value
        self.silu = nn.SiLU()
        self.norm = nn.Identity() if norm is None else norm(hidden)
        self.down = xavier_linear(nn.Linear(hidden, width, bias=bias))
        self.dropout = nn.Dropout(dropout)
        _start_biases(self.up, self.down)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.dropout(self.down(self.norm(self.dropout(self.silu(gate) * value))))


def _start_biases(*layers: nn.Linear) -> None:
    for layer in layers:
        if layer.bias is not None:
            nn.init.normal_(layer.bias, std=1e-6)
