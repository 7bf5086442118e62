"""Attention: two paths and two formulas to one number."""

from typing import Any

import pytest
import torch
from einops import einsum, rearrange
from torch.testing import assert_close

from vitrail.layers.attention import Attention
from vitrail.layers.position import RelativeKeys, Rotary
from vitrail.layers.tap import recording

B, T, D, H = 2, 7, 24, 3


def make(**changes: Any) -> Attention:
    made = Attention(D, H, **changes).eval()
    torch.nn.init.normal_(made.out.bias)
    return made


def test_it_does_not_know_the_order() -> None:
    attend, x, order = make(), torch.randn(B, T, D), torch.randperm(T)
    assert_close(attend(x)[:, order], attend(x[:, order]))


def test_concatenating_heads_is_the_same_as_adding_them() -> None:
    """W_O times the concatenation equals the sum over heads of each head times its slice of W_O."""
    attend, x = make(), torch.randn(B, T, D)
    q, k, v = rearrange(attend.qkv(x), "b t (qkv h k) -> qkv h b t k", qkv=3, h=H)
    summed = attend.out.bias.expand(B, T, D)
    for head in range(H):
        weights = (q[head] @ k[head].mT / (D // H) ** 0.5).softmax(-1)
        mine = slice(head * D // H, (head + 1) * D // H)
        summed = summed + einsum(weights @ v[head], attend.out.weight[:, mine], "b t k, d k -> b t d")
    assert_close(attend(x), summed)


@pytest.mark.parametrize(
    "changes",
    [{}, {"bias": False}, {"norm_epsilon": 1e-6}, {"relative": RelativeKeys(T, H, D // H)}],
    ids=["plain", "no bias", "qk-norm", "relative"],
)
@pytest.mark.parametrize("turned", [False, True], ids=["", "rotary"])
def test_the_fused_path_equals_the_open_one(changes: dict[str, Any], turned: bool) -> None:
    attend, x = make(**changes), torch.randn(B, T, D)
    rotation = Rotary((2, 3), D // H, prefix=1)((2, 3), x.device) if turned else None
    fused = attend(x, rotation)
    with recording(attend, "weights") as seen:
        in_the_open = attend(x, rotation)
    (weights,) = seen["weights"]
    assert_close(fused, in_the_open, rtol=0, atol=1e-6)
    assert weights.shape == (B, H, T, T)
    assert_close(weights.sum(-1), torch.ones(B, H, T))


def test_dropping_weights_drops_the_same_share_on_both_paths() -> None:
    """With values of one and no other weights, an output is the share of attention that was kept, over what is expected."""
    attend = make(weights_dropout=0.25).train()
    with torch.no_grad():
        attend.qkv.weight.zero_()
        attend.qkv.bias.copy_(torch.cat([torch.zeros(2 * D), torch.ones(D)]))
        attend.out.weight.copy_(torch.eye(D))
        attend.out.bias.zero_()
    x = torch.zeros(400, T, D)
    fused = attend(x)
    with recording(attend, "weights"):
        in_the_open = attend(x)
    for kept in (fused, in_the_open):
        assert_close(kept.mean(), torch.tensor(1.0), rtol=0, atol=0.02)
        assert_close(kept.var(), torch.tensor(0.25 / 0.75 / T), rtol=0.1, atol=0)
