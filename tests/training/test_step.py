"""A step is its formula: the gradient of the whole batch, in micro-batches or not, or nothing at all (FAULTS 13)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import classification_task
from tests.training.small_run import batch, build_test_model, deterministic_recipe
from vitrail.data.loader import Batch
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Optim, Schedule
from vitrail.training.checkpoint import find_valid_checkpoint
from vitrail.training.state import create_state, seed_step
from vitrail.training.step import find_nonfinite, train_step
from vitrail.training.trainer import Hardware, fit


def test_a_step_equals_its_hand_written_twin() -> None:
    settings = deterministic_recipe(
        optim=Optim(name="sgd", lr=0.1, momentum=0.0, grad_clip=0.5), schedule=Schedule("linear"), ema_decay=None
    )
    model, twin = build_test_model(settings), build_test_model(settings)
    metrics = train_step(create_state(model, settings), classification_task(10), batch(), settings)
    loss = torch.nn.functional.cross_entropy(twin(batch().images), batch().targets)
    loss.backward()
    gradients = [weight.grad for weight in twin.parameters() if weight.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for weight, own in zip(twin.parameters(), model.parameters(), strict=True):
        assert weight.grad is not None
        assert_close(own.detach(), weight.detach() - 0.1 * weight.grad * min(1, 0.5 / norm.item()), rtol=1e-5, atol=1e-6)
    assert metrics["loss"] == pytest.approx(loss.item())
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


@pytest.mark.parametrize("micro", [1, 3, 4, 7])
def test_a_batch_in_micro_batches_is_the_batch(micro: int) -> None:
    """Also in unequal ones: 8 images in micro-batches of 3 are 3, 3 and 2."""
    task, optim = classification_task(10, label_smoothing=0.1), Optim(name="sgd", lr=0.1)
    whole, parted = deterministic_recipe(optim=optim), deterministic_recipe(optim=optim, micro_batch_size=micro)
    one, two = create_state(build_test_model(whole), whole), create_state(build_test_model(parted), parted)
    for _ in range(3):
        assert train_step(one, task, batch(), whole) == pytest.approx(train_step(two, task, batch(), parted), rel=1e-4)
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_is_not_finite_changes_nothing_and_stops_the_run_in_the_end(tmp_path: Path) -> None:
    settings = deterministic_recipe()
    model = build_test_model(settings)
    state = create_state(model, settings)
    spoiled = Batch(batch().images * float("nan"), batch().targets, batch().indices)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train_step(state, classification_task(10), spoiled, settings)
    assert (state.step, state.skipped_steps) == (1, 1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with pytest.raises(VitrailError, match=r"10 consecutive steps were skipped.* is not finite.*try a smaller optim.lr"):
        fit(deterministic_recipe(steps=40, optim=Optim(name="sgd", lr=1e30)), tmp_path / "run", hardware=Hardware(workers=0))
    assert find_valid_checkpoint(tmp_path / "run" / "checkpoints") is not None  # as the error promises


class NaNGradient(torch.autograd.Function):
    """The identity in the forward pass, NaN in the backward pass."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * float("nan")


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_first_layer_that_is_not_finite_is_named(clip: float | None) -> None:
    settings, task = deterministic_recipe(optim=Optim(grad_clip=clip)), classification_task(10)

    def skipped(spoil: Callable[[torch.nn.Module], object], spoiled: Batch) -> str:
        model = build_test_model(settings)
        spoil(model)
        state = create_state(model, settings)
        train_step(state, task, spoiled, settings)
        assert state.skipped_steps == 1
        return find_nonfinite(state, task, spoiled, settings)

    def forward(model: torch.nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("blocks.1.mlp.up.weight").fill_(3e38)

    def backward(model: torch.nn.Module) -> None:
        model.get_submodule("blocks.0").register_forward_hook(lambda module, inputs, output: NaNGradient.apply(output))  # type: ignore[no-untyped-call]

    whole, dark = batch(), Batch(batch().images * float("nan"), batch().targets, batch().indices)
    assert skipped(forward, whole) == "the output of blocks.1.mlp.up is"
    assert skipped(backward, whole).startswith("the gradient of blocks.0.mlp.down")
    assert skipped(lambda model: None, dark) == "an image is"


def test_dropout_depends_on_the_step_only() -> None:
    seed_step(1, 7)
    first = torch.rand(5)
    seed_step(1, 8)
    second = torch.rand(5)
    seed_step(1, 7)
    assert torch.equal(torch.rand(5), first)
    assert not torch.equal(first, second)


def test_a_batch_without_a_readable_image_is_a_step_without_an_update() -> None:
    settings = deterministic_recipe()
    state = create_state(build_test_model(settings), settings)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    nothing = Batch(batch().images[:0], batch().targets[:0], batch().indices[:0])
    assert train_step(state, classification_task(10), nothing, settings) == {}
    assert (state.step, state.skipped_steps) == (1, 0)
    assert all(torch.equal(before[name], value) for name, value in state.model.state_dict().items())
