"""Attention: two code paths and two formulas give the same result."""

from typing import Any

import pytest
import torch
from einops import einsum, rearrange
from torch.testing import assert_close

from vitrail.layers.attention import Attention
from vitrail.layers.norm import norm_layer
from vitrail.layers.position import RelativeKeys
from vitrail.layers.rotary import Rotary
from vitrail.layers.tap import record_activations

B, T, D, H = 2, 7, 24, 3


def make_attention(**changes: Any) -> Attention:
    attention = Attention(D, H, **changes).eval()
    torch.nn.init.normal_(attention.out.bias)
    return attention


def test_attention_is_permutation_equivariant() -> None:
    attend, x, order = make_attention(), torch.randn(B, T, D), torch.randperm(T)
    assert_close(attend(x)[:, order], attend(x[:, order]))


def test_concatenating_heads_is_the_same_as_adding_them() -> None:
    """W_O times the concatenation equals the sum over heads of each head times its slice of W_O."""
    attend, x = make_attention(), torch.randn(B, T, D)
    q, k, v = rearrange(attend.qkv(x), "b t (qkv h k) -> qkv h b t k", qkv=3, h=H)
    summed = attend.out.bias.expand(B, T, D)
    for head in range(H):
        weights = (q[head] @ k[head].mT / (D // H) ** 0.5).softmax(-1)
        mine = slice(head * D // H, (head + 1) * D // H)
        summed = summed + einsum(weights @ v[head], attend.out.weight[:, mine], "b t k, d k -> b t d")
    assert_close(attend(x), summed)


@pytest.mark.parametrize(
    "changes",
    [{}, {"bias": False}, {"qk_norm": norm_layer()}, {"relative": RelativeKeys(T, H, D // H)}],
    ids=["plain", "no bias", "qk-norm", "relative"],
)
@pytest.mark.parametrize("rotary", [False, True], ids=["", "rotary"])
def test_the_fused_path_equals_the_explicit_one(changes: dict[str, Any], rotary: bool) -> None:
    attend, x = make_attention(**changes), torch.randn(B, T, D)
    rotation = Rotary((2, 3), D // H, prefix=1)((2, 3), x.device) if rotary else None
    fused = attend(x, rotation)
    with record_activations(attend, "weights") as recorded:
        explicit = attend(x, rotation)
    (weights,) = recorded["weights"]
    assert_close(fused, explicit, rtol=0, atol=1e-6)
    assert weights.shape == (B, H, T, T)
    assert_close(weights.sum(-1), torch.ones(B, H, T))


def test_attention_dropout_has_the_same_rate_on_both_paths() -> None:
    """With values of one and zero weights elsewhere, an output is the fraction of attention kept over its expectation."""
    attend = make_attention(weights_dropout=0.25).train()
    with torch.no_grad():
        attend.qkv.weight.zero_()
        attend.qkv.bias.copy_(torch.cat([torch.zeros(2 * D), torch.ones(D)]))
        attend.out.weight.copy_(torch.eye(D))
        attend.out.bias.zero_()
    x = torch.zeros(400, T, D)
    fused = attend(x)
    with record_activations(attend, "weights"):
        explicit = attend(x)
    for output in (fused, explicit):
        assert_close(output.mean(), torch.tensor(1.0), rtol=0, atol=0.02)
        assert_close(output.var(), torch.tensor(0.25 / 0.75 / T), rtol=0.1, atol=0)
