"""The training benchmark, shortened: every library's model takes a step of the same shape."""

import pytest
from torch import nn

from tests.reference_libraries import reference_library
from tests.tiers import quick_first
from vitrail.bench.reference_models import reference_models
from vitrail.bench.train_step import OURS, OWN_RECIPE, benchmark_shapes, benchmark_train_step
from vitrail.models.cost import cost


@pytest.mark.thorough
@pytest.mark.parity
def test_ours_and_the_peers_take_steps_at_the_demos_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    reference_library("timm")
    monkeypatch.setattr("vitrail.bench.train_step.TURN_SECONDS", 0.05)
    speed = benchmark_train_step(rounds=1, names=("demo",))
    assert set(speed.peers["demo"]) == {"timm", "transformers", "vit-pytorch"}
    assert set(speed.ours["demo"]) == {OURS, OWN_RECIPE}
    best = max(speed.peers["demo"].values())
    assert speed.demo_ratio == pytest.approx(speed.ours["demo"][OURS] / best, abs=1e-3)
    assert speed.small_ratio is None
    flops = 6 * cost(benchmark_shapes()["demo"].model).macs * speed.ours["demo"][OURS]
    assert speed.gemm_fraction["demo"] == pytest.approx(flops / (1e9 * speed.gigaflops), rel=0.01)


@pytest.mark.parity
@pytest.mark.parametrize("name", quick_first(["demo", "small", "s16"], 2))
def test_the_peers_models_are_of_our_size(name: str) -> None:
    reference_library("timm")
    shape = benchmark_shapes()[name]
    ours = cost(shape.model).parameters
    for library, model in reference_models(shape.model).items():
        assert isinstance(model, nn.Module)
        theirs = sum(weight.numel() for weight in model.parameters())
        assert theirs == pytest.approx(ours, rel=0.01), library  # positions, tokens and biases differ
