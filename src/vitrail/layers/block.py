"""One layer of the encoder (Dosovitskiy et al. 2021, equations 2 and 3), and two other places of its norms."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.attention import Attention
from vitrail.layers.mlp import MLP, SwiGLU
from vitrail.layers.norm import NormLayer, norm_layer
from vitrail.layers.position import Grid
from vitrail.layers.residual import LayerScale, StochasticDepth
from vitrail.layers.rotary import Rotation
from vitrail.layers.token_merging import TokenMerger


class Block(nn.Module):
    """Pre-norm block: attention, then MLP, each on the normalised residual stream."""

    def __init__(
        self,
        width: int,
        attention: Attention,
        mlp: MLP | SwiGLU,
        *,
        norm: NormLayer | None = None,
        layer_scale: float | None = None,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        norm = norm or norm_layer()
        self.norm1 = norm(width)
        self.attention = attention
        self.scale1 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.norm2 = norm(width)
        self.mlp = mlp
        self.scale2 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.drop = StochasticDepth(stochastic_depth)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        rotation: Rotation | None = None,
        bias: Float[Tensor, "... t t"] | None = None,
        merger: TokenMerger | None = None,
        grid: Grid | None = None,
    ) -> Float[Tensor, "b m d"]:
        x = x + self.drop(self.scale1(self.attention(self.norm1(x), rotation, bias, merger, grid)))
        x = x if merger is None else merger(x)
        return x + self.drop(self.scale2(self.mlp(self.norm2(x))))


class BranchNormBlock(Block):
    """Block that normalises the output of each branch before the addition (res-post-norm; Liu et al. 2022, Swin V2)."""

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        rotation: Rotation | None = None,
        bias: Float[Tensor, "... t t"] | None = None,
        merger: TokenMerger | None = None,
        grid: Grid | None = None,
    ) -> Float[Tensor, "b m d"]:
        x = x + self.drop(self.scale1(self.norm1(self.attention(x, rotation, bias, merger, grid))))
        x = x if merger is None else merger(x)
        return x + self.drop(self.scale2(self.norm2(self.mlp(x))))


class PostNormBlock(Block):
    """Post-norm block: normalise after the addition (Vaswani et al. 2017); the encoder needs no final norm."""

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        rotation: Rotation | None = None,
        bias: Float[Tensor, "... t t"] | None = None,
        merger: TokenMerger | None = None,
        grid: Grid | None = None,
    ) -> Float[Tensor, "b m d"]:
        x = self.norm1(x + self.drop(self.scale1(self.attention(x, rotation, bias, merger, grid))))
        x = x if merger is None else merger(x)
        return self.norm2(x + self.drop(self.scale2(self.mlp(x))))
