"""Properties of every experiment that compares training runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.lab.fake_results import fake_results
from vitrail.errors import VitrailError
from vitrail.lab.experiment import ExperimentOptions, ExperimentResult
from vitrail.lab.registry import get_experiment
from vitrail.lab.small_recipe import (
    dataset_name,
    dataset_shape,
    matched_families,
    matched_hybrid,
    small_recipe,
    small_vit,
    with_options,
)
from vitrail.models.cost import cost
from vitrail.plot.canvas import Figure, write_figure
from vitrail.plot.markup import escape
from vitrail.recipes.recipe import Recipe

NAMES = (
    "positions", "cls-or-gap", "norm", "depth-width", "resolution", "optimisers", "regularise", "data-scale", "compute-scale",
    "masked",
)  # fmt: skip

MEASURED: dict[str, Any] = {
    "fewshot": 0.5, "before_finetuning": {"official": 0.3, "timm": 0.4, "huggingface": 0.4, "torchvision": 0.4},
}  # fmt: skip


def rendered(result: ExperimentResult) -> str:
    return " ".join(
        write_figure(part, "figure", lambda *_: None) if isinstance(part, Figure) else part for part in result.parts
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_has_the_same_seeds_and_no_job_is_run_twice(name: str) -> None:
    for quick in (False, True):
        options = ExperimentOptions("fashion", quick)
        jobs = list(get_experiment(name).jobs(options))
        assert len({job.key for job in jobs}) == len(jobs)
        arms: dict[str, list[int]] = {}
        for job in jobs:
            if "seed" in job.condition:
                arm = str({key: value for key, value in job.condition.items() if key != "seed"})
                arms.setdefault(arm, []).append(job.condition["seed"])
                assert job.recipe.seed == job.condition["seed"]
        assert all(sorted(seeds) == list(options.seeds) for seeds in arms.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_nominal_run_has_200_to_2200_steps_that_a_time_budget_scales(name: str) -> None:
    for job in get_experiment(name).jobs(ExperimentOptions("fashion")):
        assert 200 <= job.recipe.steps <= 2200
        half = job.with_scaled_steps(0.5)
        assert half.recipe.steps == job.recipe.steps // 2
        assert half.key != job.key
        assert (half.init_from is None) == (job.init_from is None)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_page_and_the_numbers_name_every_arm(name: str, quick: bool) -> None:
    options = ExperimentOptions("fashion", quick)
    experiment = get_experiment(name)
    jobs = list(experiment.jobs(options))
    rows = fake_results(jobs, lambda condition: 0.5 + 0.01 * condition.get("seed", 0), **MEASURED)
    result = experiment.build_result(options, rows)
    page, numbers = rendered(result), json.dumps(result.numbers, allow_nan=False)
    assert result.summary.endswith(".")
    for job in jobs:
        for key, value in job.condition.items():
            if isinstance(value, str) and key not in ("question", "stage"):
                assert all(escape(word.strip()) in page or word.strip() in page for word in value.split(", ")), value
                assert (
                    value in numbers
                    or f"{job.condition.get('norm')}, {job.condition.get('warmup')}" in numbers
                    or key == "family"
                )


@pytest.mark.parametrize("name", NAMES)
def test_diverged_runs_are_a_result(name: str) -> None:
    options, experiment = ExperimentOptions("fashion"), get_experiment(name)
    jobs = list(experiment.jobs(options))
    gone = experiment.build_result(options, fake_results(jobs, lambda condition: None))
    assert "diverged" in rendered(gone)
    json.dumps(gone.numbers, allow_nan=False)
    arm = next(iter(jobs[0].condition.values()))
    one = experiment.build_result(
        options, fake_results(jobs, lambda condition: None if arm in condition.values() else 0.5, **MEASURED)
    )
    assert "diverged" in rendered(one)
    some = experiment.build_result(
        options, fake_results(jobs, lambda condition: None if condition.get("seed") == 1 else 0.5, fewshot=0.5)
    )
    assert "1 of 3 diverged" in rendered(some)
    json.dumps(some.numbers, allow_nan=False)


def test_the_three_families_have_equal_compute() -> None:
    for data in ("fashion", "panes:train_size=50,size=32"):
        models = matched_families(small_vit(ExperimentOptions(data)))
        macs = {name: cost(model).macs for name, model in models.items()}
        assert max(macs.values()) / min(macs.values()) < 1.05
        assert len({model.classes for model in models.values()}) == 1
    like = small_vit(ExperimentOptions("fashion"))
    assert matched_hybrid(like).patch_stride == like.patch_stride
    assert matched_hybrid(like).depth >= like.depth // 2


def test_patches_follow_the_image_size() -> None:
    assert small_vit(ExperimentOptions("fashion")).grid == (7, 7)
    assert small_vit(ExperimentOptions("panes:train_size=50,size=64")).grid == (8, 8)
    assert small_vit(ExperimentOptions("panes:train_size=50,size=30x44")).grid == (8, 11)
    assert dataset_shape("panes:train_size=50,size=30x44").channels == 3


def test_options_follow_the_name_of_a_dataset() -> None:
    assert with_options("fashion", train_size=5) == "fashion:train_size=5"
    assert (
        with_options("panes:train_size=9,size=32", train_size=5, heldout_size=3) == "panes:train_size=5,size=32,heldout_size=3"
    )
    assert with_options("fashion") == "fashion"
    assert dataset_name(ExperimentOptions("fashion", quick=True)) == "fashion:train_size=60,heldout_size=20"
    with pytest.raises(VitrailError, match="needs subsets of a dataset"):
        with_options("some/folder", train_size=5)


def test_large_images_are_downsampled() -> None:
    assert small_vit(ExperimentOptions("panes:train_size=50,size=96x80")).image == (96, 80)
    assert small_vit(ExperimentOptions("panes:train_size=50,size=128")).image == (64, 64)


def test_the_shape_of_a_folder_is_that_of_its_first_readable_image(tmp_path: Path) -> None:
    for label in ("apple", "pear"):
        (tmp_path / label).mkdir()
        for number in range(8):
            Image.new("RGB", (40, 24 + number % 2), (30 * number, 9, 9)).save(tmp_path / label / f"{number}.png")
    shape = dataset_shape(str(tmp_path))
    assert (shape.size, shape.channels, shape.classes) in [((24 + odd, 40), 3, 2) for odd in (0, 1)]
    assert small_vit(ExperimentOptions(str(tmp_path))).image == (24, 40)
    for number in range(8):
        (tmp_path / "apple" / f"{number}.png").write_bytes(b"no image")
    dataset_shape.cache_clear()
    assert dataset_shape(str(tmp_path)).size in [(24, 40), (25, 40)]


def test_the_shared_recipe_warms_up_for_a_tenth_with_an_ema_over_a_250th() -> None:
    def made_for(**changes: Any) -> Recipe:
        return small_recipe(ExperimentOptions("fashion"), small_vit(ExperimentOptions("fashion")), **changes)

    plain = made_for()
    assert plain.schedule.warmup_steps == plain.steps // 10
    assert plain.ema_decay == pytest.approx(0.996)
    assert made_for(ema_decay=None) == replace(plain, ema_decay=None)
    assert plain.with_steps(250).ema_decay == pytest.approx(0.984)
