"""One dimension is changed at a time, and compute is counted from the configuration."""

import pytest

from tests.lab.fake_results import fake_results
from vitrail.lab.depth_width import BASE_NAME, arms, build_result, jobs
from vitrail.lab.experiment import ExperimentOptions
from vitrail.models.cost import cost


def test_each_arm_changes_its_own_dimension_alone() -> None:
    result = arms((28, 28))
    (base,) = result[BASE_NAME]
    fields = {"depth": "depth", "width": "width", "MLP": "mlp", "patch": "patch"}
    for name, field in fields.items():
        for changes in result[name]:
            assert [key for key in base if changes[key] != base[key]] == [field]
    assert all(sum(changes[key] != base[key] for key in base) >= 3 for changes in result["all"])


def test_images_of_other_sizes_have_patches_that_divide_them() -> None:
    for data in ("panes:train_size=50,size=32", "panes:train_size=50,size=48x64"):
        for job in jobs(ExperimentOptions(data)):
            assert (cost(job.recipe.model).tokens or 0) >= 4


def test_the_summary_names_the_best_of_the_larger_models() -> None:
    options = ExperimentOptions("fashion")
    rows = fake_results(
        jobs(options), lambda condition: 0.5 + 0.2 * (condition["changed"] == "patch") + 0.01 * condition["seed"]
    )
    result = build_result(options, rows)
    assert (
        "patch (4, 64, 128, 4) is the best on validation, and on test significantly better than the base: +20.0 ± 0.0 points"
        in result.summary
    )
    (base,) = [model for model in result.numbers["models"] if model["changed"] == BASE_NAME]
    assert base["compute"] == pytest.approx(1)
