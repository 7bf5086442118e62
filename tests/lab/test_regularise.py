"""Regularisers are compared one at a time, and all combined."""

from dataclasses import replace

from tests.lab.made import made
from vitrail.augment.policy import policy
from vitrail.data.sources.open import pictures
from vitrail.lab.experiment import Asked
from vitrail.lab.regularise import ALL, ALONE, ARMS, NOTHING, amounts, tell, trials
from vitrail.models.settings import ViTConfig


def test_a_single_arm_changes_one_thing_and_the_combined_arm_all() -> None:
    found = {job.of["arm"]: job.recipe for job in trials(Asked("fashion")) if (job.of["seed"], job.of["count"]) == (0, 9000)}
    plain = found[NOTHING]
    for name in ALONE:
        model, augment = found[name].model, found[name].augment
        assert isinstance(model, ViTConfig)
        assert (model == plain.model) != (augment == plain.augment)
        assert replace(found[name], model=plain.model, augment=plain.augment) == plain
    together = found[ALL].model
    assert isinstance(together, ViTConfig)
    assert (together.dropout, together.stochastic_depth) == (0.1, 0.1)
    everything = {key: value for arm in ALONE.values() for key, value in arm.augment.items()}
    assert found[ALL].augment == policy("pad", pad=1, **everything)


def test_the_small_training_set_is_a_ninth_with_the_same_test_images() -> None:
    assert amounts(Asked("fashion")) == (1000, 9000)
    names = {job.of["count"]: job.recipe.data for job in trials(Asked("panes:count=900,size=16"))}
    little, more = (pictures(names[count]) for count in (100, 900))
    assert len(little.train) == 100
    assert [(len(data.validation), len(data.test)) for data in (little, more)] == [(180, 180)] * 2


def test_the_summary_names_what_helps_and_what_hurts() -> None:
    options = Asked("fashion")
    rows = made(trials(options), lambda of: 0.5 + 0.1 * (of["arm"] == "dropout 0.1") * (1 if of["count"] == 1000 else -1))
    result = tell(options, rows)
    assert result.answer == (
        "With 1,000 images (baseline 50.0%), dropout 0.1 significantly helps; "
        "with 9,000 images (baseline 50.0%), dropout 0.1 significantly hurts."
    )
    assert len(result.numbers["arms"]) == 2 * len(ARMS)
