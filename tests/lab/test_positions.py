"""Arms differ in where a patch is told to be, and in nothing else."""

from dataclasses import replace
from pathlib import Path

from tests.lab.made import made
from vitrail.lab.experiment import Asked
from vitrail.lab.positions import ARMS, NOTHING, PAPER, measure, tell, trials
from vitrail.lab.trial import Trial, done
from vitrail.models.settings import ViTConfig


def test_arms_differ_in_positions_alone() -> None:
    found = [trial for trial in trials(Asked("fashion")) if trial.of["seed"] == 0]
    plain = next(trial.recipe for trial in found if trial.of["arm"] == NOTHING)
    for trial in found:
        model = trial.recipe.model
        assert isinstance(model, ViTConfig)
        same = replace(model, position="none", position_at="stem")
        assert replace(trial.recipe, model=same) == plain
    assert len({trial.recipe.model for trial in found}) == len(ARMS) == len(found)


def test_table_8_and_what_came_after_it_are_all_there() -> None:
    models = [trial.recipe.model for trial in trials(Asked("fashion"))]
    cases = {(model.position, model.position_at) for model in models if isinstance(model, ViTConfig)}
    assert {(kind, at) for kind in ("learned1d", "learned2d") for at in ("stem", "every", "shared")} < cases
    assert {("none", "stem"), ("relative", "stem"), ("sincos2d", "stem"), ("rotary", "stem")} < cases


def test_table_8_as_it_is_printed() -> None:
    assert (PAPER[NOTHING], PAPER["1-D, stem"], PAPER["relative"]) == (0.61382, 0.64206, 0.64032)
    assert (PAPER["1-D, every layer"], PAPER["1-D, shared"]) == (0.63964, 0.64292)
    assert [PAPER[f"2-D, {at}"] for at in ("stem", "every layer", "shared")] == [0.64001, 0.64046, 0.64022]


def test_the_answer_counts_what_is_clearly_ahead() -> None:
    asked = Asked("fashion")
    found = trials(asked)
    ahead = made(found, lambda of: 0.5 + 0.1 * (of["arm"] == "rotary") + 0.001 * of["seed"], fewshot=0.4)
    told = tell(asked, ahead)
    assert told.numbers["clear"] == ["rotary"]
    assert told.answer.startswith("1 of 10 ways")
    assert "No way" in tell(asked, made(found, lambda of: 0.5)).answer


def test_few_shots_are_measured_on_a_finished_run(tmp_path: Path) -> None:
    trial = trials(Asked("fashion", quick=True))[0].short(2)
    (row,) = done(tmp_path, [trial], measure)
    assert 0 <= row.measured["fewshot"] <= 1
    assert measure(tmp_path / "runs" / trial.key, Trial(trial.of, trial.recipe)) == row.measured
