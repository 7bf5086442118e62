"""The arms differ in the pooling, and each is trained at every learning rate."""

from dataclasses import replace

from tests.lab.made import made
from vitrail.lab.cls_or_gap import RATES, tell, trials
from vitrail.lab.experiment import Asked
from vitrail.models.settings import ViTConfig


def test_arms_differ_in_the_pooling_alone() -> None:
    found = {(job.of["head"], job.of["lr"]): job.recipe for job in trials(Asked("fashion")) if job.of["seed"] == 0}
    assert {lr for _, lr in found} == set(RATES)
    for lr in RATES:
        token, average = found["class token", lr], found["GAP", lr]
        assert isinstance(average.model, ViTConfig)
        assert replace(average, model=replace(average.model, pool="cls")) == token
        assert token.optim.lr == lr


def test_the_learning_rate_is_selected_for_each_on_validation() -> None:
    options = Asked("fashion")
    peaks = {"class token": 1e-2, "GAP": 1e-3}
    rows = made(trials(options), lambda of: 0.8 - 0.1 * (of["lr"] != peaks[of["head"]]) + 0.01 * of["seed"])
    result = tell(options, rows)
    assert result.numbers["best"] == peaks
    assert "the difference is not significant" in result.answer
    assert "GAP 81.0% (at 0.001), at different learning rates; the difference" in result.answer
    ahead = tell(options, made(trials(options), lambda of: 0.5 + 0.1 * (of["head"] == "GAP") + 0.01 * of["seed"]))
    assert "GAP is significantly better (GAP minus class token: +10.0 ± 0.0 points" in ahead.answer
