"""Properties of every experiment that compares training runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.lab.made import made
from vitrail.errors import VitrailError
from vitrail.lab.base import data_of, families, hybrid, recipe, seen, vit, with_settings
from vitrail.lab.book import experiment
from vitrail.lab.experiment import Asked, Told
from vitrail.models.cost import cost
from vitrail.report.drawing import Drawing
from vitrail.report.figures import figure
from vitrail.report.markup import text
from vitrail.train.recipe import Recipe

NAMES = (
    "positions", "cls-or-gap", "norm", "depth-width", "resolution", "optimisers", "regularise", "data-scale", "compute-scale",
    "masked",
)  # fmt: skip

MEASURED: dict[str, Any] = {
    "fewshot": 0.5, "before_finetuning": {"official": 0.3, "timm": 0.4, "huggingface": 0.4, "torchvision": 0.4},
}  # fmt: skip


def shown(result: Told) -> str:
    return " ".join(figure(part, "figure", lambda *_: None) if isinstance(part, Drawing) else part for part in result.parts)


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_has_the_same_seeds_and_no_job_is_run_twice(name: str) -> None:
    for quick in (False, True):
        options = Asked("fashion", quick)
        trials = list(experiment(name).trials(options))
        assert len({job.key for job in trials}) == len(trials)
        arms: dict[str, list[int]] = {}
        for job in trials:
            if "seed" in job.of:
                arm = str({key: value for key, value in job.of.items() if key != "seed"})
                arms.setdefault(arm, []).append(job.of["seed"])
                assert job.recipe.seed == job.of["seed"]
        assert all(sorted(seeds) == list(options.seeds) for seeds in arms.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_nominal_run_has_200_to_2200_steps_that_a_time_budget_scales(name: str) -> None:
    for job in experiment(name).trials(Asked("fashion")):
        assert 200 <= job.recipe.steps <= 2200
        half = job.lasting(0.5)
        assert half.recipe.steps == job.recipe.steps // 2
        assert half.key != job.key
        assert (half.after is None) == (job.after is None)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_page_and_the_numbers_name_every_arm(name: str, quick: bool) -> None:
    options = Asked("fashion", quick)
    found = experiment(name)
    trials = list(found.trials(options))
    rows = made(trials, lambda of: 0.5 + 0.01 * of.get("seed", 0), **MEASURED)
    result = found.tell(options, rows)
    page, numbers = shown(result), json.dumps(result.numbers, allow_nan=False)
    assert result.answer.endswith(".")
    for job in trials:
        for key, value in job.of.items():
            if isinstance(value, str) and key not in ("question", "stage"):
                assert all(text(word.strip()) in page or word.strip() in page for word in value.split(", ")), value
                assert value in numbers or f"{job.of.get('norm')}, {job.of.get('warmup')}" in numbers or key == "family"


@pytest.mark.parametrize("name", NAMES)
def test_diverged_runs_are_a_result(name: str) -> None:
    options, found = Asked("fashion"), experiment(name)
    trials = list(found.trials(options))
    gone = found.tell(options, made(trials, lambda of: None))
    assert "diverged" in shown(gone)
    json.dumps(gone.numbers, allow_nan=False)
    arm = next(iter(trials[0].of.values()))
    one = found.tell(options, made(trials, lambda of: None if arm in of.values() else 0.5, **MEASURED))
    assert "diverged" in shown(one)
    some = found.tell(options, made(trials, lambda of: None if of.get("seed") == 1 else 0.5, fewshot=0.5))
    assert "1 of 3 diverged" in shown(some)
    json.dumps(some.numbers, allow_nan=False)


def test_the_three_families_have_equal_compute() -> None:
    for data in ("fashion", "panes:count=50,size=32"):
        models = families(vit(Asked(data)))
        macs = {name: cost(model).macs for name, model in models.items()}
        assert max(macs.values()) / min(macs.values()) < 1.05
        assert len({model.classes for model in models.values()}) == 1
    like = vit(Asked("fashion"))
    assert hybrid(like).stride == like.stride
    assert hybrid(like).depth >= like.depth // 2


def test_patches_follow_the_image_size() -> None:
    assert vit(Asked("fashion")).grid == (7, 7)
    assert vit(Asked("panes:count=50,size=64")).grid == (8, 8)
    assert vit(Asked("panes:count=50,size=30x44")).grid == (8, 11)
    assert seen("panes:count=50,size=30x44").channels == 3


def test_options_follow_the_name_of_a_dataset() -> None:
    assert with_settings("fashion", count=5) == "fashion:count=5"
    assert with_settings("panes:count=9,size=32", count=5, held=3) == "panes:count=5,size=32,held=3"
    assert with_settings("fashion") == "fashion"
    assert data_of(Asked("fashion", quick=True)) == "fashion:count=60,held=20"
    with pytest.raises(VitrailError, match="needs subsets of a dataset"):
        with_settings("some/folder", count=5)


def test_large_images_are_downsampled() -> None:
    assert vit(Asked("panes:count=50,size=96x80")).image == (96, 80)
    assert vit(Asked("panes:count=50,size=128")).image == (64, 64)


def test_the_shape_of_a_folder_is_that_of_its_first_readable_image(tmp_path: Path) -> None:
    for label in ("apple", "pear"):
        (tmp_path / label).mkdir()
        for number in range(8):
            Image.new("RGB", (40, 24 + number % 2), (30 * number, 9, 9)).save(tmp_path / label / f"{number}.png")
    known = seen(str(tmp_path))
    assert (known.size, known.channels, known.classes) in [((24 + odd, 40), 3, 2) for odd in (0, 1)]
    assert vit(Asked(str(tmp_path))).image == (24, 40)
    for number in range(8):
        (tmp_path / "apple" / f"{number}.png").write_bytes(b"no image")
    seen.cache_clear()
    assert seen(str(tmp_path)).size in [(24, 40), (25, 40)]


def test_the_shared_recipe_warms_up_for_a_tenth_with_an_ema_over_a_250th() -> None:
    def made_for(**changes: Any) -> Recipe:
        return recipe(Asked("fashion"), vit(Asked("fashion")), **changes)

    plain = made_for()
    assert plain.schedule.warmup == plain.steps // 10
    assert plain.ema == pytest.approx(0.996)
    assert made_for(ema=None) == replace(plain, ema=None)
    assert plain.lasting(250).ema == pytest.approx(0.984)
