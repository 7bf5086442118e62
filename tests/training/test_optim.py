"""Each optimiser is its formula, and every weight is updated as the recipe says."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.recipes.recipe import Optim
from vitrail.training.ema import EMA
from vitrail.training.muon import Muon, newton_schulz
from vitrail.training.optim import build_optimisers, freeze, has_weight_decay, locate_param, set_lr


def twins() -> tuple[nn.Linear, nn.Linear]:
    one, two = nn.Linear(5, 7), nn.Linear(5, 7)
    two.load_state_dict(one.state_dict())
    return one, two


def gradient(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)


def test_adamw_is_its_formula() -> None:
    optim = Optim(lr=0.01, betas=(0.8, 0.9), weight_decay=0.3)
    model = nn.Sequential(nn.Linear(5, 7))
    weight, bias = (value.detach().clone() for value in model.parameters())
    built = build_optimisers(model, optim)
    moments = {id(value): (torch.zeros_like(value), torch.zeros_like(value)) for value in (weight, bias)}
    for step in range(1, 6):
        gradient(model, step)
        set_lr(built, optim, 0.5)
        for optimiser in built:
            optimiser.step()
        for value, own in zip((weight, bias), model.parameters(), strict=True):
            first, second = moments[id(value)]
            assert own.grad is not None
            first.mul_(0.8).add_(0.2 * own.grad)
            second.mul_(0.9).add_(0.1 * own.grad**2)
            value.mul_(1 - 0.005 * (0.3 if value.ndim == 2 else 0))  # biases never decay
            value.sub_(0.005 * (first / (1 - 0.8**step)) / ((second / (1 - 0.9**step)).sqrt() + 1e-8))
            assert_close(own.detach(), value, rtol=1e-5, atol=1e-6)


def test_independent_weight_decay_does_not_depend_on_the_learning_rate() -> None:
    for lr in (1e-3, 1e-1):
        model = nn.Linear(5, 7)
        before = model.weight.detach().clone()
        optim = Optim(lr=lr, weight_decay=0.25, independent_weight_decay=True)
        built = build_optimisers(model, optim)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        set_lr(built, optim, 0.5)
        built[0].step()
        assert_close(model.weight.detach(), before * (1 - 0.5 * 0.25))


def test_sgd_is_its_formula() -> None:
    optim = Optim(name="sgd", lr=0.1, momentum=0.7)
    model = nn.Linear(5, 7)
    value, velocity = model.weight.detach().clone(), torch.zeros(7, 5)
    built = build_optimisers(model, optim)
    for step in range(4):
        gradient(model, step)
        set_lr(built, optim, 1.0)
        built[0].step()
        assert model.weight.grad is not None
        velocity = 0.7 * velocity + model.weight.grad
        value -= 0.1 * velocity
        assert_close(model.weight.detach(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 24, 8), (2, 8, 24)])
def test_newton_schulz_keeps_the_directions_and_equalises_the_singular_values(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    result = newton_schulz(matrices)
    assert ((torch.linalg.svdvals(result) > 0.5) & (torch.linalg.svdvals(result) < 1.3)).all()
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    rotated = u.mT @ result @ v.mT  # in the matrices' own directions nothing is off the diagonal
    off = rotated - torch.diag_embed(rotated.diagonal(dim1=-2, dim2=-1))
    assert off.abs().max() < 1e-4


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 40, 8), (2, 8, 24)])
def test_newton_schulz_is_its_plain_iteration(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -3, shape[2])
    x = matrices.double() / torch.linalg.matrix_norm(matrices.double())[:, None, None]
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x @ x.mT @ x + 2.0315 * x @ x.mT @ x @ x.mT @ x
    assert_close(newton_schulz(matrices), x.float(), rtol=0, atol=2e-3)  # as near as bfloat16 for matrices that are not square


def test_muon_is_torchs_muon_but_for_its_precision() -> None:
    one, two = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
    two.load_state_dict(one.state_dict())
    ours = Muon(one.parameters(), lr=0.02, momentum=0.9, weight_decay=0.1)
    theirs = torch.optim.Muon(two.parameters(), lr=0.02, momentum=0.9, weight_decay=0.1, nesterov=True)
    for step in range(3):
        gradient(one, step)
        gradient(two, step)
        ours.step()
        theirs.step()
        assert_close(one.weight, two.weight, rtol=0, atol=2e-3)  # theirs is orthogonalised in bfloat16


def test_norms_biases_tokens_and_positions_never_decay() -> None:
    model = small_vit(registers=2, pool="map", layer_scale=1e-3)
    undecayed = {name for name, weight in model.named_parameters() if not has_weight_decay(name, weight)}
    assert {name for name, _ in model.named_parameters() if name.endswith(".bias") or "norm" in name} <= undecayed
    assert {"registers", "pool.probe", "blocks.0.scale1.scale"} <= undecayed
    assert any(name.startswith("positions.") for name in undecayed)
    assert {"embed.project.weight", "blocks.0.attention.qkv.weight", "blocks.1.mlp.up.weight", "head.weight"}.isdisjoint(
        undecayed
    )


def test_layer_decay_and_head_lr_scale_set_the_rates_of_blocks_and_head() -> None:
    model = small_vit(depth=3)
    optim = Optim(lr=1.0, layer_decay=0.5, head_lr_scale=4.0)
    built = build_optimisers(model, optim)
    set_lr(built, optim, 0.1)
    rates = {id(weight): group["lr"] for group in built[0].param_groups for weight in group["params"]}
    by_name = {name: rates[id(weight)] for name, weight in model.named_parameters()}
    assert by_name["head.weight"] == pytest.approx(0.4)
    assert by_name["norm.weight"] == pytest.approx(0.1)
    assert by_name["blocks.2.mlp.up.weight"] == pytest.approx(0.05)
    assert by_name["blocks.0.mlp.up.weight"] == pytest.approx(0.0125)
    assert by_name["embed.project.weight"] == pytest.approx(0.00625)


@pytest.mark.parametrize(("train", "blocks", "first"), [("head", 0, None), ("blocks", 1, 2), ("blocks", 2, 1), ("all", 0, 0)])
def test_what_is_not_trained_is_frozen(train: str, blocks: int, first: int | None) -> None:
    model = small_vit(depth=3)
    freeze(model, Optim(trainable=train, trainable_blocks=blocks))  # type: ignore[arg-type]
    for name, weight in model.named_parameters():
        where = locate_param(name, 3)
        trained = where.head or (first is not None and where.depth > first) or train == "all"
        assert weight.requires_grad == trained, name


def test_muon_updates_the_matrices_of_blocks_and_adamw_the_rest() -> None:
    model = small_vit()
    first, second = build_optimisers(model, Optim(name="muon"))
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert isinstance(second, Muon)
    moved = {names[id(weight)] for group in second.param_groups for weight in group["params"]}
    assert moved == {name for name, weight in model.named_parameters() if name.startswith("blocks.") and weight.ndim == 2}
    rest = {names[id(weight)] for group in first.param_groups for weight in group["params"]}
    assert rest | moved == set(names.values())
    assert not rest & moved


def test_groups_of_equally_many_weights_stay_separate() -> None:
    """Four matrices and four other weights, which must not be compared value by value."""
    model = nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(5, 7) for _ in range(4))})
    first, second = build_optimisers(model, Optim(name="muon"))
    assert [len(optimiser.param_groups[0]["params"]) for optimiser in (first, second)] == [4, 4]


def test_layer_decay_needs_blocks() -> None:
    with pytest.raises(VitrailError, match=r"optim.layer_decay is from block to block, and this model has no blocks"):
        build_optimisers(
            build(ResNetConfig(stages=(1, 1), width=32, image=(32, 32), classes=3)), Optim(name="sgd", layer_decay=0.75)
        )


def test_ema_is_its_formula() -> None:
    model = nn.Linear(3, 4)
    ema = EMA(model, 0.9)
    expected = model.weight.detach().clone()
    for step in range(1, 200):
        with torch.no_grad():
            model.weight.add_(torch.randn(4, 3))
        ema.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
        assert_close(ema.model.get_parameter("weight"), expected, rtol=1e-4, atol=1e-5)
    assert not any(weight.requires_grad for weight in ema.model.parameters())
