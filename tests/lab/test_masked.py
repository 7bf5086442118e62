"""The experiment compares what it says it compares."""

import json

import numpy as np
import pytest

from vitrail.cli.main import run
from vitrail.data.sources.open import pictures
from vitrail.errors import VitrailError
from vitrail.lab.masked import METHODS, NOTHING, SUPERVISED, Length, _drawn, _half, _of, masked_lab

SHORT = Length(pretrain=2, finetune=2, batch=8, few=8)


def test_every_start_gets_the_same_budget_and_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of everything: the arms, their number and their bookkeeping."""
    monkeypatch.setattr("vitrail.lab.masked.RATES", (1e-3,))
    monkeypatch.setattr("vitrail.lab.masked.LABELS", (20, 50))
    found = masked_lab("panes:count=200,size=16", 2, SHORT, methods=("mae", "simmim"))
    few = [arm for arm in found.arms if arm.question == "few"]
    assert [(arm.start, arm.labels) for arm in few] == [
        (name, labels) for labels in (20, 50) for name in (NOTHING, "mae", "simmim")
    ]
    order = [arm for arm in found.arms if arm.question == "order"]
    assert [arm.start for arm in order] == [NOTHING, "masked-patch", SUPERVISED] * 2
    for arm in found.arms:
        beside = [other for other in found.arms if (other.question, other.labels) == (arm.question, arm.labels)]
        plain = next(other for other in beside if other.start == NOTHING)
        assert arm.mean == pytest.approx(np.mean(arm.test))
        assert arm.gain == pytest.approx(np.mean(np.subtract(arm.test, plain.test)))
    assert set(found.losses) == {"mae", "simmim", "masked-patch of other classes"}
    assert all(loss > 0 for loss in found.losses.values())


def test_classes_for_pre_training_and_for_the_task_are_disjoint() -> None:
    train = pictures("panes:count=200,size=16").train
    before, after = _of(train, (0, 1, 2)), _of(train, (3, 4))
    assert len(before) + len(after) == int(np.isin(train.labels, range(5)).sum())
    assert set(before.labels.tolist()) == {0, 1, 2}
    assert set(after.labels.tolist()) == {0, 1}
    assert after.names == train.names[3:5]
    assert {before.where(index) for index in range(len(before))}.isdisjoint(after.where(index) for index in range(len(after)))


def test_a_draw_has_as_many_of_each_class_and_another_seed_has_others() -> None:
    train = pictures("panes:count=200,size=16").train
    one, again, other = (_drawn(train, 50, seed) for seed in (0, 0, 1))
    assert np.bincount(one.labels).tolist() == [5] * 10
    assert [one.where(index) for index in range(50)] == [again.where(index) for index in range(50)]
    assert [one.where(index) for index in range(50)] != [other.where(index) for index in range(50)]
    with pytest.raises(VitrailError, match="try fashion"):
        _drawn(train, 5000, 0)


def test_the_interval_is_students() -> None:
    gains = [0.02, 0.05, 0.03]
    assert _half(gains) == pytest.approx(4.303 * np.std(gains, ddof=1) / 3**0.5)
    assert _half([0.1]) is None


def test_the_paper_s_targets_are_all_there() -> None:
    assert {METHODS[name].target for name in METHODS if name.startswith("masked-patch")} == {"colour", "shrunken", "pixels"}


def test_the_command_prints_a_table_or_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("vitrail.lab.masked.RATES", (1e-3,))
    monkeypatch.setattr("vitrail.lab.masked.LABELS", (20, 50))
    words = ["lab", "masked", "--data", "panes:count=200,size=16", "--seeds", "2", "--pretrain", "2", "--finetune", "2"]
    assert run([*words, "--question", "order", "--json"]) == 0
    assert [arm["question"] for arm in json.loads(capsys.readouterr().out)["arms"]] == ["order"] * 6
    assert run(["lab", "masked", "--question", "why"]) == 2
    assert "few or order" in capsys.readouterr().err
