"""Attention distance: the exact value for uniform attention, and means that do not depend on how images are batched."""

import math
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.explain.attention import attention
from vitrail.explain.head_statistics import (
    attention_distance,
    attention_entropy,
    head_similarity,
    head_statistics,
    mean_distance,
    patch_distances,
    token_norms,
)
from vitrail.models.build import build
from vitrail.models.variants import variant


def test_uniform_attention_on_14_x_14_patches_has_the_expected_distance() -> None:
    weights = torch.full((1, 1, 197, 197), 1 / 197)
    assert mean_distance(weights, (14, 14), (16, 16)).item() == pytest.approx(115.90, abs=5e-3)
    assert mean_distance(weights, (14, 14), (16, 16), renormalise=True).item() == pytest.approx(116.49, abs=5e-3)
    assert attention_entropy(weights).item() == pytest.approx(math.log(197), abs=1e-5)


def test_self_attention_only_has_distance_zero() -> None:
    weights = torch.eye(7).expand(2, 3, 7, 7)
    assert_close(mean_distance(weights, (2, 3), (6, 5)), torch.zeros(2, 3))
    assert_close(attention_entropy(weights), torch.zeros(2, 3))


def test_distances_between_centres_are_those_of_the_patches() -> None:
    distances = patch_distances((2, 3), (6, 5))
    assert distances[0, 2] == 10
    assert distances[0, 3] == 6
    assert distances[1, 5] == pytest.approx(math.hypot(6, 5))
    assert_close(distances, distances.T)


def test_by_hand() -> None:
    """Prefix tokens are neither queries nor keys."""
    weights = torch.randn(2, 3, 8, 8).softmax(-1)
    distances = patch_distances((2, 3), (6, 5))
    expected = sum(weights[1, 2, 2 + i, 2 + j] * distances[i, j] for i in range(6) for j in range(6)) / 6
    assert_close(mean_distance(weights, (2, 3), (6, 5))[1, 2], expected)


def test_equal_heads_have_similarity_one_and_disjoint_heads_zero() -> None:
    one, other = torch.eye(4), torch.eye(4).roll(1, 0)
    assert_close(head_similarity(torch.stack([one, one, other])[None])[0], torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))


@pytest.mark.parametrize("changes", [{}, {"pool": "gap", "registers": 3}, {"norm": "post"}, {"position": "relative"}], ids=str)
def test_statistics_are_means_over_images_whatever_the_batches(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(5, 3, 12, 15)
    whole = head_statistics(model, [images])
    batched = head_statistics(model, iter([images[:2], images[2:]]))
    weights = attention(model, images)
    for layer in range(4):
        assert_close(whole.distance[layer], mean_distance(weights[layer], (2, 3), (6, 5)).mean(0))
        assert_close(whole.entropy[layer], attention_entropy(weights[layer]).mean(0))
    assert_close(attention_distance(model, images), whole.distance)
    assert_close(attention_distance(model, images, renormalise=True), whole.renormalised)
    for name in ("distance", "renormalised", "entropy", "similarity"):
        assert_close(getattr(batched, name), getattr(whole, name))
    assert whole.similarity.shape == (4, 3, 3)
    assert (whole.renormalised >= whole.distance - 1e-6).all()
    assert whole.num_images == batched.num_images == 5


@pytest.mark.parametrize("changes", [{}, {"pool": "gap", "registers": 3}, {"position": "relative"}], ids=str)
def test_the_chunk_size_does_not_matter(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = small_vit(**changes), torch.randn(5, 3, 12, 15)
    whole = head_statistics(model, [images])
    # two rows at a time, the first of them a prefix token
    monkeypatch.setattr(sys.modules["vitrail.explain.attention"], "ATTENTION_CHUNK_NUMEL", 300)
    parts = head_statistics(model, [images])
    for name in ("distance", "renormalised", "entropy", "similarity"):
        assert_close(getattr(parts, name), getattr(whole, name))


def test_no_more_than_one_batch_is_in_memory() -> None:
    model, alive, alive_counts = small_vit(), weakref.WeakSet[torch.Tensor](), []

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(4):
            alive_counts.append(len(alive))
            images = torch.randn(3, 3, 12, 15)
            alive.add(images)
            yield images
            del images

    assert head_statistics(model, batches()).num_images == 12
    assert alive_counts == [0, 0, 0, 0]  # when the next is requested, the previous one is freed


def test_the_distance_of_a_hybrid_with_uniform_attention_follows_from_its_stride() -> None:
    model: Any = build(variant("R+Ti/16", image=(64, 96), classes=3)).eval()
    for block in model.blocks:
        block.attention.qkv.weight.data.zero_()
        block.attention.qkv.bias.data.zero_()
    uniform = torch.full((1, 1, 7, 7), 1 / 7)
    distances = attention_distance(model, torch.randn(1, 3, 64, 96))
    assert_close(distances, mean_distance(uniform, (2, 3), (32, 32)).expand(12, 3))


def test_no_images_have_no_mean() -> None:
    with pytest.raises(VitrailError, match="no images"):
        head_statistics(small_vit(), [])


def test_norms_are_those_of_the_tokens() -> None:
    model, images = small_vit(registers=2), torch.randn(2, 3, 12, 15)
    norms = token_norms(model, images)
    assert norms.shape == (5, 2, 9)
    before = model.norm
    model.norm = torch.nn.Identity()
    assert_close(norms[-1], model.encode(model.embed_patches(images), model.grid(images)).norm(dim=-1))
    model.norm = before
