"""Relevance, gradient rollout, Grad-CAM and the logit lens: by hand on one layer, and invariants on all kinds of models."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from tests.tiers import quick_first
from vitrail.errors import VitrailError
from vitrail.explain.attention import pooling_weights
from vitrail.explain.gradient import (
    _gradient_weighted_attention,
    gradcam,
    gradient_rollout,
    integrated_gradients,
    logit_lens,
    relevance,
    signed_integrated_gradients,
)
from vitrail.layers.tap import record_activations
from vitrail.models.vit import ViT

MODEL_CHANGES: list[dict[str, Any]] = [
    {},
    {"pool": "gap"},
    {"pool": "map"},
    {"registers": 2},
    {"norm": "post"},
    {"position": "rotary"},
    {"final_norm": "pooled"},
    {"position": "relative"},
    {"head": "mlp"},
]
CHANGES_WITH_MARKS = [
    pytest.param(changes, marks=() if changes in ({}, {"pool": "gap"}, {"pool": "map"}) else pytest.mark.thorough)
    for changes in MODEL_CHANGES
]
METHODS = [relevance, gradient_rollout, gradcam, integrated_gradients]


def gradient_weighted_by_hand(model: ViT, images: torch.Tensor, classes: list[int]) -> torch.Tensor:
    """Return the positive part of weights times gradient, mean over heads, each gradient by finite differences of the logit."""
    model = model.double()
    images = images.double()
    attention = model.blocks[0].attention
    with record_activations(model, "blocks.0.attention.weights") as recorded:
        model(images)
    (weights,) = recorded["blocks.0.attention.weights"]
    mixing = torch.zeros_like(weights)
    step = 1e-6
    for index in torch.cartesian_prod(*(torch.arange(size) for size in weights.shape)).tolist():
        logits = []
        for sign in (1, -1):
            shifted = weights.detach().clone()
            shifted[tuple(index)] += sign * step
            attention.weights.forward = lambda _, fixed=shifted: fixed  # type: ignore[union-attr]
            with torch.no_grad(), record_activations(model, "blocks.0.attention.weights"):
                logits.append(model(images)[index[0], classes[index[0]]])
        mixing[tuple(index)] = (logits[0] - logits[1]) / (2 * step)
    del attention.weights.forward  # type: ignore[union-attr]
    return (weights.detach() * mixing).relu().mean(1)


def test_one_layer_by_hand() -> None:
    """The map is the class token's row of gradient times weights; rolled out, that row with the residual, normalised."""
    model, images, classes = small_vit(depth=1), torch.randn(2, 3, 12, 15), torch.tensor([3, 1])
    mixing = gradient_weighted_by_hand(model, images, classes.tolist())
    model = model.float()
    row = mixing[:, 0, 1:].float()
    assert_close(relevance(model, images, classes).flatten(1), row, rtol=1e-3, atol=1e-6)
    assert_close(
        gradient_rollout(model, images, classes).flatten(1),
        row / (1 + mixing[:, 0].sum(-1, keepdim=True).float()),
        rtol=1e-3,
        atol=1e-6,
    )


def test_one_layer_with_mean_pooling_by_hand() -> None:
    """The map is the mean of all rows without the identity, which is the same for every patch and would dominate."""
    model, images, classes = small_vit(depth=1, pool="gap"), torch.randn(2, 3, 12, 15), torch.tensor([3, 1])
    mixing = gradient_weighted_by_hand(model, images, classes.tolist()).float()
    model = model.float()
    assert_close(relevance(model, images, classes).flatten(1), mixing.mean(1), rtol=1e-3, atol=1e-6)
    rows = mixing / (1 + mixing.sum(-1, keepdim=True))
    assert_close(gradient_rollout(model, images, classes).flatten(1), rows.mean(1), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}, {"pool": "map"}], ids=str)
