"""Multi-head self-attention (Vaswani et al. 2017; Dosovitskiy et al. 2021, appendix A).

b batch, t tokens, d width, h heads, k width of a head, q some of the queries, e keys, those of padding last.
"""

from collections.abc import Sequence
from math import prod

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.norm import NormLayer
from vitrail.layers.position import Grid, RelativeKeys
from vitrail.layers.relative_axes import RelativeAxes
from vitrail.layers.rotary import Rotation, rotate
from vitrail.layers.tap import Tap
from vitrail.layers.token_merging import TokenMerger
from vitrail.layers.weight_init import xavier_fused_linear, xavier_linear
from vitrail.layers.windows import Windows, place_tokens


class Attention(nn.Module):
    """Multi-head self-attention: every token attends to every token, or with a window, every patch to those of its window.

    Windows and relative positions along the axes need the grid of the patches, which ``prefix`` tokens precede.
    """

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
        relative: RelativeKeys | RelativeAxes | None = None,
        window: int | None = None,
        prefix: int = 0,
    ) -> None:
        super().__init__()
        self.heads = heads
        qkv = nn.Linear(width, 3 * width, bias=bias) if key_bias or not bias else QueryValueBias(width)
        self.qkv = xavier_fused_linear(qkv, parts=3)
        self.out = xavier_linear(nn.Linear(width, width, bias=out_bias))
        self.norm_q = nn.Identity() if qk_norm is None else qk_norm(width // heads)
        self.norm_k = nn.Identity() if qk_norm is None else qk_norm(width // heads)
        self.relative = relative
        self.window, self.prefix = window, prefix
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
        grid: Grid | None = None,
    ) -> Float[Tensor, "b t d"]:
        q, k, v = (rearrange(part, "b t (h k) -> b t h k", h=self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = self.norm_q(q), self.norm_k(k)  # before heads move forward: the kernel's output has their order of memory
        q, k, v = (rearrange(part, "b t h k -> b h t k") for part in (q, k, v))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        q, k = self.queries(q), self.keys(k)
        if bias is not None:  # of the scores, by the offset of the patches
            bias = (bias if bias.ndim == 4 else bias[None]).to(q.dtype)  # the fused kernel takes no bias of three axes
        elif merger is not None:  # never combined with relative positions or windows
            bias = merger.attention_bias(k)
        if self.weights.recorders:  # the fused kernel never materialises the weights, so compute them explicitly
            mixed = self._attend_explicitly(q, k, v, bias, grid)
        elif self.window is not None and grid != (self.window, self.window):
            mixed = self._attend_in_windows(q, k, v, bias, self._windows(grid))
        else:
            mixed = self._attend(q, k, v, _sum(bias, self._relative_bias(q, grid)))
        return self.dropout(self.out(self.norm(rearrange(mixed, "b h t k -> b t (h k)"))))

    def scores(
        self,
        q: Float[Tensor, "b h q k"],
        k: Float[Tensor, "b h t k"],
        grid: Grid | None = None,
        rows: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> Float[Tensor, "b h q e"]:
        """Return the scores of queries, those of some rows and heads or of all, without a bias that is passed to ``forward``.

        With windows, keys that a query does not see score minus infinity, and those of the padding follow the others.
        """
        tokens, windows = k.shape[2], None if self.window is None else self._windows(grid)
        if windows is not None:
            pad = self._zero_token(k)[1] if heads is None else self._zero_token(k)[1][list(heads)]
            k = torch.cat([k, repeat(pad.to(k), "h k -> b h pads k", b=k.shape[0], pads=len(windows.pads(k.device)))], dim=2)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if isinstance(self.relative, RelativeKeys):
            scores = scores + self.relative.scores(q, rows, heads)
        elif self.relative is not None:
            assert grid is not None
            places = place_tokens(grid, self.prefix, tokens, q.device)
            keys = places if windows is None else torch.cat([places, windows.pads(q.device)])
            size = grid if windows is None else (windows.side, windows.side)
            scores = scores + self.relative.pairs(q, size, places if rows is None else places[list(rows)], keys)
        if windows is not None:
            visible = windows.visible(tokens, q.device)
            scores = scores.masked_fill(~(visible if rows is None else visible[list(rows)]), float("-inf"))
        return scores

    def _attend(
        self, q: Float[Tensor, "b h q k"], k: Float[Tensor, "b h t k"], v: Float[Tensor, "b h t k"], bias: Tensor | None
    ) -> Float[Tensor, "b h q k"]:
        dropout = self.weights_dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)

    def _attend_in_windows(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b h t k"],
        v: Float[Tensor, "b h t k"],
        bias: Float[Tensor, "... t t"] | None,
        windows: Windows,
    ) -> Float[Tensor, "b h t k"]:
        """Attend in windows; a bias is of the tokens that are no patches, as queries."""
        first, last = self.prefix, self.prefix + prod(windows.grid)
        padding = self._zero_token(q) if any(windows.padding) else q.new_zeros(3, self.heads, q.shape[-1])
        own_q, own_k, own_v = (
            windows.partition(part[:, :, first:last], pad) for part, pad in zip((q, k, v), padding, strict=True)
        )
        relative = self._relative_bias(own_q, (windows.side, windows.side), prefix=0)
        if q.shape[2] == last - first:
            return rearrange(windows.merge(self._attend(own_q, own_k, own_v, relative)), "b n h k -> b h n k")
        others = [torch.cat([part[:, :, :first], part[:, :, last:]], dim=2) for part in (q, k, v)]
        own_k, own_v = (
            torch.cat([repeat(other, "b h o k -> (b w) h o k", w=windows.count), own], dim=2)
            for other, own in zip(others[1:], (own_k, own_v), strict=True)
        )
        if relative is not None:
            relative = F.pad(relative, (others[0].shape[2], 0))
        if bias is not None:
            bias = torch.cat([bias[:, :, :first], bias[:, :, last:]], dim=2)
        patches = windows.merge(self._attend(own_q, own_k, own_v, relative))
        mixed = rearrange(self._attend(others[0], k, v, bias), "b h o k -> b o h k")
        return rearrange(torch.cat([mixed[:, :first], patches, mixed[:, first:]], dim=1), "b t h k -> b h t k")

    def _attend_explicitly(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b h t k"],
        v: Float[Tensor, "b h t k"],
        bias: Float[Tensor, "... _ t"] | None,
        grid: Grid | None,
    ) -> Float[Tensor, "b h t k"]:
        """Attend with weights that pass their tap, which sees none of the padding."""
        scores, tokens = self.scores(q, k, grid), q.shape[2]
        pads = scores.shape[3] - tokens
        weights = (scores if bias is None else scores + F.pad(bias, (0, pads))).softmax(dim=-1)
        if pads:
            pad = repeat(self._zero_token(v)[2].to(v.dtype), "h k -> b h pads k", b=v.shape[0], pads=pads)
            weights, v = (
                torch.cat([self.weights(weights[..., :tokens]), weights[..., tokens:]], dim=-1),
                torch.cat([v, pad], dim=2),
            )
        else:
            weights = self.weights(weights)
        return F.dropout(weights, self.weights_dropout if self.training else 0.0) @ v

    def _relative_bias(
        self, q: Float[Tensor, "b h t k"], grid: Grid | None, prefix: int | None = None
    ) -> Float[Tensor, "b h t t"] | None:
        """Return what relative positions add to the scores."""
        if self.relative is None or isinstance(self.relative, RelativeKeys):
            return None if self.relative is None else self.relative(q)
        assert grid is not None
        first = self.prefix if prefix is None else prefix
        last = first + prod(grid)
        bias, behind = self.relative(q[:, :, first:last], grid), q.shape[2] - last
        return F.pad(bias, (first, behind, first, behind)) if first or behind else bias

    def _windows(self, grid: Grid | None) -> Windows:
        assert grid is not None
        assert self.window is not None
        return Windows(self.window, grid, self.prefix)

    def _zero_token(self, like: Float[Tensor, "b _ t k"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value (h k) of a token of zeros, with which windows are padded."""
        zeros = torch.zeros(1, 1, self.heads * like.shape[-1], dtype=self.out.weight.dtype, device=like.device)
        q, k, v = (rearrange(part, "1 1 (h k) -> h k", h=self.heads) for part in self.qkv(zeros).chunk(3, dim=-1))
        return q, self.norm_k(k), v  # the output of the query is left out


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


class QueryValueBias(nn.Linear):
    """Queries, keys and values in one layer, of which the keys have no bias (BEiT; Bao et al. 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)
        self.bias = nn.Parameter(torch.zeros(2 * width))

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t three_d"]:
        q, v = self.bias.chunk(2)
        return F.linear(x, self.weight, torch.cat([q, torch.zeros_like(q), v]))
