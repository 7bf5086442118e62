"""The arms differ in the position embedding, and in nothing else."""

from dataclasses import replace
from pathlib import Path

from tests.lab.made import made
from vitrail.lab.experiment import Asked
from vitrail.lab.positions import ARMS, NOTHING, PAPER, measure, tell, trials
from vitrail.lab.trial import Trial, done
from vitrail.models.settings import ViTConfig


def test_arms_differ_in_positions_alone() -> None:
    found = [job for job in trials(Asked("fashion")) if job.of["seed"] == 0]
    plain = next(job.recipe for job in found if job.of["arm"] == NOTHING)
    for job in found:
        model = job.recipe.model
        assert isinstance(model, ViTConfig)
        same = replace(model, position="none", position_at="input")
        assert replace(job.recipe, model=same) == plain
    assert len({job.recipe.model for job in found}) == len(ARMS) == len(found)


def test_all_kinds_of_table_8_and_later_ones_are_there() -> None:
    models = [job.recipe.model for job in trials(Asked("fashion"))]
    cases = {(model.position, model.position_at) for model in models if isinstance(model, ViTConfig)}
    assert {(kind, at) for kind in ("learned1d", "learned2d") for at in ("input", "every-layer", "every-layer-shared")} < cases
    assert {("none", "input"), ("relative", "input"), ("sincos2d", "input"), ("rotary", "input")} < cases


def test_numbers_of_table_8() -> None:
    assert (PAPER[NOTHING], PAPER["1-D, stem"], PAPER["relative"]) == (0.61382, 0.64206, 0.64032)
    assert (PAPER["1-D, every layer"], PAPER["1-D, shared"]) == (0.63964, 0.64292)
    assert [PAPER[f"2-D, {at}"] for at in ("stem", "every layer", "shared")] == [0.64001, 0.64046, 0.64022]


def test_the_summary_counts_the_significantly_better() -> None:
    options = Asked("fashion")
    found = trials(options)
    ahead = made(found, lambda of: 0.5 + 0.1 * (of["arm"] == "rotary") + 0.001 * of["seed"], fewshot=0.4)
    result = tell(options, ahead)
    assert result.numbers["significant"] == ["rotary"]
    assert result.answer.startswith("1 of 10 kinds")
    assert "No kind" in tell(options, made(found, lambda of: 0.5)).answer


def test_few_shot_accuracy_is_measured_on_a_finished_run(tmp_path: Path) -> None:
    job = trials(Asked("fashion", quick=True))[0].short(2)
    (row,) = done(tmp_path, [job], measure)
    assert 0 <= row.measured["fewshot"] <= 1
    assert measure(tmp_path / "runs" / job.key, Trial(job.of, job.recipe)) == row.measured
