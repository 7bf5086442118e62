"""A job that starts from another's weights runs after it, hashes both, and retrains weights that are gone."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from vitrail.lab.base import recipe, vit
from vitrail.lab.experiment import Asked
from vitrail.lab.trial import Row, Trial, done, kept, with_starts
from vitrail.train.recipe import Optim
from vitrail.train.run import Run

OPTIONS = Asked("panes:count=40,held=10,size=16", quick=True)


def pair(seed: int = 0, lr: float = 1e-3) -> tuple[Trial, Trial]:
    before = Trial(
        {"arm": "before"}, recipe(OPTIONS, vit(OPTIONS, width=8, depth=1, mlp=12, heads=2), seed, Optim(lr=lr)).lasting(2)
    )
    return before, Trial({"arm": "after"}, replace(before.recipe, keep_head=True), before)


def test_a_prerequisite_comes_once_and_first() -> None:
    before, after = pair()
    other = replace(after, of={"arm": "other"}, recipe=replace(after.recipe, seed=5))
    assert [job.of["arm"] for job in with_starts([after, other])] == ["before", "after", "other"]
    assert [job.of["arm"] for job in with_starts([after, before])] == ["before", "after"]


def test_the_initial_weights_are_part_of_the_key() -> None:
    (_, one), (_, other) = pair(), pair(lr=2e-3)
    assert replace(one, recipe=other.recipe).key != other.key
    assert one.key != replace(one, after=None).key
    assert one.key != replace(one, anew="positions.").key
    assert one.lasting(2).after == pair()[0].lasting(2)


def test_only_requested_results_are_returned(tmp_path: Path) -> None:
    before, after = pair()
    (row,) = done(tmp_path, [after])
    assert row.of == {"arm": "after"}
    assert kept(tmp_path, before) is not None
    assert set(row.scores) == {"validation", "test"}


def test_deleted_weights_are_retrained_to_the_same_result(tmp_path: Path) -> None:
    _, after = pair()
    (first,) = done(tmp_path, [after])
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "rows" / f"{after.key}.json").unlink()
    (second,) = done(tmp_path, [after])
    assert second.scores == first.scores


def test_half_retrained_weights_are_finished_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first evaluation a run has best weights already, which are not yet those of the saved result."""
    before, after = pair()
    before = replace(before, recipe=replace(before.recipe.lasting(4), evaluate=2, checkpoint=2))
    after = replace(after, after=before)
    (first,) = done(tmp_path, [after])
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "rows" / f"{after.key}.json").unlink()

    class Ended(Exception):
        pass

    def ended(_: object) -> None:
        raise Ended

    with monkeypatch.context() as patch:
        patch.setattr("vitrail.train.loop._Fit._result", ended)
        with pytest.raises(Ended):
            done(tmp_path, [after])
    assert (tmp_path / "runs" / before.key / "best").is_dir()
    (second,) = done(tmp_path, [after])
    assert Run(tmp_path / "runs" / before.key).result() is not None
    assert second.scores == first.scores


def test_reinitialised_weights_are_drawn_once_for_all_processes(tmp_path: Path) -> None:
    _, after = pair()
    new = replace(after, anew="patches.")
    done(tmp_path, [new])
    kept_at = (tmp_path / "initial_weights" / new.key / "model.safetensors").stat().st_ino
    (tmp_path / "rows" / f"{new.key}.json").unlink()
    shutil.rmtree(tmp_path / "runs" / new.key)
    done(tmp_path, [new])
    assert (tmp_path / "initial_weights" / new.key / "model.safetensors").stat().st_ino == kept_at


def test_jobs_fail_whose_prerequisite_diverged(tmp_path: Path) -> None:
    before, after = pair()
    (tmp_path / "rows").mkdir()
    diverged = Row(before.of, before.key, 2, 16, 1, 1, failed="10 consecutive steps were skipped")
    (tmp_path / "rows" / f"{before.key}.json").write_text(json.dumps(asdict(diverged)))
    (row,) = done(tmp_path, [after])
    assert row.failed == "the run of its initial weights diverged"
    assert row.scores == {}
