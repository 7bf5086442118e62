"""Masked, shuffled and dropped patches: each against another route to the same logits."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.models.test_speedups import reduced_vit
from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.explain.ablate import ABLATION_MODES, ablate, shuffle_permutation
from vitrail.explain.faithfulness import faithfulness
from vitrail.models.build import build
from vitrail.models.variants import variant
from vitrail.tasks.registry import class_probabilities

KINDS: list[dict[str, Any]] = [
    {"mlp_kind": "swiglu"},
    {},
    {"pool": "gap"},
    {"pool": "map", "registers": 1},
    {"registers": 2, "position_prefix": "all"},
    {"norm": "post"},
    {"qk_norm": True},
    {"position": "rotary"},
    {"position": "learned2d", "position_at": "every-layer"},
    {"position": "sincos2d", "position_at": "every-layer-shared"},
    {"position": "none"},
    {"position": "relative"},
]
DROPPABLE = [kind for kind in KINDS if kind.get("position") != "relative"]


def random_images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 12, 15)


@pytest.mark.parametrize("mode", ABLATION_MODES)
@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_without_any_patch_the_logits_are_the_models_bit_for_bit(changes: dict[str, Any], mode: str) -> None:
    model, images = small_vit(**changes), random_images()
    with torch.no_grad():
        assert torch.equal(ablate(model, images, [], mode), model(images))


@pytest.mark.parametrize("changes", DROPPABLE, ids=str)
def test_dropped_patches_have_no_effect_and_the_others_keep_their_positions(changes: dict[str, Any]) -> None:
    """By hand: the tokens of the others, with the table's rows of their positions, through the blocks."""
    model, images, left = small_vit(**changes), random_images(), [0, 3, 5]
    where = torch.tensor([*range(model.config.prefix_tokens), *(model.config.prefix_tokens + patch for patch in left)])
    with torch.no_grad():
        x = model.add_prefix_tokens(model.embed_patches(images))[:, where]
        rotation = tuple(values[where] for values in model.rotary[0]((2, 3), x.device)) if len(model.rotary) else None
        for table, block in zip(model.config.layers_with_position, model.blocks, strict=True):
            if table is not None:
                x = x + model.positions[table](torch.zeros(1, model.config.tokens, 24), (2, 3))[:, where]
            x = block(x, rotation)
        expected = model.head(model.pooled_norm(model.pool(model.norm(x))))
    assert_close(ablate(model, images, [1, 2, 4], "drop"), expected, rtol=1e-5, atol=1e-5)
    other = images.clone()
    other[:, :, :6, 5:15] = 7.0  # patches 1 and 2
    other[:, :, 6:, 5:10] = -3.0  # patch 4
    assert_close(ablate(model, other, [1, 2, 4], "drop"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_masked_patches_are_those_of_the_deletion_curve(changes: dict[str, Any]) -> None:
    model, images, first = small_vit(**changes), random_images(), [4, 1, 2, 0, 5, 3]
    rank = torch.zeros(6)
    rank[first] = torch.arange(6.0, 0.0, -1.0)
    classes = torch.tensor([1, 4])
    curve = faithfulness(model, images, rank.view(1, 2, 3).expand(2, -1, -1), classes, steps=6).deletion_curve
    for step in range(7):
        probabilities = (
            class_probabilities(model, ablate(model, images, first[:step])).gather(1, classes[:, None])[:, 0].float()
        )
        assert_close(probabilities, curve[:, step])


@pytest.mark.parametrize("pool", ["cls", "gap", "map"])
def test_a_model_without_positions_is_invariant_to_shuffled_patches(pool: str) -> None:
    blind, seeing, images = small_vit(position="none", pool=pool), small_vit(pool=pool), random_images()
    assert_close(ablate(blind, images, range(6), "shuffle", seed=3), blind(images), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ablate(seeing, images, range(6), "shuffle", seed=3), seeing(images), rtol=1e-2, atol=1e-3)


def test_shuffled_patches_lie_where_the_permutation_says() -> None:
    model, images = small_vit(), random_images()
    moved = images.clone()
    for position, patch in enumerate(shuffle_permutation([0, 2, 4, 5], 6, seed=5)):
        (y, x), (v, u) = divmod(position, 3), divmod(patch, 3)
        moved[:, :, 6 * y : 6 * y + 6, 5 * x : 5 * x + 5] = images[:, :, 6 * v : 6 * v + 6, 5 * u : 5 * u + 5]
    with torch.no_grad():
        assert torch.equal(ablate(model, images, [5, 0, 2, 4], "shuffle", seed=5), model(moved))


def test_a_permutation_is_drawn_from_its_seed_and_moves_every_chosen_patch() -> None:
    assert all(shuffle_permutation([1, 4, 6, 7], 9, seed) == shuffle_permutation([7, 6, 4, 1, 1], 9, seed) for seed in range(5))
    permutations = [shuffle_permutation([1, 4, 6, 7], 9, seed) for seed in range(50)]
    assert len({tuple(permutation) for permutation in permutations}) == 6  # as many cycles as there are through four
    for permutation in permutations:
        assert sorted(permutation) == list(range(9))
        assert [position for position in range(9) if permutation[position] == position] == [0, 2, 3, 5, 8]
    assert shuffle_permutation([3], 5) == shuffle_permutation([], 5) == list(range(5))


def test_a_hybrids_patches_cover_a_stride_of_pixels() -> None:
    model, images = build(variant("R+Ti/16", image=(64, 96), classes=3)).eval(), torch.randn(1, 3, 64, 96)
    grey = images.clone()
    grey[:, :, 32:, 64:] = 0
    with torch.no_grad():
        assert torch.equal(ablate(model, images, [5]), model(grey))
    assert ablate(model, images, [5], "drop").shape == (1, 3)


def test_patches_can_be_dropped_with_token_merging_and_not_with_patch_dropping() -> None:
    plain, images = small_vit(image=(30, 35)), torch.randn(2, 3, 30, 35)
    left = [patch for patch in range(35) if patch not in (3, 20)]
    kept_indices = torch.tensor(left).expand(2, -1)
    merging = reduced_vit(plain, merge_tokens=2)
    with torch.no_grad():
        by_hand = merging.head(merging.encode_and_pool(merging.embed_patches(images)[:, left], (5, 7), kept_indices))
    assert_close(ablate(merging, images, [3, 20], "drop"), by_hand)
    with pytest.raises(VitrailError, match="drops patches by itself; mask or shuffle"):
        ablate(reduced_vit(plain, drop_patches=0.2), images, [3], "drop")
    assert ablate(reduced_vit(plain, drop_patches=0.2), images, [3], "mask").shape == (2, 5)


def test_errors_are_one_sentence() -> None:
    images = random_images()
    with pytest.raises(VitrailError, match=r"all 6 patches cannot be dropped.*keep one"):
        ablate(small_vit(), images, range(6), "drop")
    with pytest.raises(VitrailError, match=r"relative positions count .* mask or shuffle"):
        ablate(small_vit(position="relative"), images, [1], "drop")
    with pytest.raises(VitrailError, match="patches must be indices from 0 to 5, got 6"):
        ablate(small_vit(), images, [0, 6])
    with pytest.raises(VitrailError, match="by mask, shuffle or drop, got 'burn'"):
        ablate(small_vit(), images, [0], "burn")


def test_training_mode_is_restored() -> None:
    model, images = small_vit(dropout=0.5), random_images()
    expected = ablate(model, images, [2], "drop")
    model.train()
    assert torch.equal(ablate(model, images, [2], "drop"), expected)
    assert model.training
