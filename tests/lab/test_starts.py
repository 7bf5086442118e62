"""A training that begins with another's weights: done behind it, known by both, and done anew where they are gone."""

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

ASKED = Asked("panes:count=40,held=10,size=16", quick=True)


def pair(seed: int = 0, lr: float = 1e-3) -> tuple[Trial, Trial]:
    before = Trial(
        {"arm": "before"}, recipe(ASKED, vit(ASKED, width=8, depth=1, mlp=12, heads=2), seed, Optim(lr=lr)).lasting(2)
    )
    return before, Trial({"arm": "after"}, replace(before.recipe, keep_head=True), before)


def test_a_start_comes_once_and_first() -> None:
    before, after = pair()
    other = replace(after, of={"arm": "other"}, recipe=replace(after.recipe, seed=5))
    assert [trial.of["arm"] for trial in with_starts([after, other])] == ["before", "after", "other"]
    assert [trial.of["arm"] for trial in with_starts([after, before])] == ["before", "after"]


def test_what_it_begins_with_is_part_of_what_it_is() -> None:
    (_, one), (_, other) = pair(), pair(lr=2e-3)
    assert replace(one, recipe=other.recipe).key != other.key
    assert one.key != replace(one, after=None).key
    assert one.key != replace(one, anew="positions.").key
    assert one.lasting(2).after == pair()[0].lasting(2)


def test_only_rows_that_were_asked_for_come_back(tmp_path: Path) -> None:
    before, after = pair()
    (row,) = done(tmp_path, [after])
    assert row.of == {"arm": "after"}
    assert kept(tmp_path, before) is not None
    assert set(row.scores) == {"validation", "test"}


def test_weights_that_are_gone_are_made_anew_and_come_out_the_same(tmp_path: Path) -> None:
    _, after = pair()
    (first,) = done(tmp_path, [after])
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "rows" / f"{after.key}.json").unlink()
    (second,) = done(tmp_path, [after])
    assert second.scores == first.scores


def test_weights_that_are_half_made_anew_are_finished_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended after its first look, a run has best weights already, which are not yet what the row tells of."""
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


def test_weights_drawn_anew_are_drawn_once_for_all_processes(tmp_path: Path) -> None:
    _, after = pair()
    new = replace(after, anew="patches.")
    done(tmp_path, [new])
    kept_at = (tmp_path / "starts" / new.key / "model.safetensors").stat().st_ino
    (tmp_path / "rows" / f"{new.key}.json").unlink()
    shutil.rmtree(tmp_path / "runs" / new.key)
    done(tmp_path, [new])
    assert (tmp_path / "starts" / new.key / "model.safetensors").stat().st_ino == kept_at


def test_a_start_that_has_burst_takes_its_followers_with_it(tmp_path: Path) -> None:
    before, after = pair()
    (tmp_path / "rows").mkdir()
    burst = Row(before.of, before.key, 2, 16, 1, 1, failed="10 steps in a row had to be skipped")
    (tmp_path / "rows" / f"{before.key}.json").write_text(json.dumps(asdict(burst)))
    (row,) = done(tmp_path, [after])
    assert row.failed == "what it begins with has diverged"
    assert row.scores == {}
