"""Fine-tuning starts from the low-resolution weights, and a new position table is reinitialised."""

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


def test_low_to_full_resolution_is_as_224_to_384() -> None:
    for data, small, large in (("fashion", (16, 16), (28, 28)), ("panes:count=50,size=64", (40, 40), (64, 64))):
        high, low = recipes(Asked(data), 0)
        assert (low.model.image, high.model.image) == (small, large)
        assert isinstance(high.model, ViTConfig)
        assert replace(high.model, image=small) == low.model


def test_arms_start_from_the_same_weights_and_differ_in_the_table_alone() -> None:
    found = {job.of["arm"]: job for job in trials(Asked("fashion")) if job.of["seed"] == 1}
    assert set(found) == {BEFORE, SAME, NEW, *RULES}
    before = found[BEFORE]
    assert all(job.after is not None and job.after.key == before.key for name, job in found.items() if name != BEFORE)
    for rule in RULES:
        model = found[rule].recipe.model
        assert isinstance(model, ViTConfig)
        assert model.resize == rule
        assert replace(found[rule].recipe, model=replace(model, resize="official")) == found[NEW].recipe
    assert found["official"].key != found[NEW].key


def test_all_stages_run_and_are_measured(tmp_path: Path) -> None:
    some = [job.short(1) for job in trials(Asked("fashion", quick=True)) if job.of["arm"] in (BEFORE, "official", NEW)]
    rows = {row.of["arm"]: row for row in done(tmp_path, some, measure)}
    assert set(rows[BEFORE].measured["before_finetuning"]) == {*RULES, NEW}
    assert rows["official"].measured == {}
    new = next(job for job in some if job.of["arm"] == NEW)
    start, before = load(tmp_path / "initial_weights" / new.key), load(tmp_path / "runs" / some[0].key, image=28)
    old, now = before.state_dict(), start.state_dict()
    differs = [name for name in now if not torch.equal(old[name], now[name])]
    assert differs == ["positions.0.table.weight"]
    assert torch.std(now["positions.0.table.weight"]) == pytest.approx(0.02, rel=0.1)


def test_the_summary_compares_the_paper_s_interpolation_with_a_new_table() -> None:
    options = Asked("fashion")
    rows = made(trials(options), lambda of: 0.8 - 0.05 * (of["arm"] == NEW) + 0.01 * of["seed"])
    assert "it is significantly better (+5.0 ± 0.0 points)" in tell(options, rows).answer
    level = made(trials(options), lambda of: 0.8)
    assert "not significantly different" in tell(options, level).answer
