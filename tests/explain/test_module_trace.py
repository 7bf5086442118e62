"""The module trace's statistics, by hand."""

import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.explain.module_trace import randomise_zero_head, trace_modules
from vitrail.models.build import build

IMAGES, LABELS = torch.randn(2, 3, 12, 15, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 4])


def test_statistics_and_gradients_are_those_of_the_pass() -> None:
    model = small_vit()
    rows = {row.name: row for row in trace_modules(model, IMAGES, LABELS)}
    tokens = model.embed_patches(IMAGES)
    assert_close([rows["embed"].mean, rows["embed"].std], [tokens.mean().item(), tokens.std(correction=0).item()])
    features = model.features(IMAGES)
    logits = model.head(features)
    (at_features, at_logits) = torch.autograd.grad(F.cross_entropy(logits, LABELS), [features, logits])
    assert_close(rows["pool"].grad_norm, at_features.norm().item())
    assert_close(rows["head"].grad_norm, at_logits.norm().item())
    by_hand = torch.cat([(at_logits.T @ features).flatten(), at_logits.sum(0)]).norm()
    assert_close(rows["head"].param_grad_norm, by_hand.item())


def test_rows_are_in_order_and_cover_every_module_that_does_something() -> None:
    names = [row.name for row in trace_modules(small_vit(), IMAGES, LABELS)]
    assert names[:3] == ["embed.project", "embed", "positions.0.table"]
    assert names[-3:] == ["norm", "pool", "head"]
    block = [name.removeprefix("blocks.2.") for name in names if name.startswith("blocks.2.")]
    assert block == [
        "norm1",
        "attention.qkv",
        "attention.out",
        "attention",
        "norm2",
        "mlp.up",
        "mlp.gelu",
        "mlp.down",
        "mlp",
    ]


def test_checkpointing_changes_no_row() -> None:
    model = small_vit()
    rows = trace_modules(model, IMAGES, LABELS)
    model.activation_checkpointing = True
    assert trace_modules(model, IMAGES, LABELS) == rows
    assert model.activation_checkpointing


def test_no_hook_is_left_and_no_older_gradient_counted() -> None:
    model = small_vit()
    first, second = trace_modules(model, IMAGES, LABELS), trace_modules(model, IMAGES, LABELS)
    assert first == second
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(weight._backward_hooks for weight in model.parameters())


def test_a_frozen_model_has_no_gradients() -> None:
    rows = trace_modules(small_vit().requires_grad_(False), IMAGES, LABELS)
    assert all(row.grad_norm is None and row.param_grad_norm is None for row in rows)


def test_a_zero_head_stops_every_gradient_until_it_is_randomised() -> None:
    model = build("mu/16", image=32, classes=5)
    images = torch.randn(2, 3, 32, 32)
    before = {row.name: row for row in trace_modules(model, images, LABELS)}
    assert before["blocks.0"].grad_norm == 0
    assert randomise_zero_head(model)
    assert not randomise_zero_head(model)
    after = {row.name: row for row in trace_modules(model, images, LABELS)}
    assert after["blocks.0"].grad_norm
