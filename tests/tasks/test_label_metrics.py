"""Metrics of several labels per image equal scikit-learn's, with ties, absent classes and images without labels."""

import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor

from vitrail.tasks.label_metrics import (
    average_precision,
    best_thresholds,
    count_labels,
    coverage,
    label_calibration_error,
    label_losses,
    ranking_precision,
)

IMAGES, CLASSES = 41, 7


def sample(seed: int, ties: bool) -> tuple[Tensor, Tensor]:
    """Return probabilities and labels; the last class is absent, the first image has no label."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(IMAGES, CLASSES, generator=generator, dtype=torch.float64)
    if ties:
        probabilities = (probabilities * 4).round() / 4
    positive = torch.rand(IMAGES, CLASSES, generator=generator) < 0.3
    positive[:, -1] = False
    positive[0] = False
    return probabilities, positive


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_ranking_metrics_equal_scikit_learns(seed: int, ties: bool) -> None:
    probabilities, positive = sample(seed, ties)
    ours = torch.cat([average_precision(*column) for column in zip(probabilities.T, positive.T, strict=True)])
    support = positive.sum(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's warning of the absent class
        theirs = {
            how: metrics.average_precision_score(positive, probabilities, average=how) for how in ("macro", "micro", "weighted")
        }
        per_class = metrics.average_precision_score(positive, probabilities, average=None)
    assert ours.numpy() == pytest.approx(per_class, abs=1e-9)
    assert float(ours.mean()) == pytest.approx(theirs["macro"], abs=1e-9)
    assert float((ours * support).sum() / support.sum()) == pytest.approx(theirs["weighted"], abs=1e-9)
    assert float(average_precision(probabilities.flatten(), positive.flatten())) == pytest.approx(theirs["micro"], abs=1e-9)
    assert float(coverage(probabilities, positive).mean()) == pytest.approx(metrics.coverage_error(positive, probabilities))
    assert float(ranking_precision(probabilities, positive).mean()) == pytest.approx(
        metrics.label_ranking_average_precision_score(positive, probabilities)
    )


@pytest.mark.parametrize("seed", range(3))
def test_decisions_are_scored_as_by_scikit_learn(seed: int) -> None:
    probabilities, positive = sample(seed, ties=False)
    predicted = probabilities >= torch.linspace(0.2, 0.9, CLASSES, dtype=torch.float64)
    counts = count_labels(predicted, positive)
    options = {"zero_division": 0.0}
    for name, ours in (("precision", counts.precision), ("recall", counts.recall), ("f1", counts.f1)):
        theirs = getattr(metrics, f"{name}_score")(positive, predicted, average=None, **options)
        assert ours.numpy() == pytest.approx(theirs, abs=1e-12)
    assert float(counts.f1_macro) == pytest.approx(metrics.f1_score(positive, predicted, average="macro", **options))
    assert float(counts.f1_micro) == pytest.approx(metrics.f1_score(positive, predicted, average="micro", **options))
    assert float((predicted != positive).double().mean()) == pytest.approx(metrics.hamming_loss(positive, predicted))
    assert float((predicted == positive).all(1).double().mean()) == metrics.accuracy_score(positive, predicted)


def test_a_resample_counts_as_if_its_images_were_repeated() -> None:
    probabilities, positive = sample(5, ties=True)
    drawn = np.random.default_rng(0).integers(0, IMAGES, (3, IMAGES))
    resamples = torch.from_numpy(np.stack([np.bincount(row, minlength=IMAGES) for row in drawn]))
    fast = average_precision(probabilities[:, 2], positive[:, 2], resamples)
    counts = count_labels(probabilities > 0.5, positive, resamples)
    for number, row in enumerate(drawn):
        assert fast[number] == pytest.approx(float(average_precision(probabilities[row, 2], positive[row, 2])))
        repeated = count_labels(probabilities[row] > 0.5, positive[row])
        assert counts.f1[number].tolist() == pytest.approx(repeated.f1.tolist())


def test_the_loss_is_the_likelihood_of_every_label() -> None:
    probabilities, positive = sample(6, ties=False)
    expected = [
        metrics.log_loss(row, p, labels=[0, 1], normalize=False) for row, p in zip(positive, probabilities, strict=True)
    ]
    assert label_losses(probabilities.logit(), positive).numpy() == pytest.approx(expected)


def test_calibration_error_of_a_class_is_the_gap_of_its_bins() -> None:
    probabilities = torch.tensor([[0.1, 0.9], [0.1, 0.9], [0.6, 0.9], [0.6, 0.9]])
    positive = torch.tensor([[0, 1], [0, 1], [1, 1], [0, 0]], dtype=torch.bool)
    assert label_calibration_error(probabilities, positive).tolist() == pytest.approx([(0.2 + 0.2) / 4, (3.6 - 3) / 4])


def test_a_threshold_has_the_largest_f1_of_all() -> None:
    probabilities, positive = sample(7, ties=False)
    chosen = best_thresholds(probabilities, positive, min_positives=3)
    for label, threshold in enumerate(chosen[:-1]):
        f1 = [
            metrics.f1_score(positive[:, label], probabilities[:, label] >= other, zero_division=0.0)
            for other in [*np.linspace(0, 1, 301), threshold]
        ]
        assert f1[-1] == max(f1)
    rare = best_thresholds(probabilities, positive, min_positives=IMAGES)
    shared = [
        metrics.f1_score(positive, probabilities >= other, average="micro") for other in [*np.linspace(0, 1, 301), rare[0]]
    ]
    assert len(set(rare)) == 1
    assert shared[-1] == max(shared)
    assert best_thresholds(probabilities, torch.zeros_like(positive), min_positives=1) == [0.5] * CLASSES
