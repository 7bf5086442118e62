"""Explanations of models that merge tokens and drop patches: maps over all patches, and sums preserved by the mapping."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.models.test_speedups import CONFIGS, LARGER, larger_vit, reduced_vit
from vitrail.explain.attention import as_vit, attention, pooled_attention, pooling_weights
from vitrail.explain.gradient import logit_lens, signed_integrated_gradients
from vitrail.explain.head_statistics import head_statistics, token_norms
from vitrail.explain.merged_tokens import track_merging
from vitrail.explain.rollout import RolloutAccumulator, rollout
from vitrail.explain.saliency import SALIENCY_METHODS, saliency
from vitrail.layers.tap import record_activations
from vitrail.models.speedups import compiled_copy
from vitrail.models.token_reduced_vit import TokenReducedViT


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_rows_mapped_back_sum_to_one_and_dropped_patches_are_zero(changes: dict[str, Any]) -> None:
    model, images = reduced_vit(larger_vit(**changes), merge_tokens=4, drop_patches=0.2), torch.randn(2, 3, *LARGER)
    prefix, kept_indices = model.config.prefix_tokens, model.kept_patches(images)
    assert kept_indices is not None
    is_kept = torch.cat([torch.ones(2, prefix), torch.zeros(2, 35).scatter(1, kept_indices, 1.0)], dim=1)
    weights = attention(model, images)
    assert weights.shape == (4, 2, 3, prefix + 35, prefix + 35)
    assert_close(weights.sum(-1), is_kept[None, :, None].expand(4, 2, 3, -1))
    assert (weights * (1 - is_kept[None, :, None, None])).abs().max() == 0
    assert_close(rollout(model, images).sum(-1), is_kept)
    assert_close(pooling_weights(model, images).sum(1), torch.ones(2))
    assert_close(pooled_attention(model, images).sum(-1), torch.ones(4, 2, 3))
    assert (token_norms(model, images)[..., prefix:] > 0).float().mean(0).allclose(is_kept[:, prefix:])


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_attention_mapped_back_is_what_the_model_used(changes: dict[str, Any]) -> None:
    """Another route: all weights recorded, rows and columns expanded by the members of each token."""
    model, images = reduced_vit(larger_vit(**changes), merge_tokens=4, drop_patches=0.2), torch.randn(2, 3, *LARGER)
    with (
        torch.no_grad(),
        track_merging(model) as membership,
        record_activations(model, "blocks.*.attention.weights") as recorded,
    ):
        model(images)
    for layer, ((weights,), matrix) in enumerate(zip(recorded.values(), membership[:-1], strict=True)):
        members = matrix[:, None]
        expected = members.mT @ weights @ (members / members.sum(-1, keepdim=True))
        assert_close(attention(model, images, layers=[layer])[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", SALIENCY_METHODS)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, marks=() if changes in ({}, {"pool": "gap"}, {"pool": "map"}) else pytest.mark.thorough)
        for changes in CONFIGS
    ],
    ids=str,
)
def test_every_map_covers_all_patches(changes: dict[str, Any], method: str) -> None:
    plain, images = larger_vit(**changes), torch.randn(2, 3, *LARGER)
    classes = torch.tensor([3, 1])
    expected = saliency(plain, images, method, classes)
    assert torch.equal(saliency(TokenReducedViT(plain), images, method, classes), expected)  # nothing merged: equal bit for bit
    merged = saliency(reduced_vit(plain, merge_tokens=4), images, method, classes)
    assert merged.shape == expected.shape == (2, 5, 7)
    assert merged.isfinite().all()
    less = reduced_vit(plain, merge_tokens=2, drop_patches=0.3)
    kept_indices = less.kept_patches(images)
    assert kept_indices is not None
    dropped = torch.ones(2, 35).scatter(1, kept_indices, 0.0)
    assert (saliency(less, images, method, classes).flatten(1) * dropped).abs().max() == 0


@pytest.mark.parametrize("method", ["attention", "rollout", "gradient_rollout", "relevance"])
def test_merging_equal_tokens_leaves_the_map_unchanged(method: str) -> None:
    """Two colours and no positions: merged tokens are equal, so each patch's fraction stays the same."""
    plain = larger_vit(pool="gap", position="none")
    images = torch.zeros(2, 3, *LARGER)
    images[:, :, :, :15], images[:, :, :, 15:] = torch.randn(2, 3, 1, 1), torch.randn(2, 3, 1, 1)
    classes = torch.tensor([3, 1])
    merged, expected = (saliency(model, images, method, classes) for model in (reduced_vit(plain, merge_tokens=6), plain))
    sides = [values[..., :3].sum(dim=(1, 2)) / values.sum(dim=(1, 2)) for values in (merged, expected)]
    assert_close(*sides, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("normalise", [True, False])
def test_rollout_with_merging_equals_the_plain_one_if_nothing_is_merged(normalise: bool) -> None:
    layers = [torch.rand(2, 5, 5, dtype=torch.float64) for _ in range(3)]
    identities = [torch.eye(5, dtype=torch.float64).expand(2, -1, -1)] * 4
    plain, merged = RolloutAccumulator(normalise=normalise), RolloutAccumulator(identities, normalise)
    for mixing in layers:
        plain.multiply(mixing)
        merged.multiply(mixing)
    assert_close(merged.product, plain.product)
    assert_close(merged.attended_and_residual[0], plain.attended_and_residual[0])


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_the_logit_lens_ends_with_the_models_output(changes: dict[str, Any]) -> None:
    model, images = reduced_vit(larger_vit(**changes), merge_tokens=4, drop_patches=0.2), torch.randn(2, 3, *LARGER)
    with torch.no_grad():
        assert_close(logit_lens(model, images)[-1], model(images))


def test_head_statistics_are_over_the_patches_that_are_not_dropped() -> None:
    model, images = reduced_vit(larger_vit(), merge_tokens=3, drop_patches=0.4), torch.randn(2, 3, *LARGER)
    statistics = head_statistics(model, [images])
    weights = attention(model, images)
    is_kept = weights.sum(-1)[0, 0, 0, 1:] > 0.5
    assert int(is_kept.sum()) == 21
    assert all(
        values.isfinite().all()
        for values in (statistics.distance, statistics.renormalised, statistics.entropy, statistics.similarity)
    )
    entropy = -torch.special.xlogy(weights, weights).sum(-1).sum(-1) / 22
    assert_close(statistics.entropy, entropy.mean(1))


def test_contributions_of_dropped_patches_are_zero() -> None:
    model, images = reduced_vit(larger_vit(), drop_patches=0.4), torch.randn(2, 3, *LARGER)
    kept_indices = model.kept_patches(images)
    assert kept_indices is not None
    contributions = signed_integrated_gradients(model, images)
    assert torch.equal(contributions != 0, torch.zeros(2, 35).scatter(1, kept_indices, 1.0) > 0)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
def test_a_compiled_model_is_explained_as_the_plain_one() -> None:
    model, images = larger_vit(), torch.randn(2, 3, *LARGER)
    compiled = compiled_copy(model)
    assert compiled._compiled_call_impl is not None
    assert model._compiled_call_impl is None
    assert as_vit(compiled)._compiled_call_impl is None
    assert torch.equal(saliency(compiled, images, "relevance"), saliency(model, images, "relevance"))
