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
    _cosine,
    _gram,
    attention_distance,
    head_statistics,
    patch_distances,
    token_norms,
)
from vitrail.models.build import build
from vitrail.models.variants import variant
from vitrail.models.vit import ViT


def uniform_attention(name: str, **changes: Any) -> ViT:
    """A model whose tokens attend to all equally."""
    model = build(variant(name, classes=3, **changes)).eval()
    assert isinstance(model, ViT)
    for name, weight in model.named_parameters():
        if ".attention.qkv." in name:
            weight.data.zero_()
    return model


def test_uniform_attention_on_14_x_14_patches_has_the_expected_distance() -> None:
    statistics = head_statistics(uniform_attention("mu/16", image=224), [torch.randn(1, 3, 224, 224)])
    layers_and_heads = statistics.distance.shape
    assert_close(statistics.distance, torch.full(layers_and_heads, 115.90), rtol=0, atol=5e-3)
    assert_close(statistics.renormalised, torch.full(layers_and_heads, 116.49), rtol=0, atol=5e-3)
    assert_close(statistics.entropy, torch.full(layers_and_heads, math.log(197)), rtol=0, atol=1e-5)


def test_distances_between_centres_are_those_of_the_patches() -> None:
    distances = patch_distances((2, 3), (6, 5))
    assert distances[0, 2] == 10
    assert distances[0, 3] == 6
    assert distances[1, 5] == pytest.approx(math.hypot(6, 5))
    assert_close(distances, distances.T)


def test_by_hand() -> None:
    """Prefix tokens are neither queries nor keys."""
    model, images = small_vit(pool="gap", registers=2), torch.randn(2, 3, 12, 15)
    distances, weights = patch_distances((2, 3), (6, 5)), attention(model, images)[3, :, 1]
    expected = sum(weights[:, 2 + i, 2 + j].mean() * distances[i, j] for i in range(6) for j in range(6)) / 6
    assert_close(head_statistics(model, [images]).distance[3, 1], expected)


def test_equal_heads_have_similarity_one_and_disjoint_heads_zero() -> None:
    one, other = torch.eye(4), torch.eye(4).roll(1, 0)
    similarity = _cosine(_gram(torch.stack([one, one, other])[None]))[0]
    assert_close(similarity, torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))


@pytest.mark.parametrize("changes", [{}, {"pool": "gap", "registers": 3}, {"norm": "post"}, {"position": "relative"}], ids=str)
def test_statistics_are_means_over_images_whatever_the_batches(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(5, 3, 12, 15)
    whole = head_statistics(model, [images])
    batched = head_statistics(model, iter([images[:2], images[2:]]))
    weights, distances = attention(model, images), patch_distances((2, 3), (6, 5))
    for layer in range(4):
        between_patches = weights[layer][..., -6:, -6:]
        assert_close(whole.distance[layer], (between_patches * distances).sum(-1).mean((0, 2)))
        assert_close(whole.entropy[layer], torch.distributions.Categorical(weights[layer]).entropy().mean((0, 2)))
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
    distances = attention_distance(uniform_attention("R+Ti/16", image=(64, 96)), torch.randn(1, 3, 64, 96))
    assert_close(distances, (patch_distances((2, 3), (32, 32)) / 7).sum(-1).mean().expand(12, 3))


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
