"""Rollout by hand, and its invariants on every model."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.explain.attention import attention
from vitrail.explain.rollout import rollout


@pytest.mark.parametrize("fuse", ["mean", "max", "min"])
def test_one_layer_by_hand(fuse: Any) -> None:
    model, images = small_vit(depth=1), torch.randn(2, 3, 12, 15)
    (weights,) = attention(model, images)
    for image, rows in zip(weights, rollout(model, images, fuse), strict=True):
        for query in range(7):
            row = torch.stack([getattr(torch, f"a{fuse}")(image[:, query], 0) if fuse != "mean" else image[:, query].mean(0)])
            row[0, query] += 1
            assert_close(rows[query], row[0] / row.sum())


def test_layers_multiply_with_the_later_on_the_left() -> None:
    model, images = small_vit(), torch.randn(2, 3, 12, 15)
    expected = torch.eye(7).expand(2, 7, 7)
    for weights in attention(model, images):
        expected = (weights.mean(1) + torch.eye(7)) / 2 @ expected
    assert_close(rollout(model, images), expected)


@pytest.mark.parametrize("changes", [{}, {"pool": "gap", "registers": 2}, {"norm": "post"}, {"position": "relative"}], ids=str)
@pytest.mark.parametrize("discard", [0.0, 0.9])
def test_rows_sum_to_one_and_an_image_does_not_depend_on_its_batch(changes: dict[str, Any], discard: float) -> None:
    model, images = small_vit(**changes), torch.randn(3, 3, 12, 15)
    whole = rollout(model, images, discard=discard)
    assert_close(whole.sum(-1), torch.ones(whole.shape[:2]))
    assert (whole >= 0).all()
    assert_close(rollout(model, images[1:2], discard=discard), whole[1:2])


def test_the_smallest_weights_of_each_image_are_discarded() -> None:
    model, images = small_vit(depth=1), torch.randn(2, 3, 12, 15)
    (weights,) = attention(model, images)
    mixing = weights.mean(1)
    result = rollout(model, images, discard=0.5)
    for image, rows in zip(mixing, result, strict=True):
        off = rows - torch.diag(rows.diag())
        smallest = image.flatten().sort().values[: int(0.5 * 49)]
        discarded = (image <= smallest[-1]).fill_diagonal_(False)
        assert (off[discarded] == 0).all()
        assert (off[~discarded & ~torch.eye(7, dtype=torch.bool)] > 0).all()


def test_discarding_everything_is_refused() -> None:
    with pytest.raises(VitrailError, match=r"discard must be a fraction from 0 to below 1, got 1\.0"):
        rollout(small_vit(), torch.randn(1, 3, 12, 15), discard=1.0)
