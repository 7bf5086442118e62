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

from vitrail.augment.policy import get_policy
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.lab import time_budget, trials
from vitrail.lab.experiment import mean_and_ci
from vitrail.lab.time_budget import fit_to_budget
from vitrail.lab.trials import JobResult, TrainingJob, cached_result, run_jobs
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.models.masking_config import Masking
from vitrail.recipes.recipe import Optim, Recipe, Schedule
from vitrail.recipes.task_config import Classification, MaskedImage, TaskConfig
from vitrail.training.trainer import Hardware

DATA = "panes:train_size=60,size=16"
ROOT = Path(__file__).parents[2]
CHILD_SCRIPT = """
import json, sys
from pathlib import Path
from tests.lab.test_trials import make_job
from vitrail.lab import trials
trials.POLL_SECONDS = 0.05
stages = []
jobs = [make_job(**arguments) for arguments in json.loads(sys.argv[2])]
trials.run_jobs(Path(sys.argv[1]), jobs, progress=lambda stage, done, total: stages.append(stage))
print(sum(stage.startswith("steps") for stage in stages))
"""


def tiny_recipe(**changes: Any) -> Recipe:
    """Build a recipe whose steps take milliseconds."""
    model = ViTConfig(width=16, depth=1, mlp=24, heads=2, patch=(4, 8), image=(16, 16), classes=10)
    plain: dict[str, Any] = {
        "name": "tiny", "data": DATA, "model": model, "preprocess": Preprocess(model.image), "steps": 6, "batch_size": 5,
        "augment": get_policy("eval"), "schedule": Schedule(warmup_steps=2), "eval_every": 3, "checkpoint_every": 2,
    }  # fmt: skip
    return Recipe(**{**plain, **changes})


def make_job(arm: str = "plain", **changes: Any) -> TrainingJob:
    return TrainingJob({"arm": arm}, tiny_recipe(**changes))


def start_child(folder: Path, *arguments_of_jobs: dict[str, Any]) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-c", CHILD_SCRIPT, str(folder), json.dumps(arguments_of_jobs)]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_key_hashes_what_decides_the_result_and_nothing_else() -> None:
    plain = make_job()
    assert (
        plain.key
        == TrainingJob(
            {"arm": "another"}, replace(tiny_recipe(), name="other", micro_batch_size=2, activation_checkpointing=True)
        ).key
    )
    others = [
        make_job(seed=1),
        make_job(steps=7),
        make_job(data="fashion"),
        make_job(optim=Optim(lr=2e-3)),
        make_job(batch_size=6),
    ]
    assert len({plain.key, *(other.key for other in others)}) == 6


def test_a_second_call_trains_nothing_and_returns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run_jobs(tmp_path, [make_job(), make_job(seed=1)], measure=lambda run, _: {"there": (run / "best").is_dir()})
    assert [row.measurements for row in rows] == [{"there": True}] * 2
    monkeypatch.setattr(trials, "fit", None)
    again = run_jobs(tmp_path, [make_job(seed=1), make_job("name in another experiment")])
    assert asdict(again[0]) == asdict(rows[1])
    assert again[1] == replace(rows[0], condition={"arm": "name in another experiment"})


def test_a_result_counts_its_training_compute(tmp_path: Path) -> None:
    (row,) = run_jobs(tmp_path, [make_job()])
    assert row.flops == 6 * cost(tiny_recipe().model).macs * 6 * 5
    assert set(row.scores) == {"validation", "test"}
    assert row.seconds > 0


@pytest.mark.thorough
def test_a_killed_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    long: dict[str, Any] = {"steps": 80, "checkpoint_every": 10, "eval_every": 80}
    process = start_child(tmp_path / "broken", long)
    folder = tmp_path / "broken" / "runs" / make_job(**long).key / "checkpoints"
    until = time.monotonic() + 120
    while not list(folder.glob("step-*")) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert cached_result(tmp_path / "broken", make_job(**long)) is None
    steps: list[int] = []
    (resumed,) = run_jobs(tmp_path / "broken", [make_job(**long)], progress=lambda _, done, total: steps.append(done))
    assert 10 < steps[0] < 80
    assert steps[-1] == 80
    (unbroken,) = run_jobs(tmp_path / "whole", [make_job(**long)])
    assert resumed.scores == unbroken.scores


