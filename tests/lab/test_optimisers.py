"""Both families with every optimiser that applies to them."""

from dataclasses import replace

from tests.lab.fake_results import fake_results
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.optimisers import ARMS, PAPER, RATES, build_result, jobs, optim_for


def test_arms_differ_in_the_optimiser_alone() -> None:
    all_jobs = [job for job in jobs(ExperimentOptions("fashion")) if job.condition["seed"] == 0]
    assert len(all_jobs) == sum(len(RATES[kind]) for _, kind in ARMS)
    for family in ("ViT", "ResNet"):
        own = {replace(job.recipe, optim=optim_for("SGD", 1.0)) for job in all_jobs if job.condition["family"] == family}
        assert len(own) == 1
    assert {job.recipe.optim.name for job in all_jobs} == {"adamw", "sgd", "muon"}


def test_means_of_table_7_are_those_of_its_rows() -> None:
    rows = [values for name, values in PAPER.items() if name != "mean"]
    for column in range(4):
        assert abs(sum(row[column] for row in rows) / len(rows) - PAPER["mean"][column]) < 0.0051


def test_the_best_of_each_family_is_compared_with_the_next() -> None:
    options = ExperimentOptions("fashion")
    rows = fake_results(
        jobs(options),
        lambda condition: 0.5 + 0.1 * (condition["optimiser"] in ("Muon", "SGD")) + 0.1 * (condition["optimiser"] == "Muon"),
    )
    summary = build_result(options, rows).summary
    assert "for the ViT, Muon reaches 70.0%, significantly better than SGD (60.0%)" in summary
    assert "for the ResNet, SGD reaches 60.0%, significantly better than AdamW (50.0%)" in summary
