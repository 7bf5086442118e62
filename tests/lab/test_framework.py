"""Trainings of an experiment are known by what decides them, done once, shared among processes, and fair to one another."""

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
told = []
done(Path(sys.argv[1]), [trial(**each) for each in json.loads(sys.argv[2])], progress=lambda what, at, of: told.append(what))
print(sum(what.startswith("steps") for what in told))
"""


def recipe(**changes: Any) -> Recipe:
    """A step takes milliseconds."""
    model = ViTConfig(width=16, depth=1, mlp=24, heads=2, patch=(4, 8), image=(16, 16), classes=10)
    plain: dict[str, Any] = {
        "name": "tiny", "data": DATA, "model": model, "preprocess": Preprocess(model.image), "steps": 6, "batch": 5,
        "augment": policy("plain"), "schedule": Schedule(warmup=2), "evaluate": 3, "checkpoint": 2,
    }  # fmt: skip
    return Recipe(**{**plain, **changes})


def trial(arm: str = "plain", **changes: Any) -> Trial:
    return Trial({"arm": arm}, recipe(**changes))


def child(folder: Path, *which: dict[str, Any]) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", CHILD, str(folder), json.dumps(which)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_hash_is_of_what_decides_the_result_and_of_nothing_else() -> None:
    plain = trial()
    assert plain.key == Trial({"arm": "another"}, replace(recipe(), name="other", micro=2, recompute=True)).key
    others = [trial(seed=1), trial(steps=7), trial(data="fashion"), trial(optim=Optim(lr=2e-3)), trial(batch=6)]
    assert len({plain.key, *(other.key for other in others)}) == 6


def test_a_second_look_trains_nothing_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = done(tmp_path, [trial(), trial(seed=1)], measure=lambda run, _: {"there": (run / "best").is_dir()})
    assert [row.measured for row in found] == [{"there": True}] * 2
    monkeypatch.setattr(trials, "fit", None)
    again = done(tmp_path, [trial(seed=1), trial("as another experiment calls it")])
    assert asdict(again[0]) == asdict(found[1])
    assert again[1] == replace(found[0], of={"arm": "as another experiment calls it"})


def test_a_row_counts_what_its_training_cost(tmp_path: Path) -> None:
    (row,) = done(tmp_path, [trial()])
    assert row.flops == 6 * cost(recipe().model).macs * 6 * 5
    assert set(row.scores) == {"validation", "test"}
    assert row.seconds > 0


def test_a_training_that_was_killed_goes_on_to_the_bit(tmp_path: Path) -> None:
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


def test_two_processes_share_a_folder_and_no_step_is_done_twice(tmp_path: Path) -> None:
    which = [{"seed": seed, "steps": 40} for seed in range(4)]
    both = [child(tmp_path, *which), child(tmp_path, *which)]
    counts = [int(process.communicate(timeout=300)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(counts) == 4 * 40
    assert len(list((tmp_path / "rows").iterdir())) == 4


def test_minutes_make_all_trainings_longer_by_one_factor_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "seconds", lambda recipe, machine, more: (0.05 * recipe.batch, 0.7 * recipe.batch + more))
    asked = [trial(steps=200, schedule=Schedule(warmup=20)), trial(steps=600, batch=10), trial(steps=200, seed=1)]
    found = within(tmp_path, asked, 4.0, looks=2)
    factor = found[1].recipe.steps / 600
    assert factor == pytest.approx((budget.KEPT * 240 - 2 * 3.5 - 7 - 3 * 2) / (0.25 * 200 + 0.5 * 600 + 0.25 * 200), rel=0.01)
    assert [each.recipe.steps for each in found] == [round(factor * 200), round(factor * 600), round(factor * 200)]
    assert found[0].recipe.schedule.warmup == int(20 * found[0].recipe.steps / 200)

    within(tmp_path, asked, 8.0)  # other minutes, and other trainings, are planned beside it
    within(tmp_path, asked[:1], 4.0)
    monkeypatch.setattr(budget, "seconds", None)
    assert within(tmp_path, asked[::-1], 4.0) == found[::-1]


def test_too_few_minutes_are_told_how_many_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "seconds", lambda recipe, machine, more: (1.0, 60.0))
    with pytest.raises(VitrailError, match=r"room for 0 steps.*or --quick") as said:
        within(tmp_path, [trial(steps=300), trial(steps=200)], 0.2)
    enough = re.search(r"try --minutes (\d+)", str(said.value))
    assert enough is not None
    found = within(tmp_path, [trial(steps=300), trial(steps=200)], float(enough[1]))
    assert min(each.recipe.steps for each in found) >= budget.LEAST


@pytest.mark.parametrize("masking", [None, Masking("masked-patch")])
def test_evaluations_are_timed_beside_the_steps(masking: Masking | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that counts how often it was looked at: a tick to be ready, and one for an evaluation."""
    model = replace(recipe().model, classes=0 if masking else 10)
    ticks = iter(range(1000))
    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(budget, "neighbours", lambda *_: 100.0)
    step, beside = budget.seconds(recipe(model=model, masking=masking, batch=64), Machine("cpu", workers=0), more=30)
    assert step > 0
    validation, test = (len(split) for split in (pictures(DATA).validation, pictures(DATA).test))
    look = 1 / validation
    assert beside == pytest.approx(1 + 2 * (look * validation + (100 if masking else 0)) + look * (test + 30))


