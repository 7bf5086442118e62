"""Training jobs are identified by what decides their result, run once, shared among processes, and scaled fairly."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vitrail.augment.policy import policy
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import pictures
from vitrail.errors import VitrailError
from vitrail.lab import budget
from vitrail.lab import trial as trials
from vitrail.lab.budget import within
from vitrail.lab.experiment import spread
from vitrail.lab.trial import Row, Trial, done, kept
from vitrail.models.cost import cost
from vitrail.models.masking import Masking
from vitrail.models.settings import ViTConfig
from vitrail.train.loop import Machine
from vitrail.train.recipe import Optim, Recipe, Schedule

DATA = "panes:count=60,size=16"
ROOT = Path(__file__).parents[2]
CHILD = """
import json, sys
from pathlib import Path
from tests.lab.test_framework import trial
from vitrail.lab.trial import done
result = []
done(Path(sys.argv[1]), [trial(**each) for each in json.loads(sys.argv[2])], progress=lambda what, at, of: result.append(what))
print(sum(what.startswith("steps") for what in result))
"""


def recipe(**changes: Any) -> Recipe:
    """Build a recipe whose steps take milliseconds."""
    model = ViTConfig(width=16, depth=1, mlp=24, heads=2, patch=(4, 8), image=(16, 16), classes=10)
    plain: dict[str, Any] = {
        "name": "tiny", "data": DATA, "model": model, "preprocess": Preprocess(model.image), "steps": 6, "batch": 5,
        "augment": policy("eval"), "schedule": Schedule(warmup=2), "evaluate": 3, "checkpoint": 2,
    }  # fmt: skip
    return Recipe(**{**plain, **changes})


def trial(arm: str = "plain", **changes: Any) -> Trial:
    return Trial({"arm": arm}, recipe(**changes))


def child(folder: Path, *which: dict[str, Any]) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", CHILD, str(folder), json.dumps(which)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_key_hashes_what_decides_the_result_and_nothing_else() -> None:
    plain = trial()
    assert plain.key == Trial({"arm": "another"}, replace(recipe(), name="other", micro=2, recompute=True)).key
    others = [trial(seed=1), trial(steps=7), trial(data="fashion"), trial(optim=Optim(lr=2e-3)), trial(batch=6)]
    assert len({plain.key, *(other.key for other in others)}) == 6


def test_a_second_call_trains_nothing_and_returns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = done(tmp_path, [trial(), trial(seed=1)], measure=lambda run, _: {"there": (run / "best").is_dir()})
    assert [row.measured for row in found] == [{"there": True}] * 2
    monkeypatch.setattr(trials, "fit", None)
    again = done(tmp_path, [trial(seed=1), trial("name in another experiment")])
    assert asdict(again[0]) == asdict(found[1])
    assert again[1] == replace(found[0], of={"arm": "name in another experiment"})


def test_a_result_counts_its_training_compute(tmp_path: Path) -> None:
    (row,) = done(tmp_path, [trial()])
    assert row.flops == 6 * cost(recipe().model).macs * 6 * 5
    assert set(row.scores) == {"validation", "test"}
    assert row.seconds > 0


def test_a_killed_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    long: dict[str, Any] = {"steps": 80, "checkpoint": 10, "evaluate": 80}
    process = child(tmp_path / "broken", long)
    folder = tmp_path / "broken" / "runs" / trial(**long).key / "checkpoints"
    until = time.monotonic() + 120
    while not list(folder.glob("step-*")) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert kept(tmp_path / "broken", trial(**long)) is None
    steps: list[int] = []
    (resumed,) = done(tmp_path / "broken", [trial(**long)], progress=lambda _, at, of: steps.append(at))
    assert 10 < steps[0] < 80
    assert steps[-1] == 80
    (unbroken,) = done(tmp_path / "whole", [trial(**long)])
    assert resumed.scores == unbroken.scores


def test_two_processes_share_a_folder_and_no_step_is_run_twice(tmp_path: Path) -> None:
    which = [{"seed": seed, "steps": 40} for seed in range(4)]
    both = [child(tmp_path, *which), child(tmp_path, *which)]
    counts = [int(process.communicate(timeout=300)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(counts) == 4 * 40
    assert len(list((tmp_path / "rows").iterdir())) == 4


def test_a_time_budget_scales_all_runs_by_one_factor_that_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "seconds", lambda recipe, machine, more: (0.05 * recipe.batch, 0.7 * recipe.batch + more))
    options = [trial(steps=200, schedule=Schedule(warmup=20)), trial(steps=600, batch=10), trial(steps=200, seed=1)]
    found = within(tmp_path, options, 4.0, looks=2)
    factor = found[1].recipe.steps / 600
    assert factor == pytest.approx((budget.KEPT * 240 - 2 * 3.5 - 7 - 3 * 2) / (0.25 * 200 + 0.5 * 600 + 0.25 * 200), rel=0.01)
    assert [each.recipe.steps for each in found] == [round(factor * 200), round(factor * 600), round(factor * 200)]
    assert found[0].recipe.schedule.warmup == int(20 * found[0].recipe.steps / 200)

    within(tmp_path, options, 8.0)  # other budgets and other jobs are planned separately
    within(tmp_path, options[:1], 4.0)
    monkeypatch.setattr(budget, "seconds", None)
    assert within(tmp_path, options[::-1], 4.0) == found[::-1]


def test_too_few_minutes_name_how_many_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "seconds", lambda recipe, machine, more: (1.0, 60.0))
    with pytest.raises(VitrailError, match=r"allow 0 steps.*or --quick") as said:
        within(tmp_path, [trial(steps=300), trial(steps=200)], 0.2)
    enough = re.search(r"try --minutes (\d+)", str(said.value))
    assert enough is not None
    found = within(tmp_path, [trial(steps=300), trial(steps=200)], float(enough[1]))
    assert min(each.recipe.steps for each in found) >= budget.LEAST


@pytest.mark.parametrize("masking", [None, Masking("masked-patch")])
def test_evaluations_are_timed_besides_the_steps(masking: Masking | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured by a clock that ticks at every reading: one tick for set-up, and one for an evaluation."""
    model = replace(recipe().model, classes=0 if masking else 10)
    ticks = iter(range(1000))
    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(budget, "neighbours", lambda *_: 100.0)
    step, beside = budget.seconds(recipe(model=model, masking=masking, batch=64), Machine("cpu", workers=0), more=30)
    assert step > 0
    validation, test = (len(split) for split in (pictures(DATA).validation, pictures(DATA).test))
    look = 1 / validation
    assert beside == pytest.approx(1 + 2 * (look * validation + (100 if masking else 0)) + look * (test + 30))


