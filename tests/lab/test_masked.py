"""The self-supervision experiment compares equal budgets, learning rates and label draws."""

from dataclasses import replace

import pytest

from tests.lab.made import made
from vitrail.data.sources.open import pictures
from vitrail.errors import VitrailError
from vitrail.lab.experiment import Asked
from vitrail.lab.masked import (
    COLOUR,
    FEW,
    FINETUNE,
    LABELS,
    LONGER,
    METHODS,
    NOTHING,
    ORDER,
    PRETRAIN,
    RATES,
    SUPERVISED,
    tell,
    trials,
)
from vitrail.lab.trial import Trial, with_starts
from vitrail.train.recipe import Schedule


def tuned(question: str) -> list[Trial]:
    return [
        trial for trial in trials(Asked("fashion")) if (trial.of["question"], trial.of["stage"]) == (question, "fine-tuning")
    ]


@pytest.mark.parametrize("question", [FEW, ORDER])
def test_every_arm_gets_the_same_budget_learning_rates_and_draws(question: str) -> None:
    found = tuned(question)
    starts = {trial.of["start"]: set() for trial in found}  # type: dict[str, set[str]]
    for trial in found:
        assert trial.recipe.steps == (PRETRAIN + FINETUNE if trial.of["start"] == LONGER else FINETUNE)
        starts[trial.of["start"]].add(
            Trial({}, replace(trial.recipe, steps=FINETUNE, schedule=Schedule(), evaluate=1, checkpoint=1)).key
        )
    assert set(starts) == ({NOTHING, LONGER, *METHODS} if question == FEW else {NOTHING, COLOUR, SUPERVISED})
    assert len({frozenset(keys) for keys in starts.values()}) == 1
    assert len(found) == len(starts) * len(LABELS) * len(RATES) * 3


def test_pre_training_comes_first_and_is_run_once_for_all_jobs_that_start_from_it() -> None:
    found = with_starts(trials(Asked("fashion")))
    before = [trial for trial in found if trial.of["stage"] == "pre-training"]
    assert len(before) == len(METHODS) + 2
    for trial in found:
        if trial.after is not None:
            assert trial.after.key in {other.key for other in found[: found.index(trial)]}
    assert all((trial.after is None) == (trial.of["start"] in (NOTHING, LONGER)) for trial in tuned(FEW))


def test_classes_for_pre_training_and_for_the_task_are_disjoint() -> None:
    for trial in tuned(ORDER):
        if trial.after is not None:
            assert ("classes=0-4" in trial.after.recipe.data, "classes=5-9" in trial.recipe.data) == (True, True)
    names = pictures("fashion").names
    assert pictures(tuned(ORDER)[0].recipe.data).names == names[5:]


def test_a_draw_has_as_many_of_each_class_and_another_seed_has_others() -> None:
    names = sorted({trial.recipe.data for trial in tuned(FEW) if trial.of["labels"] == 100})
    assert len(names) == 3
    draws = [pictures(name) for name in names]
    for draw in draws:
        assert [int((draw.train.labels == label).sum()) for label in range(10)] == [10] * 10
    contents = [{bytes(draw.train.content(index)) for index in range(100)} for draw in draws]
    assert len(set.intersection(*contents)) < 50
    assert len({draw.test.content(0).tobytes() for draw in draws}) == 1  # type: ignore[union-attr]


def test_the_paper_s_targets_are_all_there() -> None:
    assert {METHODS[name].target for name in METHODS if name.startswith("masked-patch")} == {
        "mean-colour",
        "downsampled",
        "pixels",
    }


def test_the_summary_names_what_helps_and_whether_the_order_is_the_paper_s() -> None:
    options = Asked("fashion")
    scores = {NOTHING: 0.5, COLOUR: 0.6, SUPERVISED: 0.7}
    rows = made(trials(options), lambda of: scores.get(of["start"], 0.5) + 0.01 * of.get("seed", 0))
    result = tell(options, rows)
    assert (
        "With 100 labels masked-patch (mean colour) is significantly better than training from scratch (51.0%), and "
        "masked-patch (mean colour) than training from scratch for the steps of both stages (51.0%)" in result.answer
    )
    steps = made(trials(options), lambda of: 0.7 if of["start"] == LONGER else scores.get(of["start"], 0.5))
    assert "(50.0%), and none than training from scratch for the steps of both stages (70.0%)" in tell(options, steps).answer
    assert (
        "1,000 labels: the paper's order (from scratch 51.0%, masked-patch (mean colour) 61.0%, "
        "supervised on other classes 71.0%)" in result.answer
    )
    assert (
        "another order than the paper's, not all differences significant"
        in tell(options, made(trials(options), lambda of: 0.5)).answer
    )
    arm = next(arm for arm in result.numbers["arms"] if (arm["question"], arm["start"]) == (ORDER, SUPERVISED))
    assert arm["mean"] == pytest.approx(0.71)


def test_datasets_without_subsets_of_classes_are_rejected() -> None:
    for data in ("panes:size=32", "some/folder"):
        with pytest.raises(VitrailError, match=f"masked needs subsets of the classes .* {data} does not offer; try fashion$"):
            trials(Asked(data, quick=True))
