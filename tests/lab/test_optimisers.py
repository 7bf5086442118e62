"""Both families by each optimiser that is for them."""

from dataclasses import replace

from tests.lab.made import made
from vitrail.lab.experiment import Asked
from vitrail.lab.optimisers import ARMS, PAPER, RATES, optim, tell, trials


def test_arms_differ_in_the_optimiser_alone() -> None:
    found = [trial for trial in trials(Asked("fashion")) if trial.of["seed"] == 0]
    assert len(found) == sum(len(RATES[kind]) for _, kind in ARMS)
    for family in ("ViT", "ResNet"):
        own = {replace(trial.recipe, optim=optim("SGD", 1.0)) for trial in found if trial.of["family"] == family}
        assert len(own) == 1
    assert {trial.recipe.optim.kind for trial in found} == {"adamw", "sgd", "muon"}


def test_means_of_table_7_are_those_of_its_rows() -> None:
    rows = [values for name, values in PAPER.items() if name != "mean"]
    for column in range(4):
        assert abs(sum(row[column] for row in rows) / len(rows) - PAPER["mean"][column]) < 0.0051


def test_the_best_of_each_family_is_told_with_the_next() -> None:
    asked = Asked("fashion")
    rows = made(trials(asked), lambda of: 0.5 + 0.1 * (of["optimiser"] in ("Muon", "SGD")) + 0.1 * (of["optimiser"] == "Muon"))
    answer = tell(asked, rows).answer
    assert "for the ViT, Muon ends at 70.0%, clearly ahead of SGD (60.0%)" in answer
    assert "for the ResNet, SGD ends at 60.0%, clearly ahead of AdamW (50.0%)" in answer
