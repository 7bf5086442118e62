"""Fine-tuning starts from the low-resolution weights, and a new position table is reinitialised."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.lab.fake_results import fake_results
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.resolution import INTERPOLATIONS, LOW_RESOLUTION, NEW_TABLE, PRETRAINED, build_result, jobs, measure, recipes
from vitrail.lab.trials import run_jobs
from vitrail.models.config import ViTConfig
from vitrail.weights.load import load


def test_low_to_full_resolution_is_as_224_to_384() -> None:
    for data, small, large in (("fashion", (16, 16), (28, 28)), ("panes:train_size=50,size=64", (40, 40), (64, 64))):
        high, low = recipes(ExperimentOptions(data), 0)
        assert (low.model.image, high.model.image) == (small, large)
        assert isinstance(high.model, ViTConfig)
        assert replace(high.model, image=small) == low.model


def test_arms_start_from_the_same_weights_and_differ_in_the_table_alone() -> None:
    by_arm = {job.condition["arm"]: job for job in jobs(ExperimentOptions("fashion")) if job.condition["seed"] == 1}
    assert set(by_arm) == {PRETRAINED, LOW_RESOLUTION, NEW_TABLE, *INTERPOLATIONS}
    before = by_arm[PRETRAINED]
    assert all(
        job.init_from is not None and job.init_from.key == before.key for name, job in by_arm.items() if name != PRETRAINED
    )
    for rule in INTERPOLATIONS:
        model = by_arm[rule].recipe.model
        assert isinstance(model, ViTConfig)
        assert model.position_resize == rule
        assert replace(by_arm[rule].recipe, model=replace(model, position_resize="official")) == by_arm[NEW_TABLE].recipe
    assert by_arm["official"].key != by_arm[NEW_TABLE].key


def test_all_stages_run_and_are_measured(tmp_path: Path) -> None:
    some = [
        job.with_steps(1)
        for job in jobs(ExperimentOptions("fashion", quick=True))
        if job.condition["arm"] in (PRETRAINED, "official", NEW_TABLE)
    ]
    rows = {row.condition["arm"]: row for row in run_jobs(tmp_path, some, measure)}
    assert set(rows[PRETRAINED].measurements["before_finetuning"]) == {*INTERPOLATIONS, NEW_TABLE}
    assert rows["official"].measurements == {}
    new = next(job for job in some if job.condition["arm"] == NEW_TABLE)
    start, before = load(tmp_path / "initial_weights" / new.key), load(tmp_path / "runs" / some[0].key, image=28)
    old, now = before.state_dict(), start.state_dict()
    differs = [name for name in now if not torch.equal(old[name], now[name])]
    assert differs == ["positions.0.table.weight"]
    assert torch.std(now["positions.0.table.weight"]) == pytest.approx(0.02, rel=0.1)


def test_the_summary_compares_the_paper_s_interpolation_with_a_new_table() -> None:
    options = ExperimentOptions("fashion")
    rows = fake_results(
        jobs(options), lambda condition: 0.8 - 0.05 * (condition["arm"] == NEW_TABLE) + 0.01 * condition["seed"]
    )
    assert "it is significantly better (+5.0 ± 0.0 points)" in build_result(options, rows).summary
    level = fake_results(jobs(options), lambda condition: 0.8)
    assert "not significantly different" in build_result(options, level).summary