@pytest.mark.thorough
def test_two_processes_share_a_folder_and_no_step_is_run_twice(tmp_path: Path) -> None:
    arguments_of_jobs = [{"seed": seed, "steps": 40} for seed in range(4)]
    both = [start_child(tmp_path, *arguments_of_jobs), start_child(tmp_path, *arguments_of_jobs)]
    counts = [int(process.communicate(timeout=300)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(counts) == 4 * 40
    assert len(list((tmp_path / "rows").iterdir())) == 4


def test_a_time_budget_scales_all_runs_by_one_factor_that_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        time_budget,
        "measure_seconds",
        lambda recipe, machine, images: (0.05 * recipe.batch_size, 0.7 * recipe.batch_size + images),
    )
    jobs = [
        make_job(steps=200, schedule=Schedule(warmup_steps=20)),
        make_job(steps=600, batch_size=10),
        make_job(steps=200, seed=1),
    ]
    scaled = fit_to_budget(tmp_path, jobs, 4.0, measured_images=2)
    factor = scaled[1].recipe.steps / 600
    assert factor == pytest.approx(
        (time_budget.BUDGET_FRACTION * 240 - 2 * 3.5 - 7 - 3 * 2) / (0.25 * 200 + 0.5 * 600 + 0.25 * 200), rel=0.01
    )
    assert [each.recipe.steps for each in scaled] == [round(factor * 200), round(factor * 600), round(factor * 200)]
    assert scaled[0].recipe.schedule.warmup_steps == int(20 * scaled[0].recipe.steps / 200)

    fit_to_budget(tmp_path, jobs, 8.0)  # other budgets and other jobs are planned separately
    fit_to_budget(tmp_path, jobs[:1], 4.0)
    monkeypatch.setattr(time_budget, "measure_seconds", None)
    assert fit_to_budget(tmp_path, jobs[::-1], 4.0) == scaled[::-1]


def test_too_few_minutes_name_how_many_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "measure_seconds", lambda *_: (1.0, 60.0))
    with pytest.raises(VitrailError, match=r"allow 0 steps.*or --quick") as error:
        fit_to_budget(tmp_path, [make_job(steps=300), make_job(steps=200)], 0.2)
    enough = re.search(r"try --minutes (\d+)", str(error.value))
    assert enough is not None
    scaled = fit_to_budget(tmp_path, [make_job(steps=300), make_job(steps=200)], float(enough[1]))
    assert min(each.recipe.steps for each in scaled) >= time_budget.MIN_STEPS


@pytest.mark.parametrize("task", [Classification(), MaskedImage(Masking("masked-patch"))])
def test_evaluations_are_timed_besides_the_steps(task: TaskConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured by a clock that ticks at every reading: one tick for set-up, and one for an evaluation."""
    model = replace(tiny_recipe().model, classes=10 if task.labelled else 0)
    ticks = iter(range(1000))
    monkeypatch.setattr(time_budget, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(time_budget, "knn_seconds", lambda *_: 100.0)
    step, overhead = time_budget.measure_seconds(
        tiny_recipe(model=model, task=task, batch_size=64), Hardware("cpu", workers=0), measured_images=30
    )
    assert step > 0
    validation, test = (len(split) for split in (open_dataset(DATA).validation, open_dataset(DATA).test))
    per_image = 1 / validation
    assert overhead == pytest.approx(1 + 2 * (per_image * validation + (0 if task.labelled else 100)) + per_image * (test + 30))


def test_a_result_belongs_to_its_dataset_and_is_not_reused_for_other_images(tmp_path: Path) -> None:
    (row,) = run_jobs(tmp_path, [make_job()], fingerprint="abc")
    assert row.provenance == {"vitrail": version("vitrail"), "torch": torch.__version__, "data": "abc"}
    assert run_jobs(tmp_path, [make_job()], fingerprint="abc") == [row]
    with pytest.raises(VitrailError, match=r"other images than panes:train_size=60,size=16 has today; choose another folder"):
        run_jobs(tmp_path, [make_job()], fingerprint="abd")


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"condition": {}, "key": "x", "colour": 3}', "\x00"])
def test_a_damaged_result_is_reported_in_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows" / f"{make_job().key}.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(VitrailError, match=r"is damaged .*delete it"):
        run_jobs(tmp_path, [make_job()])


@pytest.mark.parametrize("content", ["{", "[1]", '{"4 minutes": {}}'])
def test_a_damaged_plan_is_reported_in_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(VitrailError, match=r"plan.json is damaged .*delete it"):
        fit_to_budget(tmp_path, [make_job()], 4.0)


def test_a_diverged_run_is_a_result_and_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverged = make_job(steps=40, optim=Optim(name="sgd", lr=1e30), schedule=Schedule("constant"))
    (row,) = run_jobs(tmp_path, [diverged])
    assert row.scores == {}
    assert row.failure is not None
    assert "consecutive steps were skipped" in row.failure
    assert row.seconds > 0
    assert str(tmp_path) not in row.failure
    monkeypatch.setattr(trials, "fit", None)
    assert run_jobs(tmp_path, [diverged]) == [row]


def test_a_user_error_is_not_a_result(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="there is no 'nowhere'"):
        run_jobs(tmp_path, [make_job(data="nowhere")])
    assert not list((tmp_path / "rows").iterdir())


def test_scores_that_are_not_finite_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "fit", lambda *_, **__: json.dumps(float("nan"), allow_nan=False))
    (row,) = run_jobs(tmp_path, [make_job()])
    assert row.failure == "its scores are not finite (NaN/Inf)"


def test_the_interval_of_a_mean_is_student_s() -> None:
    middle, half = mean_and_ci([0.2, 0.5, 0.8])
    assert middle == pytest.approx(0.5)
    assert half == pytest.approx(4.303 * 0.3 / 3**0.5)
    assert mean_and_ci([0.3]) == (0.3, None)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    row = JobResult({"arm": "plain"}, make_job().key, 6, 5, 1, 2, 0.5, {"test": {"top1": 0.25}}, {"some": [1, None]})
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / f"{row.key}.json").write_text(json.dumps(asdict(row)))
    assert cached_result(tmp_path, make_job()) == row
