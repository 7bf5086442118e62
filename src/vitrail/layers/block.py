"""One layer of the encoder (Dosovitskiy et al. 2021, equations 2 and 3), and the original Transformer's post-norm order."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.attention import Attention
from vitrail.layers.drop import LayerScale, StochasticDepth
from vitrail.layers.merge import Merging
from vitrail.layers.mlp import MLP
from vitrail.layers.position import Rotation


class Block(nn.Module):
    """Pre-norm block: attention, then MLP, each on the normalised residual stream."""

    def __init__(
        self,
        width: int,
        attention: Attention,
        mlp: MLP,
        *,
        epsilon: float = 1e-6,
        layer_scale: float | None = None,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.attention = attention
        self.scale1 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.mlp = mlp
        self.scale2 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.drop = StochasticDepth(stochastic_depth)

    def forward(
        self, x: Float[Tensor, "b t d"], rotation: Rotation | None = None, merging: Merging | None = None
    ) -> Float[Tensor, "b m d"]:
        x = x + self.drop(self.scale1(self.attention(self.norm1(x), rotation, merging)))
        x = x if merging is None else merging(x)
        return x + self.drop(self.scale2(self.mlp(self.norm2(x))))


class PostNormBlock(Block):
    """Post-norm block: normalise after the addition (Vaswani et al. 2017); the encoder needs no final norm."""

    def forward(
        self, x: Float[Tensor, "b t d"], rotation: Rotation | None = None, merging: Merging | None = None
    ) -> Float[Tensor, "b m d"]:
        x = self.norm1(x + self.drop(self.scale1(self.attention(x, rotation, merging))))
        x = x if merging is None else merging(x)
        return self.norm2(x + self.drop(self.scale2(self.mlp(x))))
