"""Four arms: pre-norm or post-norm, with warm-up and without."""

from dataclasses import replace

from tests.lab.made import made
from vitrail.lab.experiment import Asked
from vitrail.lab.norm import tell, trials
from vitrail.models.settings import ViTConfig
from vitrail.train.recipe import Schedule


def test_arms_differ_in_norm_and_warm_up_alone() -> None:
    found = [job for job in trials(Asked("fashion")) if job.of["seed"] == 0]
    seen = set()
    for job in found:
        made_ = job.recipe
        assert isinstance(made_.model, ViTConfig)
        seen.add(
            replace(made_, model=replace(made_.model, norm="pre"), schedule=Schedule(), optim=replace(made_.optim, lr=1.0))
        )
        assert made_.model.norm == job.of["norm"]
        assert (made_.schedule.warmup > 0) == (job.of["warmup"] == "warm-up")
    assert len(seen) == 1


def test_the_summary_covers_both() -> None:
    options = Asked("fashion")

    def score(of: dict[str, object]) -> float | None:
        if of["norm"] == "post" and of["warmup"] == "no warm-up":
            return None
        return 0.8 if of["norm"] == "pre" else 0.7

    answer = tell(options, made(trials(options), score)).answer
    assert "With warm-up, pre-norm is significantly better at its best learning rate (pre 80.0%, post 70.0%)" in answer
    assert "without warm-up, post-norm diverged at every learning rate" in answer
    gone = tell(options, made(trials(options), lambda of: None)).answer
    assert gone.startswith("With warm-up, both diverged at every learning rate; without warm-up, both diverged")
