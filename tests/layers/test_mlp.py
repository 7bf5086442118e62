"""The MLP: the same with and without a gradient, whoever looks."""

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitrail.layers.mlp import MLP


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_without_a_gradient_the_memory_is_used_twice_and_the_answer_is_the_same(gelu: Literal["tanh", "exact"]) -> None:
    torch.manual_seed(0)
    mlp, x = MLP(6, 24, gelu=gelu), torch.randn(2, 5, 6)
    expected = mlp(x).detach()
    kept = x.clone()
    with torch.inference_mode():
        assert torch.equal(mlp(x), expected)
    with torch.no_grad():
        assert torch.equal(mlp(x), expected)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("part", ["up", "gelu"])
def test_who_looks_at_a_layer_sees_what_it_said(part: str) -> None:
    torch.manual_seed(0)
    mlp, x = MLP(6, 24), torch.randn(2, 5, 6)
    seen: list[Tensor] = []
    mlp.get_submodule(part).register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        mlp(x)
        up = mlp.up(x) if part == "gelu" else torch.nn.functional.linear(x, mlp.up.weight, mlp.up.bias)
    assert_close(seen[0], mlp.gelu(up) if part == "gelu" else up)
