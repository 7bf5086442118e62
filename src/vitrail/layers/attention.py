"""Multi-head self-attention (Vaswani et al. 2017; Dosovitskiy et al. 2021, appendix A).

b batch, t tokens, d width, h heads, k width of a head.
"""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.position import Rotation, rotate
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
        norm_eps: float | None = None,
        dropout: float = 0.0,
        weights_dropout: float = 0.0,
        relative: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = xavier_fused_linear(nn.Linear(width, 3 * width, bias=bias), parts=3)
        self.out = xavier_linear(nn.Linear(width, width))
        self.norm_q = nn.Identity() if norm_eps is None else nn.LayerNorm(width // heads, eps=norm_eps)
        self.norm_k = nn.Identity() if norm_eps is None else nn.LayerNorm(width // heads, eps=norm_eps)
        self.relative = relative
        self.queries, self.keys, self.weights = Tap(), Tap(), Tap()
        self.weights_dropout = weights_dropout
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b t d"], rotation: Rotation | None = None, merger: TokenMerger | None = None
    ) -> Float[Tensor, "b t d"]:
        q, k, v = (rearrange(part, "b t (h k) -> b h t k", h=self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = self.norm_q(q), self.norm_k(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        q, k = self.queries(q), self.keys(k)
        scale = q.shape[-1] ** -0.5
        bias = None if self.relative is None else self.relative(q) * scale
        if merger is not None:  # never combined with relative positions
            bias = merger.attention_bias(k)
        dropout = self.weights_dropout if self.training else 0.0
        if not self.weights.recorders:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        else:  # the fused kernel never materialises the weights, so compute them explicitly
            scores = q @ k.mT * scale
            weights = (scores if bias is None else scores + bias).softmax(dim=-1)
            mixed = F.dropout(self.weights(weights), dropout) @ v
        return self.dropout(self.out(rearrange(mixed, "b h t k -> b t (h k)")))
