"""Metrics of segmentation equal torchmetrics' and a definition in numpy and scipy, with ignored pixels, absent classes and
empty masks."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from vitrail.data.connected_components import connected_components
from vitrail.data.sources.dataset import IGNORED
from vitrail.tasks import boundary_iou
from vitrail.tasks.boundary_iou import boundary_counts, boundary_distance
from vitrail.tasks.panoptic_quality import panoptic_counts, panoptic_quality_per_class, without_unnumbered
from vitrail.tasks.segmentation_metrics import (
    bootstrap_segmentation,
    class_rows,
    confusion_matrix,
    iou_of_counts,
    iou_per_class,
    segmentation_scores,
)

ndimage: Any = reference_library("scipy.ndimage")
CLASSES = 4  # the last of which never occurs


def blobs(seed: int, height: int = 37, width: int = 53, classes: int = CLASSES - 1, scale: float = 3.0) -> ndarray:
    """A mask of smooth regions."""
    noise = np.random.default_rng(seed).standard_normal((classes, height, width))
    return ndimage.gaussian_filter(noise, (0, scale, scale)).argmax(0).astype(np.int16)


def with_ignored(mask: ndarray, seed: int) -> ndarray:
    return np.where(blobs(seed + 100, mask.shape[0], mask.shape[1], classes=4) == 0, np.int16(IGNORED), mask)


def pairs(seeds: range = range(3)) -> list[tuple[ndarray, ndarray]]:
    """Predictions and masks: of random regions, of a mask without anything but ignored pixels, and of one class alone."""
    found = [(blobs(seed), with_ignored(blobs(seed // 2), seed)) for seed in seeds]
    empty = np.full((37, 53), IGNORED, np.int16)
    return [*found, (blobs(9), empty), (np.zeros((37, 53), np.int16), np.zeros((37, 53), np.int16))]


def confusion_of(predicted: ndarray, target: ndarray) -> torch.Tensor:
    return confusion_matrix(torch.from_numpy(predicted), torch.from_numpy(target), CLASSES)


@pytest.mark.parametrize("count", [1, 5])
def test_scores_are_their_definition_over_all_pixels(count: int) -> None:
    cases = pairs()[:count]
    total = torch.stack([confusion_of(*pair) for pair in cases]).sum(0)
    predicted, target = (np.concatenate([pair[side].ravel() for pair in cases]) for side in (0, 1))
    predicted, target = predicted[target != IGNORED], target[target != IGNORED]
    iou, dice = [], []
    for label in range(CLASSES):
        a, b = predicted == label, target == label
        if (a | b).any():
            iou.append((a & b).sum() / (a | b).sum())
            dice.append(2 * (a & b).sum() / (a.sum() + b.sum()))
    scores = segmentation_scores(total)
    assert float(scores["miou"]) == pytest.approx(np.mean(iou), abs=1e-9)
    assert float(scores["dice"]) == pytest.approx(np.mean(dice), abs=1e-9)
    assert float(scores["pixel_accuracy"]) == pytest.approx((predicted == target).mean(), abs=1e-9)
    assert iou_per_class(total).isnan().tolist() == [False, False, False, True]


def test_a_mask_without_counted_pixels_has_no_score() -> None:
    scores = segmentation_scores(confusion_of(*pairs()[-2]), boundary_counts(*pairs()[-2], CLASSES))
    assert all(value.isnan() for value in scores.values())


@pytest.mark.parity
def test_scores_are_torchmetrics() -> None:
    classification: Any = reference_library("torchmetrics.functional.classification")
    segmentation: Any = reference_library("torchmetrics.segmentation")
    total, dice = (
        torch.zeros(CLASSES, CLASSES, dtype=torch.int64),
        segmentation.DiceScore(CLASSES, average="none", input_format="index", aggregation_level="global"),
    )
    mean_iou = segmentation.MeanIoU(CLASSES, per_class=True, input_format="index")
    for predicted, target in pairs():
        ours, theirs = torch.from_numpy(predicted).long(), torch.from_numpy(target).long()
        confusion = confusion_matrix(ours, theirs, CLASSES)
        total += confusion
        if (theirs != IGNORED).any():
            jaccard = classification.multiclass_jaccard_index(ours, theirs, CLASSES, average="none", ignore_index=IGNORED)
            assert_close(iou_per_class(confusion).nan_to_num().float(), jaccard, rtol=0, atol=1e-6)
        counted = theirs != IGNORED  # these two know no ignored pixels
        dice.update(ours[counted][None], theirs[counted][None])
        if counted.all():
            mean_iou.update(ours[None], theirs[None])
            assert float(mean_iou.compute()[0]) == pytest.approx(float(iou_per_class(confusion)[0]), abs=1e-6)
    accuracy = total.diagonal().sum() / total.sum()
    iou = iou_per_class(total)
    assert_close((2 * iou / (1 + iou)).nan_to_num().float(), dice.compute().nan_to_num(), rtol=0, atol=1e-6)
    assert float(segmentation_scores(total)["pixel_accuracy"]) == pytest.approx(float(accuracy), abs=1e-6)


def eroded_boundary(mask: ndarray, counted: ndarray, distance: int) -> ndarray:
    """What an erosion of the class takes away, in which ignored pixels are neither inside nor outside."""
    square = np.ones((2 * distance + 1, 2 * distance + 1), bool)
    return np.asarray(mask & counted & ~ndimage.binary_erosion(mask | ~counted, square, border_value=0))


@pytest.mark.parametrize("size", [(37, 53), (5, 80), (1, 1), (90, 7)])
@pytest.mark.parametrize("band", [64, 2**21])
def test_boundaries_are_what_an_erosion_takes_away(size: tuple[int, int], band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary_iou, "MAX_BAND_NUMEL", band)
    distance = boundary_distance(*size)
    assert distance == max(round(0.02 * np.hypot(*size)), 1)
    for seed in range(3):
        predicted, target = blobs(seed, *size), with_ignored(blobs(seed + 1, *size), seed)
        counted, expected = target != IGNORED, []
        for label in range(CLASSES):
            true, found = (eroded_boundary(mask == label, counted, distance) for mask in (target, predicted))
            expected.append([true.sum(), found.sum(), (true & found).sum()])
        assert boundary_counts(predicted, target, CLASSES).tolist() == expected


def test_a_perfect_prediction_has_a_boundary_iou_of_1_and_a_shifted_one_loses_more_than_in_iou() -> None:
    mask = np.zeros((100, 120), np.int16)
    mask[30:70, 40:90] = 1
    assert iou_of_counts(boundary_counts(mask, mask, 2)).tolist() == [1, 1]
    shifted = np.roll(mask, 2, axis=1)
    iou = iou_per_class(confusion_matrix(torch.from_numpy(shifted), torch.from_numpy(mask), 2))
    assert (iou_of_counts(boundary_counts(shifted, mask, 2)) < iou).all()


@pytest.mark.parametrize("connected", [True, False])
def test_components_are_scipys(connected: bool) -> None:
    for seed, scale in ((0, 1.0), (1, 2.0), (2, 0.3)):
        mask = blobs(seed, 41, 29, classes=3, scale=scale)
        counted = mask != 2 if connected else None
        expected, offset = np.zeros(mask.shape, int), 0
        for label in range(2 if connected else 3):
            parts, count = ndimage.label(mask == label, np.ones((3, 3)))
            expected[parts > 0] = parts[parts > 0] + offset
            offset += count
        ours = connected_components(mask, counted)
        assert ours.max() == offset
        assert len(np.unique(np.stack([ours.ravel(), expected.ravel()]), axis=1).T) == offset + (ours == 0).any()
        first = np.unique(ours[ours > 0], return_index=True)[1]
        assert (np.diff(first) > 0).all()
    assert connected_components(np.zeros((0, 4), np.int16)).shape == (0, 4)


def numbered(mask: ndarray, things: tuple[int, ...] = (1, 2)) -> ndarray:
    return connected_components(mask, np.isin(mask, things))


@pytest.mark.parity
def test_panoptic_quality_is_torchmetrics() -> None:
    detection: Any = reference_library("torchmetrics.detection")
    metric = detection.PanopticQuality(
        {1, 2}, {0, 3}, return_sq_and_rq=True, return_per_class=True, allow_unknown_preds_category=True
    )
    mean = detection.PanopticQuality({1, 2}, {0, 3}, return_sq_and_rq=True, allow_unknown_preds_category=True)
    total = torch.zeros(CLASSES, 4, dtype=torch.float64)
    cases = [(blobs(seed, scale=4), with_ignored(blobs(seed, scale=4.6), seed)) for seed in range(4)]
    for predicted, target in [*cases, *pairs()]:
        objects = numbered(predicted), numbered(target)
        total += panoptic_counts(predicted, objects[0], target, objects[1], CLASSES)
        theirs = [
            torch.from_numpy(np.stack([np.where(mask < 0, 99, mask), numbers], axis=-1))[None].long()
            for mask, numbers in zip((predicted, target), objects, strict=True)
        ]
        metric.update(*theirs)
        mean.update(*theirs)
    quality = panoptic_quality_per_class(total)
    order = [1, 2, 0, 3]  # theirs: things first
    for number, name in enumerate(("pq", "sq", "rq")):
        expected = metric.compute()[:, number]
        assert_close(quality[name][order].nan_to_num(), expected, rtol=0, atol=1e-6)
        assert float(quality[name].nanmean()) == pytest.approx(float(mean.compute()[number]), abs=1e-6)
    assert total[:, 1].sum() > 3
    assert quality["pq"].isnan().tolist() == [False, False, False, True]


def test_panoptic_quality_is_its_definition() -> None:
    """One object is found with an IoU of 3/4, one is missed, one is imagined; the background has 26 of 30 pixels in both."""
    target, objects = np.zeros((6, 6), np.int16), np.zeros((6, 6), np.int32)
    target[0, :4], objects[0, :4] = 1, 1
    target[3, :2], objects[3, :2] = 1, 2
    predicted, found = np.zeros((6, 6), np.int16), np.zeros((6, 6), np.int32)
    predicted[0, :3], found[0, :3] = 1, 1
    predicted[5, 4:], found[5, 4:] = 1, 2
    counts = panoptic_counts(predicted, found, target, objects, 2)
    assert counts.tolist() == [[pytest.approx(28 / 33), 1, 0, 0], [0.75, 1, 1, 1]]
    quality = panoptic_quality_per_class(counts)
    assert quality["pq"].tolist() == [pytest.approx(28 / 33), 0.375]
    assert (float(quality["sq"][1]), float(quality["rq"][1])) == (0.75, 0.5)
    crowd = without_unnumbered(target, np.where(objects == 2, 0, objects), np.array([False, True]))
    assert (crowd == IGNORED).sum() == 2
    assert panoptic_counts(predicted, found, crowd, objects, 2)[1].tolist() == [0.75, 1, 1, 0]


def test_intervals_of_classes_come_from_resamples_of_the_images() -> None:
    cases = pairs(range(12))
    confusion = torch.stack([confusion_of(*pair) for pair in cases])
    boundary = torch.stack([boundary_counts(*pair, CLASSES) for pair in cases])
    samples, iou = bootstrap_segmentation(confusion, boundary, 50)
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(cases), (50, len(cases)))[7]
    expected = segmentation_scores(confusion[drawn].sum(0), boundary[drawn].sum(0))
    assert {name: float(values[7]) for name, values in samples.items()} == pytest.approx(
        {name: float(value) for name, value in expected.items()}
    )
    assert_close(torch.from_numpy(iou[7]), iou_per_class(confusion[drawn].sum(0)), equal_nan=True)
    rows = class_rows(("a", "b", "c", "d"), confusion, boundary)
    assert [row["pixels"] for row in rows] == confusion.sum((0, 2)).tolist()
    for row in rows[:3]:
        low, high = row["interval"]
        assert low < row["iou"] < high
    assert np.isnan(rows[3]["interval"]).all()
