"""Heads differ in what they read, and each gets every learning rate."""

from dataclasses import replace

from tests.lab.made import made
from vitrail.lab.cls_or_gap import RATES, tell, trials
from vitrail.lab.experiment import Asked
from vitrail.models.settings import ViTConfig


def test_heads_differ_in_the_token_alone() -> None:
    found = {(trial.of["head"], trial.of["lr"]): trial.recipe for trial in trials(Asked("fashion")) if trial.of["seed"] == 0}
    assert {lr for _, lr in found} == set(RATES)
    for lr in RATES:
        token, average = found["class token", lr], found["average", lr]
        assert isinstance(average.model, ViTConfig)
        assert replace(average, model=replace(average.model, pool="cls")) == token
        assert token.optim.lr == lr


def test_the_rate_is_chosen_for_each_on_validation() -> None:
    asked = Asked("fashion")
    peaks = {"class token": 1e-2, "average": 1e-3}
    rows = made(trials(asked), lambda of: 0.8 - 0.1 * (of["lr"] != peaks[of["head"]]) + 0.01 * of["seed"])
    told = tell(asked, rows)
    assert told.numbers["best"] == peaks
    assert "neither is clearly ahead" in told.answer
    assert "(81.0%): two different ones, and neither" in told.answer
    ahead = tell(asked, made(trials(asked), lambda of: 0.5 + 0.1 * (of["head"] == "average") + 0.01 * of["seed"]))
    assert "the average is clearly ahead (+10.0 ± 0.0 points" in ahead.answer
