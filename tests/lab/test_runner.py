"""A page has the command that reproduces it, figures side by side, and the time it took."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.lab.test_trials import tiny_recipe
from vitrail.errors import VitrailError
from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult
from vitrail.lab.runner import MAX_NARROW_WIDTH, reproduction_command, run_experiment
from vitrail.lab.trials import TrainingJob
from vitrail.plot.canvas import Figure

DATA = "panes:train_size=60,size=16"
EXPERIMENT = Experiment(
    "plain", "A title", "of the paper", "scaled", "limits", lambda options, rows: ExperimentResult("So.", [], {}), data=DATA
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ExperimentOptions(DATA), "vitrail lab plain --minutes 7.5"),
        (ExperimentOptions(DATA, quick=True), "vitrail lab plain --quick"),
        (ExperimentOptions("my images", quick=True), "vitrail lab plain --quick --data 'my images'"),
        (ExperimentOptions(DATA, weights="/of/mine/L_16.npz"), "vitrail lab plain --minutes 7.5 --weights L_16.npz"),
    ],
)
def test_a_page_names_the_command_that_reproduces_it(options: ExperimentOptions, expected: str) -> None:
    assert reproduction_command(replace(EXPERIMENT, jobs=lambda _: [TrainingJob({}, tiny_recipe())]), options, 7.5) == expected


def test_what_needs_no_training_needs_no_minutes() -> None:
    assert reproduction_command(EXPERIMENT, ExperimentOptions(DATA), 7.5) == "vitrail lab plain"


def _folder(path: Path, *splits: str, seed: int = 0) -> Path:
    noise = np.random.default_rng(seed)
    for split, name, number in product(splits, "ab", range(6)):
        (path / split / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (16, 16, 3), np.uint8)).save(path / split / name / f"{number}.png")
    return path


def _experiment_on(data: Path) -> tuple[Experiment, ExperimentOptions]:
    model = replace(tiny_recipe().model, classes=2)
    return replace(EXPERIMENT, jobs=lambda _: [TrainingJob({}, tiny_recipe(data=str(data), model=model))]), ExperimentOptions(
        str(data), quick=True
    )


def test_a_dataset_without_test_images_is_rejected_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.lab.runner.run_jobs", None)
    with pytest.raises(VitrailError, match="pics has no test images; add a folder test to it, or try fashion"):
        run_experiment(*_experiment_on(_folder(tmp_path / "pics", "train", "val")), tmp_path / "lab")


def test_results_are_not_reused_for_other_images_in_the_same_folder(tmp_path: Path) -> None:
    options = _experiment_on(_folder(tmp_path / "pics", "train", "val", "test"))
    run_experiment(*options, tmp_path / "lab")
    run_experiment(*options, tmp_path / "lab")
    shutil.rmtree(tmp_path / "pics")
    _folder(tmp_path / "pics", "train", "val", "test", seed=1)
    with pytest.raises(VitrailError, match="lab has results on other images"):
        run_experiment(*options, tmp_path / "lab")


def test_consecutive_narrow_figures_are_side_by_side(tmp_path: Path) -> None:
    narrow, wide = (Figure(f"{side} wide", (side, 10), ()) for side in (MAX_NARROW_WIDTH, MAX_NARROW_WIDTH + 1))
    result = ExperimentResult("So.", [narrow, narrow, "<hr>", narrow, "<hr>", wide, wide], {"some": 3})
    run_experiment(replace(EXPERIMENT, build_result=lambda options, rows: result), ExperimentOptions(DATA), tmp_path)
    page = (tmp_path / "index.html").read_text()
    first, *rest = page.split("<hr>")
    assert first.count('<div class="figures"><figure') == 1
    assert first.count("<figure ") == 2
    assert [part.count('<div class="figures">') for part in rest] == [0, 0]
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [f"figure-{number}.svg" for number in range(1, 6)]
    assert json.loads((tmp_path / "numbers.json").read_text())["some"] == 3


def test_a_page_states_the_input_size_and_the_number_of_runs(tmp_path: Path) -> None:
    trials = [TrainingJob({}, tiny_recipe(seed=seed)) for seed in (0, 1)]
    run_experiment(replace(EXPERIMENT, jobs=lambda _: trials), ExperimentOptions(DATA, quick=True), tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert f" on {DATA}, input size 16x16 pixels" in page
    assert "2 training runs of 4 steps" in page
    assert "time budget" not in page
    assert "results come from" not in page


def test_results_of_different_versions_are_reported(tmp_path: Path) -> None:
    trials = [TrainingJob({}, tiny_recipe(seed=seed)) for seed in (0, 1)]
    options = replace(EXPERIMENT, jobs=lambda _: trials), ExperimentOptions(DATA, quick=True), tmp_path
    run_experiment(*options)
    path = next((tmp_path / "rows").iterdir())
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "provenance": {"vitrail": "0.0.1", "torch": "1.13"}}))
    run_experiment(*options)
    ours = f"Vitrail {row['provenance']['vitrail']} on torch {row['provenance']['torch']}"
    assert (
        f"results come from Vitrail 0.0.1 on torch 1.13 and {ours}, which need not agree"
        in (tmp_path / "index.html").read_text()
    )
