"""Losses and scores are their formulas."""

import json
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import classification_task, small_vit
from tests.training.small_run import batch, build_test_model, deterministic_recipe
from vitrail.config import to_json
from vitrail.data.loader import Batch
from vitrail.recipes.task_config import Classification
from vitrail.tasks.classification import balanced_class_weights, mean_scores


def test_losses_are_their_formulas() -> None:
    model = small_vit(classes=10)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    order, lam = torch.arange(4), torch.full((4,), 0.3)
    mixed = Batch(torch.randn(4, 3, *model.config.image), order, order, order.roll(1), lam)
    logits = model.eval()(mixed.images)
    target = torch.zeros(4, 10)
    target[torch.arange(4), mixed.targets] += 0.3
    target[torch.arange(4), torch.arange(4).roll(1)] += 0.7
    smooth = target * 0.9 + 0.1 / 10
    assert_close(
        classification_task(10, label_smoothing=0.1).loss(model, mixed)[0], -(smooth * logits.log_softmax(1)).sum(1).mean()
    )
    present, absent = torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)
    sigmoid = -(smooth * present + (1 - smooth) * absent).sum(1).mean()
    assert_close(classification_task(10, loss="sigmoid", label_smoothing=0.1).loss(model, mixed)[0], sigmoid)


def test_scores_and_class_weights() -> None:
    logits = torch.tensor([[3.0, 1, 2, 0, -1, -2], [0, 1, 2, 3, 4, 5]])
    built = mean_scores(logits, torch.tensor([0, 0]))
    assert (built["top1"], built["top5"]) == (0.5, 0.5)
    assert built["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, torch.tensor([0, 0])).item())
    balance = balanced_class_weights(torch.tensor([0, 0, 0, 1]), 3)
    assert_close(balance, torch.tensor([4 / 6, 2.0, 0.0]))
    assert balance[torch.tensor([0, 0, 0, 1])].mean().item() == pytest.approx(1)


def test_class_weights_reach_the_loss() -> None:
    settings = deterministic_recipe(task=Classification(balanced_loss=True))
    assert json.loads(to_json(settings))["task"]["balanced_loss"] is True
    model = build_test_model(settings)
    plain, weighted = (
        replace(classification_task(10), class_weights=weights).loss(model, batch())[0]
        for weights in (None, torch.arange(10.0))
    )
    each = torch.nn.functional.cross_entropy(model(batch().images), batch().targets, reduction="none")
    assert_close(weighted, (each * torch.arange(8.0)).mean())
    assert_close(plain, each.mean())