def test_many_layers_are_the_papers_product(changes: dict[str, Any]) -> None:
    """R = (I + A4)(I + A3)(I + A2)(I + A1), written out; without its identity unless the pooling attends."""
    model, images, classes = small_vit(**changes), torch.randn(2, 3, 12, 15), torch.tensor([3, 1])
    layers, last, _ = _gradient_weighted_attention(model, images, classes)
    eye = torch.eye(layers[0].shape[-1])
    grown, rolled, straight = eye, eye, eye
    for mixing in layers:
        grown = (eye + mixing) @ grown
        rows = (eye + mixing).sum(-1, keepdim=True)
        rolled, straight = (eye + mixing) / rows @ rolled, eye / rows @ straight
    pooling = pooling_weights(model, images) if last is None else last
    without = eye if last is None else torch.zeros_like(eye)
    patches = slice(model.config.prefix_tokens, None)
    for method, whole, identity in ((relevance, grown, without), (gradient_rollout, rolled, straight * without)):
        expected = (pooling[:, None] @ (whole - identity))[:, 0, patches]
        assert_close(method(model, images, classes).flatten(1), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
@pytest.mark.parametrize("changes", CHANGES_WITH_MARKS, ids=str)
def test_every_model_has_a_map_per_image_and_class(method: Any, changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(3, 3, 12, 15)
    classes = torch.tensor([4, 0, 2])
    whole = method(model, images, classes)
    assert whole.shape == (3, 2, 3)
    assert (whole >= 0).all()
    assert whole.any()
    assert_close(method(model, images[1:2], classes[1:2]), whole[1:2])  # whatever the rest of the batch is
    assert not torch.allclose(method(model, images, classes.flip(0)), whole)  # another class, another map
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_the_default_class_is_the_predicted_one_also_for_a_frozen_model(method: Any) -> None:
    model, images = small_vit(), torch.randn(3, 3, 12, 15)
    predicted = model(images).argmax(1)
    expected = method(model, images, predicted)
    model.requires_grad_(False)
    model.activation_checkpointing = True
    with torch.no_grad():
        assert_close(method(model, images), expected)
    assert model.activation_checkpointing


def test_gradcam_by_hand() -> None:
    """On a model whose logit is linear in the input of the last attention, the gradient is known."""
    model, images = small_vit(), torch.randn(2, 3, 12, 15)
    recorded: list[torch.Tensor] = []
    block: Any = model.blocks[2]
    with torch.enable_grad():
        handle = block.attention.register_forward_pre_hook(lambda _, inputs: recorded.append(inputs[0]))
        logits = model(images)
        handle.remove()
        (gradient,) = torch.autograd.grad(logits[0, 3] + logits[1, 1], recorded[0])
    expected = torch.stack([(gradient[b, 1:].mean(0) * recorded[0][b, 1:]).sum(-1).relu() for b in range(2)])
    assert_close(gradcam(model, images, torch.tensor([3, 1]), layer=2).flatten(1), expected)


@pytest.mark.parametrize("changes", MODEL_CHANGES, ids=str)
def test_the_last_row_of_the_logit_lens_is_the_models_output(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    rows = logit_lens(model, images)
    assert rows.shape == (5, 2, 5)
    assert_close(rows[-1], model(images))


def test_the_logit_lens_after_a_block_is_the_model_without_the_later_ones() -> None:
    model, images = small_vit(), torch.randn(2, 3, 12, 15)
    rows = logit_lens(model, images)
    for layer in (3, 2, 1):
        block: Any = model.blocks[layer]
        for linear in (block.attention.out, block.mlp.down):
            linear.weight.data.zero_()
            linear.bias.data.zero_()
        assert_close(model(images), rows[layer])


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(VitrailError, match="without a head"):
        relevance(small_vit(classes=0), torch.randn(1, 3, 12, 15))


@pytest.mark.parametrize("options", quick_first(MODEL_CHANGES), ids=str)
def test_contributions_add_up_to_the_difference_from_grey(options: dict[str, Any]) -> None:
    """Completeness of integrated gradients; the more steps, the closer."""
    model, images, classes = small_vit(**options), torch.randn(2, 3, 12, 15), torch.tensor([3, 1])
    with torch.no_grad():
        logits, grey = model(images), model(torch.zeros_like(images))
    expected = (logits - grey).gather(1, classes[:, None])[:, 0]
    errors = [
        (signed_integrated_gradients(model, images, classes, steps).sum(1) - expected).abs().max().item() for steps in (4, 256)
    ]
    assert errors[1] < 1e-2 * expected.abs().max().item() + 1e-4
    assert errors[1] <= errors[0]


def test_a_grey_patch_contributes_nothing() -> None:
    model, images = small_vit(pool="gap"), torch.randn(2, 3, 12, 15)
    images[1, :, :6, 5:10] = 0.0  # the second patch
    contributions = signed_integrated_gradients(model, images, torch.tensor([3, 1]))
    assert_close(contributions[1, 1].item(), 0.0)
    assert (contributions[0] != 0).all()
    assert_close(integrated_gradients(model, images, torch.tensor([3, 1])).flatten(1), contributions.relu())
