"""The arms differ in the pooling, and each is trained at every learning rate."""

from dataclasses import replace

from tests.lab.fake_results import fake_results
from vitrail.lab.cls_or_gap import RATES, build_result, jobs
from vitrail.lab.experiment import ExperimentOptions
from vitrail.models.config import ViTConfig


def test_arms_differ_in_the_pooling_alone() -> None:
    result = {
        (job.condition["head"], job.condition["lr"]): job.recipe
        for job in jobs(ExperimentOptions("fashion"))
        if job.condition["seed"] == 0
    }
    assert {lr for _, lr in result} == set(RATES)
    for lr in RATES:
        token, average = result["class token", lr], result["GAP", lr]
        assert isinstance(average.model, ViTConfig)
        assert replace(average, model=replace(average.model, pool="cls")) == token
        assert token.optim.lr == lr


def test_the_learning_rate_is_selected_for_each_on_validation() -> None:
    options = ExperimentOptions("fashion")
    peaks = {"class token": 1e-2, "GAP": 1e-3}
    rows = fake_results(
        jobs(options), lambda condition: 0.8 - 0.1 * (condition["lr"] != peaks[condition["head"]]) + 0.01 * condition["seed"]
    )
    result = build_result(options, rows)
    assert result.numbers["best"] == peaks
    assert "the difference is not significant" in result.summary
    assert "GAP 81.0% (at 0.001), at different learning rates; the difference" in result.summary
    ahead = build_result(
        options,
        fake_results(jobs(options), lambda condition: 0.5 + 0.1 * (condition["head"] == "GAP") + 0.01 * condition["seed"]),
    )
    assert "GAP is significantly better (GAP minus class token: +10.0 ± 0.0 points" in ahead.summary
