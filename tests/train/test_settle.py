"""Automatically tuned values are fixed before the first step and written to the recipe."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train.small_run import recipe, still
from tests.train.test_loop import same
from vitrail.config import from_json
from vitrail.errors import VitrailError
from vitrail.train.loop import Machine, fit
from vitrail.train.recipe import Optim, Recipe, Schedule
from vitrail.train.settle import TESTED, Pace, Wishes, steps_in
from vitrail.train.watch import Silent


class Listens(Silent):
    curious = True

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.seconds: float | None = None

    def planned(self, recipe, data, model, state, seconds):  # type: ignore[no-untyped-def]
        self.seconds = seconds

    def said(self, message: str) -> None:
        self.sentences.append(message)


class BreaksLater(Silent):
    """Interrupts the run at the first step after a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        if list(self.folder.glob("checkpoints/step-*")):
            raise KeyboardInterrupt


def noted(folder: Path) -> Recipe:
    return from_json(Recipe, (folder / "recipe.json").read_text())


def test_a_recipe_with_more_steps_scales_its_schedule_and_intervals() -> None:
    base = recipe(steps=200, evaluate=50, checkpoint=20, ema=0.99, schedule=Schedule("rsqrt", warmup=30, cooldown=40))
    twice = base.lasting(400)
    assert (twice.steps, twice.evaluate, twice.checkpoint) == (400, 100, 40)
    assert (twice.schedule.warmup, twice.schedule.cooldown, twice.schedule.timescale) == (60, 80, 20_000)
    assert twice.ema == pytest.approx(0.995)
    assert base.lasting(200) == replace(base, ema=base.lasting(200).ema)
    assert base.lasting(1).schedule.warmup == 0
    for steps in range(1, 60):  # never more evaluations than planned
        assert -(-steps // base.lasting(steps).evaluate) <= 4


def test_minutes_become_as_many_steps_as_fit() -> None:
    settings, timing = still(steps=100, evaluate=20), Pace(step=0.2, picture=0.01)
    steps = steps_in(2, settings, timing, validation=300, test=100)
    longer = settings.lasting(steps)
    assert 0.9 * 120 < timing.lasts(longer, steps, 300, 100) <= 120
    with pytest.raises(VitrailError, match=r"only 0 steps of this recipe fit into 0.1 minutes here; try --time-budget"):
        steps_in(0.1, settings, timing, 300, 100)
    for minutes in (-3, 0, math.inf, math.nan):
        with pytest.raises(VitrailError, match=r"minutes must be above 0 and finite, got .*; try 5"):
            Wishes(minutes=minutes)


def test_a_run_with_a_time_budget_records_its_steps_in_its_recipe_and_resumes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.train.loop.pace", lambda *_: Pace(step=0.1, picture=0.001))  # however busy the machine is
    autotune, callback = Wishes(minutes=0.1), Listens()
    settings = still(steps=30, evaluate=10, checkpoint=10)
    with pytest.raises(KeyboardInterrupt):
        fit(settings, tmp_path / "run", Machine(workers=0), BreaksLater(tmp_path / "run"), autotune)
    saved = noted(tmp_path / "run")
    assert saved == settings.lasting(saved.steps)
    fit(settings, tmp_path / "run", Machine(workers=0), callback, autotune)  # the same options, no second measurement
    assert any("resumed from step" in message for message in callback.sentences)
    assert callback.seconds is not None
    assert callback.seconds > 0
    fit(saved, tmp_path / "again", Machine(workers=0))  # the recipe alone reproduces the run bit for bit
    assert same(tmp_path / "run", tmp_path / "again")


def test_finding_the_learning_rate_changes_nothing_else(tmp_path: Path) -> None:
    settings, callback = still(steps=3, optim=Optim(kind="adamw", lr=1e-5), schedule=Schedule()), Listens()
    fit(settings, tmp_path / "run", Machine(workers=0), callback, Wishes(find_lr=True))
    lr_test = json.loads((tmp_path / "run" / "lr_range_test.json").read_text())
    lowest = lr_test["rates"][lr_test["losses"].index(min(lr_test["losses"]))]
    assert len(lr_test["rates"]) <= TESTED
    assert lr_test["lr"] == pytest.approx(lowest / 10, rel=0.1)
    assert lr_test["lr"] > 1e-5  # which is too small to learn anything
    assert all(math.isfinite(loss) for loss in lr_test["losses"])
    saved = noted(tmp_path / "run")
    ratio = lr_test["lr"] / settings.optim.lr
    optim = replace(settings.optim, lr=lr_test["lr"], matrix_lr=settings.optim.matrix_lr * ratio)
    assert saved == replace(settings, optim=optim)
    fit(saved, tmp_path / "again", Machine(workers=0))
    assert same(tmp_path / "run", tmp_path / "again")


def test_measuring_does_not_change_the_run(tmp_path: Path) -> None:
    callback = Listens()
    fit(recipe(), tmp_path / "measured", Machine(workers=0), callback)
    fit(recipe(), tmp_path / "silent", Machine(workers=0))
    assert callback.seconds is not None
    assert callback.seconds > 0
    assert same(tmp_path / "measured", tmp_path / "silent")
