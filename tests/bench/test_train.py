"""The training benchmark, shortened: every library's model takes a step of the same shape."""

import pytest
from torch import nn

from tests.peers import peer
from vitrail.bench.peers import models
from vitrail.bench.train import OURS, OWN, shapes, train_speed
from vitrail.models.cost import cost


@pytest.mark.parity
def test_ours_and_the_peers_take_steps_at_the_demos_shape() -> None:
    peer("timm")
    speed = train_speed(rounds=1, only=("demo",))
    assert set(speed.peers["demo"]) == {"timm", "transformers", "vit-pytorch"}
    assert set(speed.ours["demo"]) == {OURS, OWN}
    best = max(speed.peers["demo"].values())
    assert speed.demo_ratio == pytest.approx(speed.ours["demo"][OURS] / best, abs=1e-3)
    assert speed.small_ratio is None
    flops = 6 * cost(shapes()["demo"].model).macs * speed.ours["demo"][OURS]
    assert speed.gemm_share["demo"] == pytest.approx(flops / (1e9 * speed.gigaflops), rel=0.01)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["demo", "small", "s16"])
def test_the_peers_models_are_of_our_size(name: str) -> None:
    peer("timm")
    shape = shapes()[name]
    ours = cost(shape.model).parameters
    for library, model in models(shape.model).items():
        assert isinstance(model, nn.Module)
        theirs = sum(weight.numel() for weight in model.parameters())
        assert theirs == pytest.approx(ours, rel=0.01), library  # positions, tokens and biases differ
