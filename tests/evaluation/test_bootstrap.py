"""The interval covers the truth as often as it claims; resamples are deterministic; McNemar's test is the binomial one."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.evaluation.test_calibration import guo_error
from tests.evaluation.test_per_class import random_logits
from tests.reference_libraries import reference_library
from vitrail.evaluation.bootstrap import bootstrap_scores, mcnemar, score_intervals
from vitrail.tasks import resampling
from vitrail.tasks.classification import mean_scores
from vitrail.tasks.resampling import bootstrap_means, percentile_interval


def test_the_interval_covers_the_truth_about_95_times_of_100() -> None:
    """A proportion of 0.8, and the mean of a skewed quantity such as a loss, of 400 images, 600 times."""
    generator = np.random.default_rng(7)
    covered = np.zeros(2)
    for _ in range(600):
        table = np.stack([generator.random(400) < 0.8, generator.exponential(1.5, 400)], axis=1).astype(float)
        resampled = bootstrap_means(table, 300)
        for column, truth in enumerate((0.8, 1.5)):
            low, high = percentile_interval(resampled[:, column])
            covered[column] += low <= truth <= high
    assert np.all(covered / 600 > 0.925)
    assert np.all(covered / 600 < 0.975)


def test_the_scores_of_a_resample_are_the_scores_of_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two routes to the same numbers: select the images and score them; and however many are drawn at a time."""
    logits, labels = random_logits(53, 7)
    resampled = bootstrap_scores(logits, labels, 9)
    picked = np.random.default_rng(0).integers(0, 53, (9, 53))
    for number, rows in enumerate(torch.from_numpy(picked)):
        expected = mean_scores(logits[rows], labels[rows])
        assert resampled["top1"][number] == pytest.approx(expected["top1"], abs=1e-14)
        assert resampled["top5"][number] == pytest.approx(expected["top5"], abs=1e-14)
        assert resampled["nll"][number] == pytest.approx(expected["loss"], abs=1e-12)
        assert resampled["ece"][number] == pytest.approx(guo_error(logits[rows], labels[rows]), abs=1e-13)
    monkeypatch.setattr(resampling, "RESAMPLE_CHUNK_NUMEL", 100)
    for name, values in bootstrap_scores(logits, labels, 9).items():
        assert_allclose(values, resampled[name], rtol=1e-12)


def test_the_interval_shrinks_with_the_root_of_the_images() -> None:
    """The normal approximation holds for so many images."""
    for count in (1000, 16_000):
        table = (np.arange(count) % 4 > 0).astype(float)[:, None]
        low, high = percentile_interval(bootstrap_means(table)[:, 0])
        assert high - low == pytest.approx(2 * 1.96 * (0.75 * 0.25 / count) ** 0.5, rel=0.1)


@pytest.mark.parity
def test_if_every_image_is_right_the_interval_is_the_exact_one() -> None:
    stats = reference_library("scipy.stats")
    right, labels = torch.eye(7) * 3, torch.arange(7)
    for logits, hits in ((right, 7), (-right, 0)):
        intervals = score_intervals(logits, labels, bootstrap_scores(logits, labels))
        exact = stats.binomtest(hits, 7).proportion_ci(method="exact")
        assert intervals["top1"] == pytest.approx((exact.low, exact.high), abs=1e-12)
    few = score_intervals(right[:5, :5], labels[:5], bootstrap_scores(right[:5, :5], labels[:5]))
    assert few["top5"] == (1, 1)  # always right with five classes


@pytest.mark.parity
@pytest.mark.parametrize("pair", [(0, 0), (0, 1), (3, 3), (2, 9), (9, 2), (0, 40), (131, 180), (4000, 4300)])
def test_mcnemar_is_the_binomial_test(pair: tuple[int, int]) -> None:
    stats = reference_library("scipy.stats")
    expected = stats.binomtest(pair[0], sum(pair), 0.5).pvalue if sum(pair) else 1.0
    assert mcnemar(*pair) == pytest.approx(expected, rel=1e-9)
