"""Scores of a cross-validation: the interval of the mean is scipy's, and that of all predictions is the bootstrap's."""

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]

from tests.small_models import small_config
from vitrail.data.preprocess import Preprocess
from vitrail.evaluation.bootstrap import bootstrap_scores
from vitrail.evaluation.fold_scores import mean_interval, pooled_scores, t_quantile
from vitrail.recipes.task_config import Classification
from vitrail.tasks.classification import ClassificationTask
from vitrail.tasks.resampling import percentile_interval


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 200])
def test_quantiles_of_students_t(degrees: int) -> None:
    for probability in (0.5, 0.95, 0.99):
        assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf((1 + probability) / 2, degrees), rel=1e-9)


def test_the_interval_of_a_mean() -> None:
    values = [0.71, 0.68, 0.74, 0.69, 0.77]
    mean, interval = mean_interval(values)
    expected = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (mean, *interval) == pytest.approx((np.mean(values), *expected), rel=1e-9)
    assert mean_interval([0.5, 0.5]) == (0.5, (0.5, 0.5))


def test_all_predictions_of_a_classifier_have_intervals_by_bootstrap() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(90, 7, generator=generator), torch.randint(7, (90,), generator=generator)
    config = small_config(classes=7)
    task = ClassificationTask(Classification(), config, Preprocess(config.image), tuple("abcdefg"))
    metrics, intervals = pooled_scores(task, {task.output_name: logits, task.target_name: labels})
    assert metrics["top1"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert set(intervals) == {"top1", "top5"}
    assert intervals["top1"] == percentile_interval(bootstrap_scores(logits, labels)["top1"])
    assert intervals["top1"][0] < metrics["top1"] < intervals["top1"][1]
