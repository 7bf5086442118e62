"""Fine-tuning begins with the weights that were trained small, and a new table is new."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.lab.made import made
from vitrail.lab.experiment import Asked
from vitrail.lab.resolution import BEFORE, NEW, RULES, SAME, measure, recipes, tell, trials
from vitrail.lab.trial import done
from vitrail.models.settings import ViTConfig
from vitrail.weights.load import load


def test_the_small_size_is_to_the_large_one_as_224_to_384() -> None:
    for data, small, large in (("fashion", (16, 16), (28, 28)), ("panes:count=50,size=64", (40, 40), (64, 64))):
        high, low = recipes(Asked(data), 0)
        assert (low.model.image, high.model.image) == (small, large)
        assert isinstance(high.model, ViTConfig)
        assert replace(high.model, image=small) == low.model


def test_arms_begin_with_the_same_weights_and_differ_in_the_table_alone() -> None:
    found = {trial.of["arm"]: trial for trial in trials(Asked("fashion")) if trial.of["seed"] == 1}
    assert set(found) == {BEFORE, SAME, NEW, *RULES}
    before = found[BEFORE]
    assert all(trial.after is not None and trial.after.key == before.key for name, trial in found.items() if name != BEFORE)
    for rule in RULES:
        model = found[rule].recipe.model
        assert isinstance(model, ViTConfig)
        assert model.resize == rule
        assert replace(found[rule].recipe, model=replace(model, resize="official")) == found[NEW].recipe
    assert found["official"].key != found[NEW].key


def test_a_run_of_all_stages_and_what_it_measures(tmp_path: Path) -> None:
    some = [trial.short(1) for trial in trials(Asked("fashion", quick=True)) if trial.of["arm"] in (BEFORE, "official", NEW)]
    rows = {row.of["arm"]: row for row in done(tmp_path, some, measure)}
    assert set(rows[BEFORE].measured["at once"]) == {*RULES, NEW}
    assert rows["official"].measured == {}
    new = next(trial for trial in some if trial.of["arm"] == NEW)
    start, before = load(tmp_path / "starts" / new.key), load(tmp_path / "runs" / some[0].key, image=28)
    old, now = before.state_dict(), start.state_dict()
    differs = [name for name in now if not torch.equal(old[name], now[name])]
    assert differs == ["positions.0.table.weight"]
    assert torch.std(now["positions.0.table.weight"]) == pytest.approx(0.02, rel=0.1)


def test_the_answer_holds_the_paper_s_rule_against_a_new_table() -> None:
    asked = Asked("fashion")
    rows = made(trials(asked), lambda of: 0.8 - 0.05 * (of["arm"] == NEW) + 0.01 * of["seed"])
    assert "it is clearly ahead (+5.0 ± 0.0 points)" in tell(asked, rows).answer
    level = made(trials(asked), lambda of: 0.8)
    assert "not clearly apart" in tell(asked, level).answer
