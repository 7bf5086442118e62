"""The MLP: the same output with and without gradients and hooks."""

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitrail.layers.mlp import MLP, SwiGLU


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_without_gradients_the_gelu_is_in_place_and_the_output_is_the_same(gelu: Literal["tanh", "exact"]) -> None:
    torch.manual_seed(0)
    mlp, x = MLP(6, 24, gelu=gelu), torch.randn(2, 5, 6)
    expected = mlp(x).detach()
    copied = x.clone()
    with torch.inference_mode():
        assert torch.equal(mlp(x), expected)
    with torch.no_grad():
        assert torch.equal(mlp(x), expected)
    assert torch.equal(x, copied)


@pytest.mark.parametrize("part", ["up", "gelu"])
def test_a_hook_gets_the_output_of_its_layer(part: str) -> None:
    torch.manual_seed(0)
    mlp, x = MLP(6, 24), torch.randn(2, 5, 6)
    outputs: list[Tensor] = []
    mlp.get_submodule(part).register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with torch.no_grad():
        mlp(x)
        up = mlp.up(x) if part == "gelu" else torch.nn.functional.linear(x, mlp.up.weight, mlp.up.bias)
    assert_close(outputs[0], mlp.gelu(up) if part == "gelu" else up)


@pytest.mark.parametrize("inference", [True, False])
def test_quick_gelu_is_clips(inference: bool) -> None:
    """x * sigmoid(1.702 x), with and without the path that overwrites its input."""
    mlp, x = MLP(6, 10, gelu="quick"), torch.randn(2, 4, 6)
    with torch.inference_mode(inference):
        hidden = mlp.up(x)
        assert_close(mlp(x), mlp.down(hidden * torch.sigmoid(1.702 * hidden)))


def test_swiglu_is_two_projections_one_of_which_gates_the_other() -> None:
    mlp, x = SwiGLU(6, 10), torch.randn(2, 4, 6)
    gate = torch.nn.functional.linear(x, mlp.up.weight[:10], mlp.up.bias[:10])
    value = torch.nn.functional.linear(x, mlp.up.weight[10:], mlp.up.bias[10:])
    assert_close(mlp(x), mlp.down(gate * torch.sigmoid(gate) * value))