def test_a_row_is_of_its_data_and_is_not_taken_for_that_of_other_pictures(tmp_path: Path) -> None:
    (row,) = done(tmp_path, [trial()], data="abc")
    assert row.made == {"vitrail": version("vitrail"), "torch": torch.__version__, "data": "abc"}
    assert done(tmp_path, [trial()], data="abc") == [row]
    with pytest.raises(VitrailError, match=r"other pictures than panes:count=60,size=16 holds today; name another folder"):
        done(tmp_path, [trial()], data="abd")


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"of": {}, "key": "x", "colour": 3}', "\x00"])
def test_a_damaged_row_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows" / f"{trial().key}.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(VitrailError, match=r"is damaged .*take it away"):
        done(tmp_path, [trial()])


@pytest.mark.parametrize("content", ["{", "[1]", '{"4 minutes": {}}'])
def test_a_damaged_plan_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(VitrailError, match=r"plan.json is damaged .*take it away"):
        within(tmp_path, [trial()], 4.0)


def test_a_training_that_bursts_is_a_row_and_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    burst = trial(steps=40, optim=Optim(kind="sgd", lr=1e30), schedule=Schedule("constant"))
    (row,) = done(tmp_path, [burst])
    assert row.scores == {}
    assert row.failed is not None
    assert "had to be skipped" in row.failed
    assert row.seconds > 0
    assert str(tmp_path) not in row.failed
    monkeypatch.setattr(trials, "fit", None)
    assert done(tmp_path, [burst]) == [row]


def test_what_is_wrong_with_what_was_asked_for_is_no_row(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="there is no 'nowhere'"):
        done(tmp_path, [trial(data="nowhere")])
    assert not list((tmp_path / "rows").iterdir())


def test_scores_that_are_no_numbers_are_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "fit", lambda *_: json.dumps(float("nan"), allow_nan=False))
    (row,) = done(tmp_path, [trial()])
    assert row.failed == "its scores are no numbers"


def test_the_interval_of_a_mean_is_students() -> None:
    middle, half = spread([0.2, 0.5, 0.8])
    assert middle == pytest.approx(0.5)
    assert half == pytest.approx(4.303 * 0.3 / 3**0.5)
    assert spread([0.3]) == (0.3, None)


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    row = Row({"arm": "plain"}, trial().key, 6, 5, 1, 2, 0.5, {"test": {"top1": 0.25}}, {"some": [1, None]})
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / f"{row.key}.json").write_text(json.dumps(asdict(row)))
    assert kept(tmp_path, trial()) == row
