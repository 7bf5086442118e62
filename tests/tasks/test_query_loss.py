"""The loss of queries: segments are matched with the smallest cost, ignored pixels count nowhere, and masks are annealed."""

from itertools import permutations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import IGNORED
from vitrail.tasks import query_loss as losses
from vitrail.tasks.query_loss import draw_unmasked, query_loss, semantic_segments, unmasked_probability
from vitrail.tasks.segmentation_eomt import QueryLogits

CLASSES, QUERIES, GRID = 3, 5, (4, 6)


def make_batch(images: int = 4) -> tuple[QueryLogits, Tensor]:
    """Predictions of two blocks at the size of the masks, and masks with ignored pixels, one image of which has no other."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randn(2, images, QUERIES, CLASSES + 1, generator=generator)
    masks = 3 * torch.randn(2, images, QUERIES, *GRID, generator=generator)
    targets = torch.randint(0, CLASSES, (images, *GRID), generator=generator)
    targets[0][targets[0] == 1] = 0  # a class that an image does not have
    targets[torch.rand(images, *GRID, generator=generator) < 0.3] = IGNORED
    targets[-1] = IGNORED
    return QueryLogits(classes, masks), targets


def loss_of(logits: QueryLogits, targets: Tensor) -> Tensor:
    return query_loss(logits, semantic_segments(targets, CLASSES), targets != IGNORED)


def pair_loss(mask: Tensor, target: Tensor, counted: Tensor) -> Tensor:
    logits, wanted = mask[counted], target[counted].float()
    probabilities = logits.sigmoid()
    dice = 1 - (2 * (probabilities * wanted).sum() + 1) / (probabilities.sum() + wanted.sum() + 1)
    return 5 * F.binary_cross_entropy_with_logits(logits, wanted) + 5 * dice


def brute_force(logits: QueryLogits, targets: Tensor) -> Tensor:
    """The loss from its definition, with the best of all matchings."""
    total = []
    for step_classes, step_masks in zip(logits.classes, logits.masks, strict=True):
        for classes, masks, target in zip(step_classes, step_masks, targets, strict=True):
            counted, labels = target != IGNORED, [label for label in range(CLASSES) if (target == label).any()]
            pairs = {
                (query, label): pair_loss(masks[query], target == label, counted)
                for query in range(QUERIES)
                for label in labels
            }
            costs = {each: value - 2 * classes[each[0]].softmax(0)[each[1]] for each, value in pairs.items()}
            chosen = min(
                permutations(range(QUERIES), len(labels)),
                key=lambda queries: sum(float(costs[pair]) for pair in zip(queries, labels, strict=True)),
            )
            wanted = torch.full((QUERIES,), CLASSES)
            wanted[list(chosen)] = torch.tensor(labels, dtype=torch.long)
            weight = torch.ones(CLASSES + 1)
            weight[-1] = 0.1
            loss = 2 * F.cross_entropy(classes, wanted, weight)
            if labels:
                loss = loss + torch.stack([pairs[pair] for pair in zip(chosen, labels, strict=True)]).mean()
            total.append(loss)
    return torch.stack(total).mean()


def test_the_loss_is_its_definition_with_the_best_of_all_matchings() -> None:
    logits, targets = make_batch()
    assert_close(loss_of(logits, targets), brute_force(logits, targets))


def test_a_batch_in_two_parts_has_the_same_gradient_and_ignored_pixels_have_none() -> None:
    logits, targets = make_batch()

    def gradient(rows: slice) -> Tensor:
        masks = logits.masks[:, rows].clone().requires_grad_()
        loss_of(QueryLogits(logits.classes[:, rows], masks), targets[rows]).backward()
        assert masks.grad is not None
        return masks.grad * len(targets[rows]) / 4

    whole = gradient(slice(0, 4))
    assert_close(torch.cat([gradient(slice(0, 3)), gradient(slice(3, 4))], dim=1), whole)
    assert (whole.movedim(2, -1)[:, targets == IGNORED] == 0).all()
    assert whole.abs().sum() > 0


def test_right_predictions_at_a_coarser_grid_cost_next_to_nothing() -> None:
    targets = torch.zeros(1, 16, 24, dtype=torch.long)
    targets[:, :, 8:16] = 1
    coarse = F.one_hot(targets[:, ::4, ::4], 2).movedim(-1, 1).float()
    for error, low, high in ((0.0, 0.0, 0.6), (1.0, 3.0, 200.0)):
        masks = 60 * ((coarse - 0.5) * (1 - 2 * error))[None]
        classes = torch.tensor([[60.0, 0.0, 0.0], [0.0, 60.0, 0.0]])[None, None]
        loss = query_loss(QueryLogits(classes, masks), semantic_segments(targets, 2), targets != IGNORED)
        assert low <= loss <= high


def test_large_masks_are_compared_at_every_second_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = make_batch()
    fine = targets.repeat_interleave(4, 1).repeat_interleave(4, 2)
    whole = loss_of(logits, fine)
    monkeypatch.setattr(losses, "MAX_PIXELS", fine[0].numel() // 4)
    assert loss_of(logits, fine) == pytest.approx(whole.item(), rel=0.15)
    assert loss_of(logits, fine) != whole


def test_segments_beyond_the_number_of_queries_are_left_out() -> None:
    logits, targets = make_batch()
    few = QueryLogits(logits.classes[:, :, :2], logits.masks[:, :, :2])
    assert loss_of(few, targets).isfinite()


def test_masks_are_annealed_from_the_first_block_to_the_last() -> None:
    progress = torch.linspace(0, 1, 25)
    probability = unmasked_probability(progress, 4)
    assert (probability[progress < 1 / 6] == 0).all()  # at first all queries are masked
    assert (probability[progress >= 5 / 6 + 1e-6] == 1).all()  # and at last none
    assert (probability.diff(dim=0) >= 0).all()
    assert (probability.diff(dim=1) <= 0).all()
    assert probability[12].tolist() == pytest.approx([1, 1, 0, 0])


def test_who_is_masked_depends_on_the_image_and_the_step_and_on_nothing_else() -> None:
    def draw(rows: list[int], progress: float, epoch: int = 0, seed: int = 3) -> Tensor:
        indices = torch.tensor(rows)
        batch = Batch(
            torch.zeros(len(rows), 3, 2, 2), indices, indices, epochs=torch.full((len(rows),), epoch),
            progress=torch.full((len(rows),), progress),
        )  # fmt: skip
        return draw_unmasked(batch, 200, 2, anneal=True, seed=seed)

    whole = draw([7, 2, 9], 0.4)  # the first block is half free: between 1/4 and 1/2
    assert (whole == torch.cat([draw([7], 0.4), draw([2, 9], 0.4)])).all()
    expected = unmasked_probability(torch.tensor([0.4]), 2)[0, 0].item()
    assert whole[:, 0].float().mean().item() == pytest.approx(expected, abs=0.06)
    assert not whole[:, 1].any()
    assert (whole <= draw([7, 2, 9], 0.45)).all()  # once free, for good within an epoch
    assert (whole != draw([7, 2, 9], 0.4, epoch=1)).any()
    assert (whole != draw([7, 2, 9], 0.4, seed=4)).any()
    outside = Batch(torch.zeros(1, 3, 2, 2), torch.zeros(1), torch.zeros(1, dtype=torch.long))
    assert draw_unmasked(outside, 5, 2, anneal=True, seed=0).all()
