"""A job that starts from another's weights runs after it, hashes both, and retrains weights that are gone."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.small_recipe import small_recipe, small_vit
from vitrail.lab.trials import JobResult, TrainingJob, cached_result, run_jobs, with_prerequisites
from vitrail.recipes.recipe import Optim
from vitrail.training.run import Run

OPTIONS = ExperimentOptions("panes:train_size=40,heldout_size=10,size=16", quick=True)


def job_pair(seed: int = 0, lr: float = 1e-3) -> tuple[TrainingJob, TrainingJob]:
    before = TrainingJob(
        {"arm": "before"},
        small_recipe(OPTIONS, small_vit(OPTIONS, width=8, depth=1, mlp=12, heads=2), seed, Optim(lr=lr)).with_steps(2),
    )
    return before, TrainingJob({"arm": "after"}, replace(before.recipe, keep_head=True), before)


def test_a_prerequisite_comes_once_and_first() -> None:
    before, after = job_pair()
    other = replace(after, condition={"arm": "other"}, recipe=replace(after.recipe, seed=5))
    assert [job.condition["arm"] for job in with_prerequisites([after, other])] == ["before", "after", "other"]
    assert [job.condition["arm"] for job in with_prerequisites([after, before])] == ["before", "after"]


def test_the_initial_weights_are_part_of_the_key() -> None:
    (_, one), (_, other) = job_pair(), job_pair(lr=2e-3)
    assert replace(one, recipe=other.recipe).key != other.key
    assert one.key != replace(one, init_from=None).key
    assert one.key != replace(one, reinit_prefix="positions.").key
    assert one.with_scaled_steps(2).init_from == job_pair()[0].with_scaled_steps(2)


def test_only_requested_results_are_returned(tmp_path: Path) -> None:
    before, after = job_pair()
    (row,) = run_jobs(tmp_path, [after])
    assert row.condition == {"arm": "after"}
    assert cached_result(tmp_path, before) is not None
    assert set(row.scores) == {"validation", "test"}


def test_deleted_weights_are_retrained_to_the_same_result(tmp_path: Path) -> None:
    _, after = job_pair()
    (first,) = run_jobs(tmp_path, [after])
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "rows" / f"{after.key}.json").unlink()
    (second,) = run_jobs(tmp_path, [after])
    assert second.scores == first.scores


def test_half_retrained_weights_are_finished_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first evaluation a run has best weights already, which are not yet those of the saved result."""
    before, after = job_pair()
    before = replace(before, recipe=replace(before.recipe.with_steps(4), eval_every=2, checkpoint_every=2))
    after = replace(after, init_from=before)
    (first,) = run_jobs(tmp_path, [after])
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "rows" / f"{after.key}.json").unlink()

    class Ended(Exception):
        pass

    def ended(_: object) -> None:
        raise Ended

    with monkeypatch.context() as patch:
        patch.setattr("vitrail.training.trainer.Trainer._result", ended)
        with pytest.raises(Ended):
            run_jobs(tmp_path, [after])
    assert (tmp_path / "runs" / before.key / "best").is_dir()
    (second,) = run_jobs(tmp_path, [after])
    assert Run(tmp_path / "runs" / before.key).result() is not None
    assert second.scores == first.scores


def test_reinitialised_weights_are_drawn_once_for_all_processes(tmp_path: Path) -> None:
    _, after = job_pair()
    new = replace(after, reinit_prefix="patches.")
    run_jobs(tmp_path, [new])
    kept_at = (tmp_path / "initial_weights" / new.key / "model.safetensors").stat().st_ino
    (tmp_path / "rows" / f"{new.key}.json").unlink()
    shutil.rmtree(tmp_path / "runs" / new.key)
    run_jobs(tmp_path, [new])
    assert (tmp_path / "initial_weights" / new.key / "model.safetensors").stat().st_ino == kept_at


def test_jobs_fail_whose_prerequisite_diverged(tmp_path: Path) -> None:
    before, after = job_pair()
    (tmp_path / "rows").mkdir()
    diverged = JobResult(before.condition, before.key, 2, 16, 1, 1, failure="10 consecutive steps were skipped")
    (tmp_path / "rows" / f"{before.key}.json").write_text(json.dumps(asdict(diverged)))
    (row,) = run_jobs(tmp_path, [after])
    assert row.failure == "the run of its initial weights diverged"
    assert row.scores == {}
