"""One at a time, and all of them."""

from dataclasses import replace

from tests.lab.made import made
from vitrail.augment.policy import policy
from vitrail.data.sources.open import pictures
from vitrail.lab.experiment import Asked
from vitrail.lab.regularise import ALL, ALONE, ARMS, NOTHING, amounts, tell, trials
from vitrail.models.settings import ViTConfig


def test_an_arm_alone_changes_one_thing_and_all_changes_all_of_them() -> None:
    found = {
        trial.of["arm"]: trial.recipe
        for trial in trials(Asked("fashion"))
        if (trial.of["seed"], trial.of["count"]) == (0, 9000)
    }
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


def test_little_data_is_a_ninth_with_the_same_pictures_to_be_judged_by() -> None:
    assert amounts(Asked("fashion")) == (1000, 9000)
    names = {trial.of["count"]: trial.recipe.data for trial in trials(Asked("panes:count=900,size=16"))}
    little, more = (pictures(names[count]) for count in (100, 900))
    assert len(little.train) == 100
    assert [(len(data.validation), len(data.test)) for data in (little, more)] == [(180, 180)] * 2


def test_the_answer_tells_what_helps_and_what_harms() -> None:
    asked = Asked("fashion")
    rows = made(trials(asked), lambda of: 0.5 + 0.1 * (of["arm"] == "dropout 0.1") * (1 if of["count"] == 1000 else -1))
    told = tell(asked, rows)
    assert told.answer == (
        "With 1,000 pictures (50.0% without any), dropout 0.1 clearly helps; "
        "with 9,000 pictures (50.0% without any), dropout 0.1 clearly harms."
    )
    assert len(told.numbers["arms"]) == 2 * len(ARMS)
