"""Recording stores what was requested, and only while it is on."""

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.layers.tap import is_recording, record_activations

IMAGES = torch.randn(2, 3, 12, 15)


def test_only_the_selected_layers_and_heads_are_recorded() -> None:
    model = small_vit()
    with record_activations(model, "attention.weights") as everything:
        model(IMAGES)
    with record_activations(
        model, "blocks.1.attention.weights", "blocks.3.*.weights", transform=lambda weights: weights[:, [2, 0]]
    ) as recorded:
        model(IMAGES)
    assert list(recorded) == ["blocks.1.attention.weights", "blocks.3.attention.weights"]
    for name, (weights,) in recorded.items():
        assert_close(weights, everything[name][0][:, [2, 0]], rtol=0, atol=1e-6)


def test_every_pass_is_an_entry_and_nothing_is_recorded_afterwards() -> None:
    model = small_vit()
    with record_activations(model, "blocks.0.attention.weights") as recorded:
        model(IMAGES)
        model(IMAGES)
    model(IMAGES)
    assert [len(values) for values in recorded.values()] == [2]


def test_a_recording_inside_a_recording_leaves_the_outer_one_whole() -> None:
    model = small_vit()
    with record_activations(model, "weights") as outer:
        with record_activations(model, "blocks.2.attention.weights") as inner:
            model(IMAGES)
        model(IMAGES)
    assert [len(values) for values in inner.values()] == [1]
    assert [len(values) for values in outer.values()] == [2, 2, 2, 2]


def test_recordings_may_end_in_any_order() -> None:
    model = small_vit()
    first, second = record_activations(model, "weights"), record_activations(model, "weights")
    recorded = [first.__enter__(), second.__enter__()]
    first.__exit__(None, None, None)
    model(IMAGES)
    second.__exit__(None, None, None)
    assert [len(each["blocks.0.attention.weights"]) for each in recorded] == [0, 1]
    assert not is_recording(model)


def test_recording_nothing_is_rejected() -> None:
    with pytest.raises(VitrailError, match="record_activations needs the name of a tap"), record_activations(small_vit()):
        pass


def test_recomputation_in_the_backward_pass_is_not_recorded() -> None:
    model = small_vit().train()
    model.activation_checkpointing = True
    loss = model(IMAGES).sum()
    with record_activations(model, "weights") as recorded:
        loss.backward()
    assert [len(values) for values in recorded.values()] == [0, 0, 0, 0]
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("inside", [True, False])
def test_checkpointed_blocks_are_recorded_once_and_still_get_gradients(inside: bool) -> None:
    model = small_vit().train()
    model.activation_checkpointing = True
    with record_activations(model, "blocks.1.attention.weights") as recorded:
        loss = model(IMAGES).sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert [len(values) for values in recorded.values()] == [1]
    assert all(weight.grad is not None for weight in model.parameters())


def test_recording_stops_when_the_model_fails() -> None:
    model = small_vit()
    with pytest.raises(VitrailError), record_activations(model, "weights"):
        model(torch.randn(1, 3, 5, 5))
    assert not is_recording(model)


def test_gradients_flow_through_recorded_values() -> None:
    model = small_vit()
    with record_activations(model, "blocks.3.attention.weights") as recorded:
        logit = model(IMAGES)[:, 0].sum()
    (weights,) = recorded["blocks.3.attention.weights"]
    (gradient,) = torch.autograd.grad(logit, weights)
    assert gradient[:, :, 0].abs().min() > 0  # only the class token's row matters
    assert gradient[:, :, 1:].abs().max() == 0  # in the last layer


def test_an_unknown_tap_is_rejected_with_the_known_ones() -> None:
    with (
        pytest.raises(VitrailError, match=r"no tap matches 'atention.weights'.*blocks.0.attention.weights"),
        record_activations(small_vit(), "atention.weights"),
    ):
        pass
