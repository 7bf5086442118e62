"""The self-supervision experiment compares equal budgets, learning rates and label draws."""

from dataclasses import replace

import pytest

from tests.lab.fake_results import fake_results
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.self_supervision import (
    FEW_LABELS,
    FINETUNE,
    LABELS,
    MEAN_COLOUR,
    METHODS,
    PAPER_ORDER,
    PRETRAIN,
    RATES,
    SCRATCH,
    SCRATCH_LONGER,
    SUPERVISED,
    build_result,
    jobs,
)
from vitrail.lab.trials import TrainingJob, with_prerequisites
from vitrail.recipes.recipe import Schedule


def finetuning_jobs(question: str) -> list[TrainingJob]:
    return [
        job
        for job in jobs(ExperimentOptions("fashion"))
        if (job.condition["question"], job.condition["stage"]) == (question, "fine-tuning")
    ]


@pytest.mark.parametrize("question", [FEW_LABELS, PAPER_ORDER])
def test_every_arm_gets_the_same_budget_learning_rates_and_draws(question: str) -> None:
    all_jobs = finetuning_jobs(question)
    starts = {job.condition["start"]: set() for job in all_jobs}  # type: dict[str, set[str]]
    for job in all_jobs:
        assert job.recipe.steps == (PRETRAIN + FINETUNE if job.condition["start"] == SCRATCH_LONGER else FINETUNE)
        starts[job.condition["start"]].add(
            TrainingJob({}, replace(job.recipe, steps=FINETUNE, schedule=Schedule(), eval_every=1, checkpoint_every=1)).key
        )
    assert set(starts) == (
        {SCRATCH, SCRATCH_LONGER, *METHODS} if question == FEW_LABELS else {SCRATCH, MEAN_COLOUR, SUPERVISED}
    )
    assert len({frozenset(keys) for keys in starts.values()}) == 1
    assert len(all_jobs) == len(starts) * len(LABELS) * len(RATES) * 3


def test_pre_training_comes_first_and_is_run_once_for_all_jobs_that_start_from_it() -> None:
    all_jobs = with_prerequisites(jobs(ExperimentOptions("fashion")))
    before = [job for job in all_jobs if job.condition["stage"] == "pre-training"]
    assert len(before) == len(METHODS) + 2
    for job in all_jobs:
        if job.init_from is not None:
            assert job.init_from.key in {other.key for other in all_jobs[: all_jobs.index(job)]}
    assert all(
        (job.init_from is None) == (job.condition["start"] in (SCRATCH, SCRATCH_LONGER)) for job in finetuning_jobs(FEW_LABELS)
    )


def test_classes_for_pre_training_and_for_the_task_are_disjoint() -> None:
    for job in finetuning_jobs(PAPER_ORDER):
        if job.init_from is not None:
            assert ("classes=0-4" in job.init_from.recipe.data, "classes=5-9" in job.recipe.data) == (True, True)
    names = open_dataset("fashion").class_names
    assert open_dataset(finetuning_jobs(PAPER_ORDER)[0].recipe.data).class_names == names[5:]


def test_a_draw_has_as_many_of_each_class_and_another_seed_has_others() -> None:
    names = sorted({job.recipe.data for job in finetuning_jobs(FEW_LABELS) if job.condition["labels"] == 100})
    assert len(names) == 3
    draws = [open_dataset(name) for name in names]
    for draw in draws:
        assert [int((draw.train.labels == label).sum()) for label in range(10)] == [10] * 10
    contents = [{bytes(draw.train.read(index)) for index in range(100)} for draw in draws]
    assert len(set.intersection(*contents)) < 50
    assert len({draw.test.read(0).tobytes() for draw in draws}) == 1  # type: ignore[union-attr]


def test_the_paper_s_targets_are_all_there() -> None:
    assert {METHODS[name].target for name in METHODS if name.startswith("masked-patch")} == {
        "mean-colour",
        "downsampled",
        "pixels",
    }


def test_the_summary_names_what_helps_and_whether_the_order_is_the_paper_s() -> None:
    options = ExperimentOptions("fashion")
    scores = {SCRATCH: 0.5, MEAN_COLOUR: 0.6, SUPERVISED: 0.7}
    rows = fake_results(jobs(options), lambda condition: scores.get(condition["start"], 0.5) + 0.01 * condition.get("seed", 0))
    all_jobs = build_result(options, rows)
    assert (
        "With 100 labels masked-patch (mean colour) is significantly better than training from scratch (51.0%), and "
        "masked-patch (mean colour) than training from scratch for the steps of both stages (51.0%)" in all_jobs.summary
    )
    steps = fake_results(
        jobs(options), lambda condition: 0.7 if condition["start"] == SCRATCH_LONGER else scores.get(condition["start"], 0.5)
    )
    assert (
        "(50.0%), and none than training from scratch for the steps of both stages (70.0%)"
        in build_result(options, steps).summary
    )
    assert (
        "1,000 labels: the paper's order (from scratch 51.0%, masked-patch (mean colour) 61.0%, "
        "supervised on other classes 71.0%)" in all_jobs.summary
    )
    assert (
        "another order than the paper's, not all differences significant"
        in build_result(options, fake_results(jobs(options), lambda condition: 0.5)).summary
    )
    arm = next(arm for arm in all_jobs.numbers["arms"] if (arm["question"], arm["start"]) == (PAPER_ORDER, SUPERVISED))
    assert arm["mean"] == pytest.approx(0.71)


def test_datasets_without_subsets_of_classes_are_rejected() -> None:
    for data in ("panes:size=32", "some/folder"):
        with pytest.raises(VitrailError, match=f"masked needs subsets of the classes .* {data} does not offer; try fashion$"):
            jobs(ExperimentOptions(data, quick=True))
