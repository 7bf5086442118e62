"""The MLP of a block: wide, GELU, narrow (Dosovitskiy et al. 2021, section 3.1 and B.1)."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.initial import dense


class MLP(nn.Module):
    """Every token thinks for itself."""

    def __init__(self, width: int, hidden: int, *, gelu: Literal["tanh", "exact"] = "tanh", dropout: float = 0.0) -> None:
        super().__init__()
        self.up = dense(nn.Linear(width, hidden))
        self.gelu = nn.GELU(approximate="tanh" if gelu == "tanh" else "none")
        self.down = dense(nn.Linear(hidden, width))
        self.dropout = nn.Dropout(dropout)
        for linear in (self.up, self.down):
            nn.init.normal_(linear.bias, std=1e-6)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return self.dropout(self.down(self.dropout(self.gelu(self.up(x)))))
