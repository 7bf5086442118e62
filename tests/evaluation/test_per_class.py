"""Metrics equal scikit-learn's and torchmetrics' on the same predictions, with ties and with absent classes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from vitrail.evaluation.per_class import confusion_matrix, most_confused, per_class_metrics
from vitrail.tasks.classification import mean_scores, per_image_scores

CASES = [(503, 7), (211, 2), (64, 12), (5, 3), (1, 6)]


def random_logits(num_images: int, classes: int, coarse: bool = False) -> tuple[Tensor, Tensor]:
    """Return logits better than chance and labels. ``coarse``: whole numbers, so that many are equal."""
    generator = torch.Generator().manual_seed(num_images)
    labels = torch.randint(classes, (num_images,), generator=generator)
    logits = 2 * torch.randn(num_images, classes, generator=generator)
    logits[torch.arange(num_images), labels] += 1
    return (logits.round() if coarse else logits), labels


@pytest.mark.parity
@pytest.mark.parametrize(("num_images", "classes"), CASES)
@pytest.mark.parametrize("coarse", [False, True])
def test_scores_are_scikit_learns(num_images: int, classes: int, coarse: bool) -> None:
    metrics: Any = reference_library("sklearn.metrics")
    logits, labels = random_logits(num_images, classes, coarse)
    scores, every = mean_scores(logits, labels), list(range(classes))
    assert scores["top1"] == pytest.approx(metrics.accuracy_score(labels, logits.argmax(1)), abs=1e-15)
    probabilities = logits.double().softmax(1).numpy()
    assert scores["loss"] == pytest.approx(metrics.log_loss(labels, probabilities, labels=every), rel=1e-12)
    if classes > 5:
        # of equal scores theirs takes the last class, so it gets the classes in reverse
        top5 = metrics.top_k_accuracy_score(classes - 1 - labels, logits.numpy()[:, ::-1], k=5, labels=every)
        assert scores["top5"] == pytest.approx(top5, abs=1e-15)
    else:
        assert scores["top5"] == 1


@pytest.mark.parity
@pytest.mark.parametrize(("num_images", "classes"), CASES)
def test_scores_are_torchmetrics(num_images: int, classes: int) -> None:
    metrics: Any = reference_library("torchmetrics.functional.classification")
    logits, labels = random_logits(num_images, classes)
    scores = mean_scores(logits, labels)
    for name, k in (("top1", 1), ("top5", min(5, classes))):
        theirs = metrics.multiclass_accuracy(logits, labels, num_classes=classes, top_k=k, average="micro")
        assert scores[name] == pytest.approx(theirs.item(), abs=1e-6)
    theirs = metrics.multiclass_f1_score(logits, labels, num_classes=classes, average=None)
    assert_close(per_class_metrics(logits.argmax(1), labels, classes).f1.float(), theirs)


@pytest.mark.parity
@pytest.mark.parametrize(("num_images", "classes"), CASES)
@pytest.mark.parametrize("coarse", [False, True])
def test_per_class_and_macro_metrics_are_scikit_learns(num_images: int, classes: int, coarse: bool) -> None:
    metrics: Any = reference_library("sklearn.metrics")
    logits, labels = random_logits(num_images, classes, coarse)
    predicted, every = logits.argmax(1), list(range(classes))
    result = per_class_metrics(predicted, labels, classes)
    theirs = metrics.precision_recall_fscore_support(labels, predicted, labels=every, zero_division=0)
    for ours, expected in zip((result.precision, result.recall, result.f1, result.support), theirs, strict=True):
        assert_close(ours.double(), torch.from_numpy(expected).double(), rtol=0, atol=1e-15)
    present = sorted(set(labels.tolist()))
    *means, _ = metrics.precision_recall_fscore_support(labels, predicted, labels=present, average="macro", zero_division=0)
    assert list(result.macro_average().values()) == pytest.approx(means, abs=1e-15)
    theirs = metrics.confusion_matrix(labels, predicted, labels=every)
    assert np.array_equal(confusion_matrix(predicted, labels, classes).numpy(), theirs)


def test_confused_pairs_are_the_matrix_without_its_diagonal() -> None:
    logits, labels = random_logits(503, 7)
    predicted = logits.argmax(1)
    pairs, matrix = most_confused(predicted, labels), confusion_matrix(predicted, labels, 7)
    assert [count for *_, count in pairs] == sorted((count for *_, count in pairs), reverse=True)
    matrix.fill_diagonal_(0)
    rebuilt = torch.zeros_like(matrix)
    for label, prediction, count in pairs:
        rebuilt[label, prediction] = count
    assert torch.equal(rebuilt, matrix)
    assert most_confused(labels, labels) == []


def test_of_equal_logits_the_first_counts_and_nan_is_wrong() -> None:
    equal = torch.zeros(7, 7)
    assert per_image_scores(equal, torch.arange(7))["top1"].tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert per_image_scores(equal, torch.arange(7))["top5"].tolist() == [1, 1, 1, 1, 1, 0, 0]
    for classes in (3, 7):
        broken = torch.full((classes, classes), torch.nan)
        scores = per_image_scores(broken, torch.arange(classes))
        assert scores["top1"].sum() == scores["top5"].sum() == 0


def test_scores_do_not_depend_on_the_order_of_images_or_classes() -> None:
    logits, labels = random_logits(64, 12)
    expected = mean_scores(logits, labels)
    rows, columns = torch.randperm(64), torch.randperm(12)
    permuted = mean_scores(logits[rows][:, columns], columns.argsort()[labels[rows]])
    assert permuted == pytest.approx(expected, rel=1e-14)
