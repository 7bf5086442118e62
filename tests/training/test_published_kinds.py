"""Models of published kinds are trained like any other: step, precision, recomputed activations, decay, depth."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from tests.small_models import PUBLISHED_KINDS, classification_task, small_config, small_vit
from tests.tiers import quick_only, thorough
from tests.training.small_run import build_test_model, recipe
from vitrail.augment.policy import get_policy
from vitrail.data.loader import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.models.config import RelativeBiasConfig, RotaryConfig
from vitrail.models.vit import ViT
from vitrail.recipes.recipe import Optim, Recipe
from vitrail.training.optim import build_optimisers, freeze, has_weight_decay, locate_param, set_lr
from vitrail.training.state import create_state
from vitrail.training.step import train_step

every_kind = pytest.mark.parametrize("changes", PUBLISHED_KINDS.values(), ids=PUBLISHED_KINDS.keys())


def small_batch() -> Batch:
    return Batch(torch.randn(7, 3, 12, 15), torch.arange(7) % 5, torch.arange(7))


def kind_recipe(changes: dict[str, Any], **settings: Any) -> Recipe:
    model = small_config(**{"depth": 2, **changes})
    return recipe(model=model, preprocess=Preprocess((12, 15)), augment=get_policy("none"), **settings)


@every_kind
@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_every_weight_is_trained_and_the_loss_falls(changes: dict[str, Any], optimiser: str) -> None:
    settings = kind_recipe(changes, optim=Optim(name=optimiser, lr=1e-2, weight_decay=0.1))  # type: ignore[arg-type]
    model, task, batch = build_test_model(settings), classification_task(5), small_batch()
    state = create_state(model, replace(settings, schedule=replace(settings.schedule, warmup_steps=0)))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    losses = [train_step(state, task, batch, settings)["loss"] for _ in range(8)]
    assert losses[-1] < losses[0]
    unmoved = {name for name, weight in model.named_parameters() if torch.equal(before[name], weight)}
    assert not unmoved


@every_kind
# torch has no fused RMSNorm of bfloat16 with weights in float32 on a CPU, and says so
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_a_step_in_bfloat16_is_near_that_in_float32(changes: dict[str, Any]) -> None:
    batch, task = small_batch(), classification_task(5)
    metrics = []
    for precision in ("float32", "bfloat16"):
        settings = kind_recipe(changes, precision=precision)
        metrics.append(train_step(create_state(build_test_model(settings), settings), task, batch, settings))
    assert metrics[1]["loss"] == pytest.approx(metrics[0]["loss"], rel=0.05)
    assert metrics[1]["grad_norm"] == pytest.approx(metrics[0]["grad_norm"], rel=0.1)


def gradients(model: ViT, images: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    F.cross_entropy(model(images), torch.arange(images.shape[0]) % 5).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@every_kind
def test_recomputed_activations_give_the_same_gradients(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(3, 3, 12, 15)
    expected = gradients(model, images)
    assert expected.keys() == dict(model.named_parameters()).keys()
    model.activation_checkpointing = True
    for name, gradient in gradients(model, images).items():
        assert_close(gradient, expected[name], rtol=0, atol=0, msg=name)


@every_kind
def test_matrices_decay_and_what_is_in_place_of_a_table_does_not(changes: dict[str, Any]) -> None:
    model = small_vit(**changes)
    for name, weight in model.named_parameters():
        free = ("rotary.", "relative_bias.", "positions.")
        matrix = weight.ndim >= 2 and not name.startswith(free) and name not in ("cls", "registers")
        matrix = matrix and ".attention.relative." not in name
        assert has_weight_decay(name, weight) == matrix, name


def test_frequencies_and_biases_of_a_layer_have_its_rate_and_freeze_with_it() -> None:
    model = small_vit(depth=3, rotary=RotaryConfig(mixed=True), relative_bias=RelativeBiasConfig())
    optim = Optim(lr=1.0, layer_decay=0.5)
    built = build_optimisers(model, optim)
    set_lr(built, optim, 1.0)
    rates = {id(weight): group["lr"] for group in built[0].param_groups for weight in group["params"]}
    by_name = {name: rates[id(weight)] for name, weight in model.named_parameters()}
    for layer in range(3):
        for name in (f"rotary.{layer}.frequencies", f"relative_bias.{layer}.table", f"relative_bias.{layer}.class_token"):
            assert by_name[name] == by_name[f"blocks.{layer}.mlp.up.weight"] == pytest.approx(0.5 ** (3 - layer))
    freeze(model, Optim(trainable="blocks", trainable_blocks=1))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {"rotary.2.frequencies", "relative_bias.2.table"} <= trained
    assert {"rotary.1.frequencies", "relative_bias.1.table"}.isdisjoint(trained)


def test_a_bias_of_all_layers_is_at_the_depth_of_the_first() -> None:
    assert locate_param("encoder.relative_bias.0.up.weight", 3) == locate_param("blocks.0.norm1.weight", 3)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # raised by the compiler itself
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *quick_only(
            [(name, "aot_eager") for name in PUBLISHED_KINDS], ("mixed rotary", "aot_eager"), ("norms inside", "aot_eager")
        ),
        *(thorough((name, "inductor")) for name in ("mixed rotary", "bias by a table")),
    ],
)
def test_a_compiled_step_has_the_gradients_of_an_eager_one(name: str, backend: str) -> None:
    torch.compiler.reset()
    model, images = small_vit(**{"depth": 2, **PUBLISHED_KINDS[name]}), torch.randn(3, 3, 12, 15)
    expected = gradients(model, images)
    model.compile(fullgraph=True, backend=backend)
    for weight, gradient in gradients(model, images).items():
        assert_close(gradient, expected[weight], rtol=1e-3, atol=1e-4, msg=weight)
