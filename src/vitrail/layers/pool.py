"""Pooling of tokens to one vector per image: the class token (Dosovitskiy et al. 2021), the mean of the patches (its GAP), or
attention pooling (MAP; Zhai et al. 2022, big_vision).

If tokens represent several patches each (``layers.token_merging``), ``sizes`` gives their number: each patch counts once.

b batch, t tokens, d width, h heads, k width of a head, q the one query, f twice the width.
"""

import math

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.mlp import MLP, Gelu
from vitrail.layers.norm import NormLayer, norm_layer
from vitrail.layers.tap import Tap
from vitrail.layers.weight_init import xavier_fused_linear, xavier_linear


class ClassPool(nn.Module):
    """Return the class token."""

    def forward(self, x: Float[Tensor, "b t d"], sizes: Float[Tensor, "b t"] | None = None) -> Float[Tensor, "b d"]:
        return x[:, 0]


class AveragePool(nn.Module):
    """Return the mean of the patch tokens, without the prefix tokens."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix

    def forward(self, x: Float[Tensor, "b t d"], sizes: Float[Tensor, "b t"] | None = None) -> Float[Tensor, "b d"]:
        if sizes is None:
            return x[:, self.prefix :].mean(dim=1)
        weights = sizes[:, None, self.prefix :] / sizes[:, None, self.prefix :].sum(dim=-1, keepdim=True)
        return (weights.to(x.dtype) @ x[:, self.prefix :])[:, 0]


class ClassAndAveragePool(nn.Module):
    """Return the class token and the mean of the patch tokens, concatenated (the linear classifier of Oquab et al. 2023)."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.average = AveragePool(prefix)

    def forward(self, x: Float[Tensor, "b t d"], sizes: Float[Tensor, "b t"] | None = None) -> Float[Tensor, "b f"]:
        return torch.cat([x[:, 0], self.average(x, sizes)], dim=-1)


class ClassAndRegisterPool(nn.Module):
    """Return the class token and the first register, concatenated: DeiT's distilled tokens (Touvron et al. 2021)."""

    def forward(self, x: Float[Tensor, "b t d"], sizes: Float[Tensor, "b t"] | None = None) -> Float[Tensor, "b f"]:
        return x[:, :2].flatten(1)


class AttentionPool(nn.Module):
    """Attention pooling: one learned query attends to every token but the first ``prefix``, followed by an MLP."""

    def __init__(
        self, width: int, heads: int, mlp: int, *, prefix: int, norm: NormLayer | None = None, gelu: Gelu = "tanh"
    ) -> None:
        super().__init__()
        self.heads = heads
        self.prefix = prefix
        self.probe = nn.Parameter(torch.empty(width))
        bound = math.sqrt(6 / (1 + width))  # Xavier-uniform of a 1 x d matrix
        nn.init.uniform_(self.probe, -bound, bound)
        self.q = xavier_linear(nn.Linear(width, width))
        self.kv = xavier_fused_linear(nn.Linear(width, 2 * width), parts=2)
        self.out = xavier_linear(nn.Linear(width, width))
        self.weights = Tap()
        self.norm = (norm or norm_layer())(width)
        self.mlp = MLP(width, mlp, gelu=gelu)

    def forward(self, x: Float[Tensor, "b t d"], sizes: Float[Tensor, "b t"] | None = None) -> Float[Tensor, "b d"]:
        patches = x[:, self.prefix :]
        bias = None if sizes is None else sizes[:, None, None, self.prefix :].log().to(x.dtype)
        probe = repeat(self.probe, "d -> b 1 d", b=patches.shape[0])
        q = rearrange(self.q(probe), "b q (h k) -> b h q k", h=self.heads)
        k, v = rearrange(self.kv(patches), "b t (kv h k) -> kv b h t k", kv=2, h=self.heads)
        if not self.weights.recorders:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            mixed = self.weights((scores if bias is None else scores + bias).softmax(dim=-1)) @ v
        pooled = self.out(rearrange(mixed, "b h 1 k -> b (h k)"))
        return pooled + self.mlp(self.norm(pooled))
