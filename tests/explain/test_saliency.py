"""Saliency maps: the same shape from every model and method, and their definitions."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.explain.attention import attention
from vitrail.explain.rollout import rollout
from vitrail.explain.saliency import SALIENCY_METHODS, saliency
from vitrail.models.build import build
from vitrail.models.variants import variant


@pytest.mark.parametrize("method", SALIENCY_METHODS)
@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}, {"pool": "map", "registers": 2}, {"norm": "post"}], ids=str)
def test_every_model_has_every_map(method: str, changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(3, 3, 12, 15)
    maps = saliency(model, images, method)
    assert maps.shape == (3, 2, 3)
    assert (maps >= 0).all()
    assert_close(saliency(model, images[2:], method), maps[2:])
    assert not maps.requires_grad


def test_with_a_class_token_attention_and_rollout_are_its_rows() -> None:
    model, images = small_vit(), torch.randn(2, 3, 12, 15)
    assert_close(saliency(model, images, "attention").flatten(1), attention(model, images)[-1].mean(1)[:, 0, 1:])
    assert_close(saliency(model, images, "rollout").flatten(1), rollout(model, images)[:, 0, 1:])


def test_with_mean_pooling_rollout_is_the_mean_of_the_patches_rows() -> None:
    model, images = small_vit(pool="gap", registers=2), torch.randn(2, 3, 12, 15)
    assert_close(saliency(model, images, "rollout").flatten(1), rollout(model, images)[:, 2:, 2:].mean(1))


def test_a_hybrids_map_lies_on_the_grid_after_its_stem() -> None:
    model = build(variant("R+Ti/16", image=(64, 96), classes=3)).eval()
    assert saliency(model, torch.randn(1, 3, 64, 96), "rollout").shape == (1, 2, 3)  # a stride of 32


def test_an_unknown_method_is_named_with_the_nearest() -> None:
    with pytest.raises(VitrailError, match=r"there is no method 'rolout'.*rollout"):
        saliency(small_vit(), torch.randn(1, 3, 12, 15), "rolout")
