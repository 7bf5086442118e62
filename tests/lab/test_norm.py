"""Four arms: pre-norm or post-norm, with warm-up and without."""

from dataclasses import replace

from tests.lab.fake_results import fake_results
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.norm import build_result, jobs
from vitrail.models.config import ViTConfig
from vitrail.recipes.recipe import Schedule


def test_arms_differ_in_norm_and_warm_up_alone() -> None:
    all_jobs = [job for job in jobs(ExperimentOptions("fashion")) if job.condition["seed"] == 0]
    variants = set()
    for job in all_jobs:
        made_ = job.recipe
        assert isinstance(made_.model, ViTConfig)
        variants.add(
            replace(made_, model=replace(made_.model, norm="pre"), schedule=Schedule(), optim=replace(made_.optim, lr=1.0))
        )
        assert made_.model.norm == job.condition["norm"]
        assert (made_.schedule.warmup_steps > 0) == (job.condition["warmup"] == "warm-up")
    assert len(variants) == 1


def test_the_summary_covers_both() -> None:
    options = ExperimentOptions("fashion")

    def score(condition: dict[str, object]) -> float | None:
        if condition["norm"] == "post" and condition["warmup"] == "no warm-up":
            return None
        return 0.8 if condition["norm"] == "pre" else 0.7

    summary = build_result(options, fake_results(jobs(options), score)).summary
    assert "With warm-up, pre-norm is significantly better at its best learning rate (pre 80.0%, post 70.0%)" in summary
    assert "without warm-up, post-norm diverged at every learning rate" in summary
    gone = build_result(options, fake_results(jobs(options), lambda condition: None)).summary
    assert gone.startswith("With warm-up, both diverged at every learning rate; without warm-up, both diverged")