def test_a_result_belongs_to_its_dataset_and_is_not_reused_for_other_images(tmp_path: Path) -> None:
    (row,) = done(tmp_path, [trial()], data="abc")
    assert row.made == {"vitrail": version("vitrail"), "torch": torch.__version__, "data": "abc"}
    assert done(tmp_path, [trial()], data="abc") == [row]
    with pytest.raises(VitrailError, match=r"other images than panes:count=60,size=16 has today; choose another folder"):
        done(tmp_path, [trial()], data="abd")


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"of": {}, "key": "x", "colour": 3}', "\x00"])
def test_a_damaged_result_is_reported_in_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows" / f"{trial().key}.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(VitrailError, match=r"is damaged .*delete it"):
        done(tmp_path, [trial()])


@pytest.mark.parametrize("content", ["{", "[1]", '{"4 minutes": {}}'])
def test_a_damaged_plan_is_reported_in_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(VitrailError, match=r"plan.json is damaged .*delete it"):
        within(tmp_path, [trial()], 4.0)


def test_a_diverged_run_is_a_result_and_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverged = trial(steps=40, optim=Optim(kind="sgd", lr=1e30), schedule=Schedule("constant"))
    (row,) = done(tmp_path, [diverged])
    assert row.scores == {}
    assert row.failed is not None
    assert "consecutive steps were skipped" in row.failed
    assert row.seconds > 0
    assert str(tmp_path) not in row.failed
    monkeypatch.setattr(trials, "fit", None)
    assert done(tmp_path, [diverged]) == [row]


def test_a_user_error_is_not_a_result(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="there is no 'nowhere'"):
        done(tmp_path, [trial(data="nowhere")])
    assert not list((tmp_path / "rows").iterdir())


def test_scores_that_are_not_finite_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "fit", lambda *_: json.dumps(float("nan"), allow_nan=False))
    (row,) = done(tmp_path, [trial()])
    assert row.failed == "its scores are not finite (NaN/Inf)"


def test_the_interval_of_a_mean_is_student_s() -> None:
    middle, half = spread([0.2, 0.5, 0.8])
    assert middle == pytest.approx(0.5)
    assert half == pytest.approx(4.303 * 0.3 / 3**0.5)
    assert spread([0.3]) == (0.3, None)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    row = Row({"arm": "plain"}, trial().key, 6, 5, 1, 2, 0.5, {"test": {"top1": 0.25}}, {"some": [1, None]})
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / f"{row.key}.json").write_text(json.dumps(asdict(row)))
    assert kept(tmp_path, trial()) == row
