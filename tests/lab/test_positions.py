"""The arms differ in the position embedding, and in nothing else."""

from dataclasses import replace
from pathlib import Path

from tests.lab.fake_results import fake_results
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.positions import ARMS, NO_POSITIONS, PAPER, build_result, jobs, measure
from vitrail.lab.trials import TrainingJob, run_jobs
from vitrail.models.config import ViTConfig


def test_arms_differ_in_positions_alone() -> None:
    result = [job for job in jobs(ExperimentOptions("fashion")) if job.condition["seed"] == 0]
    plain = next(job.recipe for job in result if job.condition["arm"] == NO_POSITIONS)
    for job in result:
        model = job.recipe.model
        assert isinstance(model, ViTConfig)
        same = replace(model, position="none", position_at="input")
        assert replace(job.recipe, model=same) == plain
    assert len({job.recipe.model for job in result}) == len(ARMS) == len(result)


def test_all_kinds_of_table_8_and_later_ones_are_there() -> None:
    models = [job.recipe.model for job in jobs(ExperimentOptions("fashion"))]
    cases = {(model.position, model.position_at) for model in models if isinstance(model, ViTConfig)}
    assert {(kind, at) for kind in ("learned1d", "learned2d") for at in ("input", "every-layer", "every-layer-shared")} < cases
    assert {("none", "input"), ("relative", "input"), ("sincos2d", "input"), ("rotary", "input")} < cases


def test_numbers_of_table_8() -> None:
    assert (PAPER[NO_POSITIONS], PAPER["1-D, stem"], PAPER["relative"]) == (0.61382, 0.64206, 0.64032)
    assert (PAPER["1-D, every layer"], PAPER["1-D, shared"]) == (0.63964, 0.64292)
    assert [PAPER[f"2-D, {at}"] for at in ("stem", "every layer", "shared")] == [0.64001, 0.64046, 0.64022]


def test_the_summary_counts_the_significantly_better() -> None:
    options = ExperimentOptions("fashion")
    all_jobs = jobs(options)
    ahead = fake_results(
        all_jobs, lambda condition: 0.5 + 0.1 * (condition["arm"] == "rotary") + 0.001 * condition["seed"], fewshot=0.4
    )
    result = build_result(options, ahead)
    assert result.numbers["significant"] == ["rotary"]
    assert result.summary.startswith("1 of 10 kinds")
    assert "No kind" in build_result(options, fake_results(all_jobs, lambda condition: 0.5)).summary


def test_few_shot_accuracy_is_measured_on_a_finished_run(tmp_path: Path) -> None:
    job = jobs(ExperimentOptions("fashion", quick=True))[0].with_steps(2)
    (row,) = run_jobs(tmp_path, [job], measure)
    assert 0 <= row.measurements["fewshot"] <= 1
    assert measure(tmp_path / "runs" / job.key, TrainingJob(job.condition, job.recipe)) == row.measurements
