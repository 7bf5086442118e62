"""Four arms: the norm before or after, with warm-up and without."""

from dataclasses import replace

from tests.lab.made import made
from vitrail.lab.experiment import Asked
from vitrail.lab.norm import tell, trials
from vitrail.models.settings import ViTConfig
from vitrail.train.recipe import Schedule


def test_arms_differ_in_norm_and_warm_up_alone() -> None:
    found = [trial for trial in trials(Asked("fashion")) if trial.of["seed"] == 0]
    seen = set()
    for trial in found:
        made_ = trial.recipe
        assert isinstance(made_.model, ViTConfig)
        seen.add(
            replace(made_, model=replace(made_.model, norm="pre"), schedule=Schedule(), optim=replace(made_.optim, lr=1.0))
        )
        assert made_.model.norm == trial.of["norm"]
        assert (made_.schedule.warmup > 0) == (trial.of["warmup"] == "warm-up")
    assert len(seen) == 1


def test_the_answer_tells_of_both() -> None:
    asked = Asked("fashion")

    def score(of: dict[str, object]) -> float | None:
        if of["norm"] == "post" and of["warmup"] == "no warm-up":
            return None
        return 0.8 if of["norm"] == "pre" else 0.7

    answer = tell(asked, made(trials(asked), score)).answer
    assert "With warm-up, pre-norm is clearly ahead at its best learning rate (pre 80.0% against 70.0% post)" in answer
    assert "without warm-up, post-norm has diverged at every learning rate" in answer
    gone = tell(asked, made(trials(asked), lambda of: None)).answer
    assert gone.startswith("With warm-up, both have diverged at every learning rate; without warm-up, both have diverged")
