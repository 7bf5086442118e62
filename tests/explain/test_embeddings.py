"""Position similarity and patch filters of every kind of model."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.explain.embeddings import patch_filters, position_similarity
from vitrail.models.build import build
from vitrail.models.variants import variant

KINDS = [
    "learned1d",
    "learned2d",
    "learned2d-sum",
    "sincos1d",
    "sincos2d",
    "sincos2d-mae",
    "sincos2d-moco",
    "rotary",
    "relative",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("registers", [0, 2])
def test_similarity_is_one_to_itself_and_symmetric(kind: Any, registers: int) -> None:
    model = small_vit(position=kind, registers=registers)
    tiles = position_similarity(model)
    assert tiles.shape == (2, 3, 2, 3)
    flat = tiles.reshape(6, 6)
    assert_close(flat.diagonal(), torch.ones(6))
    assert_close(flat, flat.T)
    assert flat.abs().max() <= 1 + 1e-6
    assert (flat - torch.ones(6, 6)).abs().max() > 1e-3


def test_for_a_table_it_is_the_cosine_of_its_rows() -> None:
    model: Any = small_vit()
    table = model.positions[0].table.weight
    assert_close(position_similarity(model)[1, 2, 0, 1], F.cosine_similarity(table[1, 2], table[0, 1], dim=0))


def test_rotary_depends_on_the_offset_alone_and_is_what_is_left_of_a_product() -> None:
    tiles = position_similarity(small_vit(position="rotary", image=(24, 20)))
    assert_close(tiles[0, 0, 1, 2], tiles[2, 1, 3, 3])
    assert_close(tiles[0, 1, 0, 2], tiles[3, 2, 3, 3])


def test_without_positions_there_is_nothing_to_compare() -> None:
    with pytest.raises(VitrailError, match="no positions"):
        position_similarity(small_vit(position="none"))
    with pytest.raises(VitrailError, match="layer must be from 0 to 3, got 4"):
        position_similarity(small_vit(position="relative"), layer=4)


def test_filters_are_principal_components_of_the_kernels() -> None:
    model: Any = small_vit(width=48, heads=3)
    filters = patch_filters(model, 5)
    assert filters.shape == (5, 3, 6, 5)
    assert filters.amin() >= 0
    assert filters.flatten(1).amax(1).eq(1).all()  # the largest value of each is positive
    kernels = model.embed.project.weight.detach().flatten(1)
    values, vectors = torch.linalg.eigh(torch.cov(kernels.T))
    for number in range(5):
        ours, theirs = filters[number].flatten() - 0.5, vectors[:, -1 - number]
        assert abs(F.cosine_similarity(ours, theirs, dim=0).item()) == pytest.approx(1, abs=1e-3)
    assert values[-1] >= values[-5]


@pytest.mark.parametrize("changes", [{"channels": 1}, {"channels": 4, "patch": (3, 5)}], ids=str)
def test_any_patch_and_channels_have_filters(changes: dict[str, Any]) -> None:
    model = small_vit(**changes)
    assert patch_filters(model).shape[1:] == (changes["channels"], *changes.get("patch", (6, 5)))
    assert patch_filters(model).shape[0] == min(28, 24)


def test_the_filters_of_a_hybrid_are_its_first_convolution() -> None:
    model = build(variant("R26+S/32", image=64, classes=3))
    assert patch_filters(model, 28).shape == (28, 3, 7, 7)
