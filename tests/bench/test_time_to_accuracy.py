"""Time to accuracy: both train for the demo's time, and the shortest of our runs that reaches the accuracy counts."""

import json
from dataclasses import asdict, replace
from fractions import Fraction

import pytest

from tests.reference_libraries import reference_library
from tests.tiers import quick_first
from vitrail.bench import time_to_accuracy as bench
from vitrail.bench.time_to_accuracy import PEER_LRS, TimeToAccuracy, benchmark_time_to_accuracy
from vitrail.cli.main import run
from vitrail.data.sources.open import open_dataset
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.demo import demo
from vitrail.recipes.recipe import Recipe
from vitrail.training.schedule import lr_multiplier


def is_consistent(speed: TimeToAccuracy) -> bool:
    """Return whether the numbers are consistent."""
    ours, theirs = speed.seconds_per_step["ours"], speed.seconds_per_step["peer"]
    reached = [each for each in speed.ours if each.accuracy >= speed.accuracy]
    return (
        [each.lr for each in speed.peer] == list(PEER_LRS)
        and speed.accuracy == max(each.accuracy for each in speed.peer)
        and all(each.seconds == pytest.approx(each.steps * theirs) for each in speed.peer)
        and all(abs(each.seconds - speed.peer_seconds) <= theirs for each in speed.peer)  # to the step
        and all(each.seconds == pytest.approx(each.steps * ours) for each in speed.ours)
        and [each.seconds for each in reached] == ([] if speed.ratio is None else [speed.ours_seconds])
        and (speed.ratio is None or speed.ratio == pytest.approx(speed.ours[-1].seconds / speed.peer_seconds))
    )


def test_a_shorter_run_is_the_same_recipe_scaled_in_time() -> None:
    whole = demo(RecipeContext())
    half = whole.with_steps(whole.steps // 2)
    for step in range(0, half.steps, 50):
        assert lr_multiplier(half.schedule, step, half.steps) == pytest.approx(
            lr_multiplier(whole.schedule, 2 * step, whole.steps), abs=0.02
        )
    assert whole.ema_decay is not None
    assert half.ema_decay == pytest.approx(2 * whole.ema_decay - 1)  # it forgets twice as fast
    same = half.with_steps(whole.steps)
    assert same.ema_decay == pytest.approx(whole.ema_decay)
    assert replace(same, ema_decay=whole.ema_decay) == whole


@pytest.mark.thorough
@pytest.mark.parity
def test_it_runs_and_its_numbers_are_consistent(monkeypatch: pytest.MonkeyPatch) -> None:
    reference_library("timm")
    monkeypatch.setattr(bench, "STEPS_PER_TURN", 2)
    small = open_dataset("fashion:train_size=300,heldout_size=100")
    monkeypatch.setattr(bench, "open_dataset", lambda *_, **__: small)
    stages: set[str] = set()
    speed = benchmark_time_to_accuracy(steps=4, rounds=1, progress=lambda what, done, total: stages.add(what))
    assert is_consistent(speed)
    assert [each.steps for each in speed.ours][:1] == [1]
    assert {"measuring", "timm, lr 0.001", "ours, 1 steps"} <= stages


@pytest.mark.parametrize(
    ("bar", "steps", "ratio"),
    quick_first([(0.6, [475, 633, 950], 1 / 2), (0.2, [475], 1 / 4), (1.0, [475, 633, 950, 1266, 1900], None)]),
)
def test_the_shortest_run_that_is_as_good_counts(
    bar: float, steps: list[int], ratio: float | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training is left out: our accuracy is the fraction of the steps, the peer's is the bar."""

    def ours(recipe: Recipe) -> float:
        return 1.2 * recipe.steps / 1900 if recipe.steps < 1900 else 0.99

    monkeypatch.setattr(bench, "_peer", lambda *_: bar)
    monkeypatch.setattr(bench, "_ours", ours)
    monkeypatch.setattr(bench, "_train", lambda *_: None)
    monkeypatch.setattr(bench, "evaluate_accuracy", lambda rival, *_: rival)
    monkeypatch.setattr(bench, "_seconds_per_step", lambda *_: {"ours": 0.07, "peer": 0.05})
    speed = benchmark_time_to_accuracy()
    assert is_consistent(speed)
    assert [each.steps for each in speed.ours] == steps
    assert speed.peer_seconds == pytest.approx(1900 * 0.07)
    assert speed.ratio == (None if ratio is None else pytest.approx(ratio, abs=1e-3))
    assert run(["bench", "time-to-accuracy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == asdict(speed)
    assert run(["bench", "time-to-accuracy"]) == 0
    output = capsys.readouterr().out
    assert ("ours does not reach 100.00% in 133.0 s" if ratio is None else f"{ratio:.2f} of the time") in output


def test_the_fractions_begin_with_the_shortest_and_end_with_all() -> None:
    assert list(bench.STEP_FRACTIONS) == sorted(bench.STEP_FRACTIONS)
    assert bench.STEP_FRACTIONS[-1] == Fraction(1)


def test_without_timm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(_: object) -> None:
        raise ImportError

    monkeypatch.setattr(bench, "timm_vit", missing)
    assert run(["bench", "time-to-accuracy", "--steps", "1", "--rounds", "1"]) == 2
    assert "bench time-to-accuracy compares with timm; try pip install -c constraints.txt timm" in capsys.readouterr().err
