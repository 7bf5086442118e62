"""Automatically tuned values are fixed before the first step and written to the recipe."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.small_run import deterministic_recipe, recipe
from tests.training.test_loop import same
from vitrail.config import from_json
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Optim, Recipe, Schedule, override_recipe
from vitrail.training.autotune import RANGE_TEST_STEPS, AutoTune, StepTiming, recipe_for_minutes
from vitrail.training.callbacks import Callback
from vitrail.training.trainer import Hardware, fit


class MessageRecorder(Callback):
    wants_eta = True

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.eta_seconds: float | None = None

    def on_start(self, recipe, data, state, eta_seconds):  # type: ignore[no-untyped-def]
        self.eta_seconds = eta_seconds

    def on_message(self, message: str) -> None:
        self.messages.append(message)


class InterruptsAfterCheckpoint(Callback):
    """Interrupts the run at the first step after a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        if list(self.folder.glob("checkpoints/step-*")):
            raise KeyboardInterrupt


def saved_recipe(folder: Path) -> Recipe:
    return from_json(Recipe, (folder / "recipe.json").read_text())


def test_a_recipe_with_more_steps_scales_its_schedule_and_intervals() -> None:
    base = recipe(
        steps=200,
        eval_every=50,
        checkpoint_every=20,
        ema_decay=0.99,
        schedule=Schedule("rsqrt", warmup_steps=30, cooldown_steps=40),
    )
    twice = base.with_steps(400)
    assert (twice.steps, twice.eval_every, twice.checkpoint_every) == (400, 100, 40)
    assert (twice.schedule.warmup_steps, twice.schedule.cooldown_steps, twice.schedule.rsqrt_timescale) == (60, 80, 20_000)
    assert twice.ema_decay == pytest.approx(0.995)
    assert base.with_steps(200) == replace(base, ema_decay=base.with_steps(200).ema_decay)
    assert base.with_steps(1).schedule.warmup_steps == 0
    for steps in range(1, 60):  # never more evaluations than planned
        assert -(-steps // base.with_steps(steps).eval_every) <= 4


def test_minutes_become_as_many_steps_as_fit() -> None:
    settings, timing = deterministic_recipe(steps=100, eval_every=20), StepTiming(step=0.2, image=0.01)
    longer = recipe_for_minutes(2, settings, timing, num_val=300, num_test=100)
    assert longer == settings.with_steps(longer.steps)
    assert 0.9 * 120 < timing.duration(longer, longer.steps, 300, 100) <= 120
    measured = recipe_for_minutes(2, settings, timing, 300, 100, elapsed=60)  # measuring took half of the budget
    assert 0.85 * 60 < timing.duration(measured, measured.steps, 300, 100) <= 60


@pytest.mark.parametrize("minutes", [0.001, 0.1, 0.2, 0.5, 1])
def test_a_budget_of_any_size_trains_and_evaluates_at_the_end(minutes: float) -> None:
    settings, timing = deterministic_recipe(steps=1000, eval_every=50), StepTiming(step=0.5, image=0.01, overhead=0.5)
    shortened = recipe_for_minutes(minutes, settings, timing, num_val=300, num_test=100)
    seconds = timing.duration(shortened, shortened.steps, 300, 100)
    assert shortened.steps >= 1
    assert shortened.steps == 1 or 0.75 * 60 * minutes < seconds <= 60 * minutes
    evaluations = -(-shortened.steps // shortened.eval_every)
    assert (evaluations - 1) * 3.5 <= 0.2 * 60 * minutes  # evaluations during training take at most a fifth of the time


def test_minutes_must_be_positive_and_finite() -> None:
    for minutes in (-3, 0, math.inf, math.nan):
        with pytest.raises(VitrailError, match=r"minutes must be above 0 and finite, got .*; try minutes=5"):
            AutoTune(minutes=minutes)


def test_a_run_with_a_time_budget_records_its_steps_in_its_recipe_and_resumes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vitrail.training.autotune.measure_timing", lambda *_: StepTiming(step=1.0, image=0.001)
    )  # however busy the machine is
    autotune, callback = AutoTune(minutes=0.4), MessageRecorder()
    settings = deterministic_recipe(steps=30, eval_every=10, checkpoint_every=10)
    with pytest.raises(KeyboardInterrupt):
        fit(
            settings,
            tmp_path / "run",
            hardware=Hardware(workers=0),
            callbacks=[InterruptsAfterCheckpoint(tmp_path / "run")],
            autotune=autotune,
        )
    saved = saved_recipe(tmp_path / "run")
    assert saved == settings.with_steps(saved.steps)
    fit(
        settings, tmp_path / "run", hardware=Hardware(workers=0), callbacks=[callback], autotune=autotune
    )  # the same options, no second measurement
    assert any("resumed from step" in message for message in callback.messages)
    assert callback.eta_seconds is not None
    assert callback.eta_seconds > 0
    fit(saved, tmp_path / "again", hardware=Hardware(workers=0))  # the recipe alone reproduces the run bit for bit
    assert same(tmp_path / "run", tmp_path / "again")


def test_a_machine_slower_than_measured_still_stops_on_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.autotune.measure_timing", lambda *_: StepTiming(step=1e-5, image=0.0))
    callback = MessageRecorder()
    result = fit(
        deterministic_recipe(steps=10, eval_every=5),
        tmp_path / "run",
        hardware=Hardware(workers=0),
        callbacks=[callback],
        autotune=AutoTune(minutes=0.03),
    ).result
    planned = saved_recipe(tmp_path / "run").steps
    assert planned > 10_000
    assert 0 < result["steps"] < planned
    assert any(f"the time budget ends at step {result['steps']:,} of {planned:,}" in message for message in callback.messages)
    assert result["best"]["step"] == result["steps"]  # evaluated where it stopped
    assert (tmp_path / "run" / "result.json").is_file()


def test_a_shortened_run_evaluates_and_saves_at_most_every_tenth_step() -> None:
    base = recipe(steps=1000, eval_every=50, checkpoint_every=20)
    assert (base.with_steps(23).eval_every, base.with_steps(23).checkpoint_every) == (10, 10)
    assert (base.with_steps(4).eval_every, base.with_steps(4).checkpoint_every) == (4, 4)


def test_fewer_steps_shorten_the_warm_up_with_a_note() -> None:
    base = recipe(steps=200, schedule=Schedule("rsqrt", warmup_steps=100, cooldown_steps=40))
    shortened, notes = override_recipe(base, ["steps=20"])
    assert (shortened.steps, shortened.schedule.warmup_steps, shortened.schedule.cooldown_steps) == (20, 2, 10)
    assert notes == ["the warm-up is shortened from 100 steps to 2, to fit into 20 steps"]
    assert override_recipe(base, ["steps=150"]) == (replace(base, steps=150), [])
    with pytest.raises(VitrailError, match=r"schedule.warmup_steps and cooldown_steps must fit into 20 steps"):
        override_recipe(base, ["steps=20", "schedule.warmup_steps=30"])


def test_finding_the_learning_rate_changes_nothing_else(tmp_path: Path) -> None:
    settings, callback = (
        deterministic_recipe(steps=3, optim=Optim(name="adamw", lr=1e-5), schedule=Schedule()),
        MessageRecorder(),
    )
    fit(settings, tmp_path / "run", hardware=Hardware(workers=0), callbacks=[callback], autotune=AutoTune(find_lr=True))
    lr_test = json.loads((tmp_path / "run" / "lr_range_test.json").read_text())
    lowest = lr_test["rates"][lr_test["losses"].index(min(lr_test["losses"]))]
    assert len(lr_test["rates"]) <= RANGE_TEST_STEPS
    assert lr_test["lr"] == pytest.approx(lowest / 10, rel=0.1)
    assert lr_test["lr"] > 1e-5  # which is too small to learn anything
    assert all(math.isfinite(loss) for loss in lr_test["losses"])
    saved = saved_recipe(tmp_path / "run")
    ratio = lr_test["lr"] / settings.optim.lr
    optim = replace(settings.optim, lr=lr_test["lr"], muon_lr=settings.optim.muon_lr * ratio)
    assert saved == replace(settings, optim=optim)
    fit(saved, tmp_path / "again", hardware=Hardware(workers=0))
    assert same(tmp_path / "run", tmp_path / "again")


def test_measuring_does_not_change_the_run(tmp_path: Path) -> None:
    callback = MessageRecorder()
    fit(recipe(), tmp_path / "measured", hardware=Hardware(workers=0), callbacks=[callback])
    fit(recipe(), tmp_path / "silent", hardware=Hardware(workers=0))
    assert callback.eta_seconds is not None
    assert callback.eta_seconds > 0
    assert same(tmp_path / "measured", tmp_path / "silent")
