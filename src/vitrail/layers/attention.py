"""Multi-head self-attention (Vaswani et al. 2017; Dosovitskiy et al. 2021, appendix A).

b batch, t tokens, d width, e three times the width, h heads, k width of a head.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.norm import NormLayer
from vitrail.layers.rotary import Rotation, rotate
from vitrail.layers.tap import Tap
from vitrail.layers.token_merging import TokenMerger
from vitrail.layers.weight_init import xavier_fused_linear, xavier_linear


class Attention(nn.Module):
    """Multi-head self-attention: every token attends to every token."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        bias: bool = True,
        key_bias: bool = True,
        out_bias: bool = True,
        qk_norm: NormLayer | None = None,
        out_norm: NormLayer | None = None,
        dropout: float = 0.0,
        weights_dropout: float = 0.0,
        relative: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        qkv = nn.Linear(width, 3 * width, bias=bias) if key_bias or not bias else QueryValueBias(width)
        self.qkv = xavier_fused_linear(qkv, parts=3)
        self.out = xavier_linear(nn.Linear(width, width, bias=out_bias))
        self.norm_q = nn.Identity() if qk_norm is None else qk_norm(width // heads)
        self.norm_k = nn.Identity() if qk_norm is None else qk_norm(width // heads)
        self.relative = relative
        self.queries, self.keys, self.weights = Tap(), Tap(), Tap()
        self.weights_dropout = weights_dropout
        self.norm = nn.Identity() if out_norm is None else out_norm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        rotation: Rotation | None = None,
        bias: Float[Tensor, "... t t"] | None = None,
        merger: TokenMerger | None = None,
    ) -> Float[Tensor, "b t d"]:
        q, k, v = (rearrange(part, "b t (h k) -> b t h k", h=self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = self.norm_q(q), self.norm_k(k)  # before heads move forward: the kernel's output has their order of memory
        q, k, v = (rearrange(part, "b t h k -> b h t k") for part in (q, k, v))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        q, k = self.queries(q), self.keys(k)
        if bias is not None:  # of the scores, by the offset of the patches
            bias = (bias if bias.ndim == 4 else bias[None]).to(q.dtype)  # the fused kernel takes no bias of three axes
        elif self.relative is not None:
            bias = self.relative(q)
        elif merger is not None:  # never combined with relative positions
            bias = merger.attention_bias(k)
        dropout = self.weights_dropout if self.training else 0.0
        if not self.weights.recorders:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        else:  # the fused kernel never materialises the weights, so compute them explicitly
            scores = q @ k.mT * q.shape[-1] ** -0.5
            weights = (scores if bias is None else scores + bias).softmax(dim=-1)
            mixed = F.dropout(self.weights(weights), dropout) @ v
        return self.dropout(self.out(self.norm(rearrange(mixed, "b h t k -> b t (h k)"))))


class QueryValueBias(nn.Linear):
    """Queries, keys and values in one layer, of which the keys have no bias (BEiT; Bao et al. 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)
        self.bias = nn.Parameter(torch.zeros(2 * width))

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t e"]:
        q, v = self.bias.chunk(2)
        return F.linear(x, self.weight, torch.cat([q, torch.zeros_like(q), v]))
