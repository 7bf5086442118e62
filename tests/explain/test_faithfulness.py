"""Faithfulness on a model whose evidence is known: its class depends on one patch and nothing else."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.explain.faithfulness import (
    auc,
    blur_images,
    edge_map,
    faithfulness,
    mass_on_object,
    pointing_game,
    pool_to_patches,
    random_map,
)
from vitrail.models.vit import ViT


class OnePatch(ViT):
    """Model whose class 1 depends on the brightness of the patch in row 1, column 2."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        bright = images[:, :, 6:12, 10:15].mean(dim=(1, 2, 3))
        return torch.stack([torch.zeros_like(bright), 8 * bright - 4, *[torch.full_like(bright, -9)] * 3], dim=1)


def one_patch() -> OnePatch:
    return OnePatch(small_vit().config).eval()


def ranked(first: int) -> torch.Tensor:
    """Return a map whose maximum is at this index."""
    values = torch.arange(6.0).flip(0)
    values[first] = 9
    return values.view(1, 2, 3)


def test_deleting_the_evidence_first_loses_the_class_first() -> None:
    images = torch.ones(1, 3, 12, 15)
    classes = torch.tensor([1])
    right, wrong = (faithfulness(one_patch(), images, ranked(first), classes, steps=6) for first in (5, 0))
    full, none = torch.sigmoid(torch.tensor(4.0)), torch.sigmoid(torch.tensor(-4.0))
    assert_close(right.deletion_curve[0], torch.stack([full] + [none] * 6), rtol=1e-2, atol=1e-2)
    assert right.deletion_auc < wrong.deletion_auc


def test_inserting_the_evidence_first_finds_the_class_first() -> None:
    images = torch.zeros(1, 3, 12, 15)
    images[:, :, 6:12, 10:15] = 1
    right, wrong = (faithfulness(one_patch(), images, ranked(first), torch.tensor([1]), steps=6) for first in (5, 0))
    assert right.insertion_auc > wrong.insertion_auc
    assert right.insertion_curve[0, 1] == right.insertion_curve[0, -1]
    assert_close(right.insertion_curve[0, 1], one_patch()(images).softmax(1)[0, 1])


@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}], ids=str)
def test_the_ends_of_the_curves_do_not_depend_on_the_map(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(3, 3, 12, 15)
    one, other = (faithfulness(model, images, torch.rand(3, 2, 3), steps=3) for _ in range(2))
    whole = model(images).softmax(1).amax(1)
    for result in (one, other):
        assert_close(result.deletion_curve[:, 0], whole)
        assert_close(result.insertion_curve[:, -1], whole)
    assert_close(one.deletion_curve[:, -1], other.deletion_curve[:, -1])
    assert_close(one.insertion_curve[:, 0], other.insertion_curve[:, 0])


def test_a_model_of_the_sigmoid_loss_has_independent_probabilities() -> None:
    model, images = small_vit(), torch.randn(3, 3, 12, 15)
    model.metadata = {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}}
    result = faithfulness(model, images, torch.rand(3, 2, 3), steps=2)
    assert_close(result.deletion_curve[:, 0], model(images).sigmoid().amax(1))


def test_zero_steps_are_refused() -> None:
    with pytest.raises(VitrailError, match="steps must be at least 1, got 0; try steps=16"):
        faithfulness(small_vit(), torch.randn(1, 3, 12, 15), torch.rand(1, 2, 3), steps=0)


def test_the_area_under_a_straight_line_is_its_mean() -> None:
    assert_close(auc(torch.tensor([[0.0, 0.5, 1.0], [1.0, 1.0, 1.0]])), torch.tensor([0.5, 1.0]))


def test_pointing_game_and_mass_on_object_by_hand() -> None:
    masks = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 0.5, 1.0]]] * 3)
    maps = torch.stack([ranked(2)[0], ranked(0)[0], torch.zeros(2, 3)])
    assert pointing_game(maps, masks).tolist() == [1.0, 0.0, 0.0]
    # ranked(2) is 5 4 9 / 2 1 0, ranked(0) is 9 4 3 / 2 1 0; of a zero map, the object's fraction
    assert_close(mass_on_object(maps, masks), torch.tensor([9.5 / 21, 3.5 / 19, 2.5 / 6]))


def test_a_pooled_mask_is_its_fraction_of_each_patch() -> None:
    mask = torch.zeros(1, 12, 15)
    mask[0, 6:12, 10:15] = 1
    mask[0, 0:3, 0:5] = 1
    assert_close(pool_to_patches(mask, (2, 3))[0], torch.tensor([[0.5, 0, 0], [0, 0, 1.0]]))


def test_edges_are_where_pixels_change() -> None:
    images = torch.zeros(1, 3, 12, 15)
    images[:, :, 8:, 12:] = 1
    edges = edge_map(images, (2, 3))[0]
    assert edges.argmax() == 5
    assert edges[0, 0] == 0
    assert edge_map(torch.ones(1, 3, 12, 15), (2, 3)).abs().max() == 0  # nor at the border


def test_random_maps_are_reproducible_and_blurring_keeps_a_flat_image() -> None:
    images = torch.randn(2, 3, 12, 15)
    assert torch.equal(random_map(images, (2, 3), 4), random_map(images, (2, 3), 4))
    assert not torch.equal(random_map(images, (2, 3), 4), random_map(images, (2, 3), 5))
    assert_close(blur_images(torch.full((1, 3, 12, 15), 0.7)), torch.full((1, 3, 12, 15), 0.7))
    assert blur_images(images).std() < 0.3 * images.std()


def test_training_mode_is_restored() -> None:
    model = small_vit().train()
    faithfulness(model, torch.randn(1, 3, 12, 15), torch.rand(1, 2, 3), steps=2)
    assert model.training
    assert isinstance(model, nn.Module)
