"""What is left to the machine is found out before the first step and then stands in the recipe."""

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

    def said(self, sentence: str) -> None:
        self.sentences.append(sentence)


class BreaksLater(Silent):
    """With the first step after a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        if list(self.folder.glob("checkpoints/step-*")):
            raise KeyboardInterrupt


def noted(folder: Path) -> Recipe:
    return from_json(Recipe, (folder / "recipe.json").read_text())


def test_a_recipe_lasts_longer_with_all_its_parts_in_proportion() -> None:
    whole = recipe(steps=200, evaluate=50, checkpoint=20, ema=0.99, schedule=Schedule("rsqrt", warmup=30, cooldown=40))
    twice = whole.lasting(400)
    assert (twice.steps, twice.evaluate, twice.checkpoint) == (400, 100, 40)
    assert (twice.schedule.warmup, twice.schedule.cooldown, twice.schedule.timescale) == (60, 80, 20_000)
    assert twice.ema == pytest.approx(0.995)
    assert whole.lasting(200) == replace(whole, ema=whole.lasting(200).ema)
    assert whole.lasting(1).schedule.warmup == 0
    for steps in range(1, 60):  # never more evaluations than were planned with
        assert -(-steps // whole.lasting(steps).evaluate) <= 4


def test_minutes_become_steps_that_fill_them() -> None:
    settings, pace = still(steps=100, evaluate=20), Pace(step=0.2, picture=0.01)
    steps = steps_in(2, settings, pace, validation=300, test=100)
    longer = settings.lasting(steps)
    assert 0.9 * 120 < pace.lasts(longer, steps, 300, 100) <= 120
    with pytest.raises(VitrailError, match=r"0.1 minutes are room for 0 steps of this recipe here; try --minutes"):
        steps_in(0.1, settings, pace, 300, 100)
    for minutes in (-3, 0, math.inf, math.nan):
        with pytest.raises(VitrailError, match=r"minutes must be above 0 and have an end, got .*; try 5"):
            Wishes(minutes=minutes)


def test_a_run_of_some_minutes_has_its_steps_in_its_recipe_and_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.train.loop.pace", lambda *_: Pace(step=0.1, picture=0.001))  # on however busy a machine
    wishes, watcher = Wishes(minutes=0.1), Listens()
    settings = still(steps=30, evaluate=10, checkpoint=10)
    with pytest.raises(KeyboardInterrupt):
        fit(settings, tmp_path / "run", Machine(workers=0), BreaksLater(tmp_path / "run"), wishes)
    found = noted(tmp_path / "run")
    assert found == settings.lasting(found.steps)
    fit(settings, tmp_path / "run", Machine(workers=0), watcher, wishes)  # the same wish, no second probe
    assert any("goes on from step" in sentence for sentence in watcher.sentences)
    assert watcher.seconds is not None
    assert watcher.seconds > 0
    fit(found, tmp_path / "again", Machine(workers=0))  # the recipe alone does it again, to the bit
    assert same(tmp_path / "run", tmp_path / "again")


def test_finding_the_learning_rate_changes_nothing_but_it(tmp_path: Path) -> None:
    settings, watcher = still(steps=3, optim=Optim(kind="adamw", lr=1e-5), schedule=Schedule()), Listens()
    fit(settings, tmp_path / "run", Machine(workers=0), watcher, Wishes(find_lr=True))
    tried = json.loads((tmp_path / "run" / "lr.json").read_text())
    lowest = tried["rates"][tried["losses"].index(min(tried["losses"]))]
    assert len(tried["rates"]) <= TESTED
    assert tried["lr"] == pytest.approx(lowest / 10, rel=0.1)
    assert tried["lr"] > 1e-5  # with which next to nothing is learnt
    assert all(math.isfinite(loss) for loss in tried["losses"])
    found = noted(tmp_path / "run")
    times = tried["lr"] / settings.optim.lr
    optim = replace(settings.optim, lr=tried["lr"], matrix_lr=settings.optim.matrix_lr * times)
    assert found == replace(settings, optim=optim)
    fit(found, tmp_path / "again", Machine(workers=0))
    assert same(tmp_path / "run", tmp_path / "again")


def test_the_probe_leaves_no_trace_in_the_run(tmp_path: Path) -> None:
    watcher = Listens()
    fit(recipe(), tmp_path / "told", Machine(workers=0), watcher)
    fit(recipe(), tmp_path / "silent", Machine(workers=0))
    assert watcher.seconds is not None
    assert watcher.seconds > 0
    assert same(tmp_path / "told", tmp_path / "silent")
