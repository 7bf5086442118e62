"""Regularisers are compared one at a time, and all combined."""

from dataclasses import replace

from tests.lab.fake_results import fake_results
from vitrail.augment.policy import get_policy
from vitrail.data.sources.open import open_dataset
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.regularisation import ARMS, BASELINE, COMBINED, SINGLE, build_result, jobs, subset_sizes
from vitrail.models.config import ViTConfig


def test_a_single_arm_changes_one_thing_and_the_combined_arm_all() -> None:
    recipes = {
        job.condition["arm"]: job.recipe
        for job in jobs(ExperimentOptions("fashion"))
        if (job.condition["seed"], job.condition["count"]) == (0, 9000)
    }
    plain = recipes[BASELINE]
    for name in SINGLE:
        model, augment = recipes[name].model, recipes[name].augment
        assert isinstance(model, ViTConfig)
        assert (model == plain.model) != (augment == plain.augment)
        assert replace(recipes[name], model=plain.model, augment=plain.augment) == plain
    together = recipes[COMBINED].model
    assert isinstance(together, ViTConfig)
    assert (together.dropout, together.stochastic_depth) == (0.1, 0.1)
    everything = {key: value for arm in SINGLE.values() for key, value in arm.augment.items()}
    assert recipes[COMBINED].augment == get_policy("pad", pad=1, **everything)


def test_the_small_training_set_is_a_ninth_with_the_same_test_images() -> None:
    assert subset_sizes(ExperimentOptions("fashion")) == (1000, 9000)
    names = {job.condition["count"]: job.recipe.data for job in jobs(ExperimentOptions("panes:train_size=900,size=16"))}
    little, more = (open_dataset(names[count]) for count in (100, 900))
    assert len(little.train) == 100
    assert [(len(data.validation), len(data.test)) for data in (little, more)] == [(180, 180)] * 2


def test_the_summary_names_what_helps_and_what_hurts() -> None:
    options = ExperimentOptions("fashion")
    rows = fake_results(
        jobs(options),
        lambda condition: 0.5 + 0.1 * (condition["arm"] == "dropout 0.1") * (1 if condition["count"] == 1000 else -1),
    )
    recipes = build_result(options, rows)
    assert recipes.summary == (
        "With 1,000 images (baseline 50.0%), dropout 0.1 significantly helps; "
        "with 9,000 images (baseline 50.0%), dropout 0.1 significantly hurts."
    )
    assert len(recipes.numbers["arms"]) == 2 * len(ARMS)
