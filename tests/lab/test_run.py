"""A page: the command that makes it again, drawings beside one another, and how long it took."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.lab.test_framework import recipe
from vitrail.errors import VitrailError
from vitrail.lab.experiment import Asked, Experiment, Told
from vitrail.lab.run import NARROW, carried_out, command
from vitrail.lab.trial import Trial
from vitrail.report.drawing import Drawing

DATA = "panes:count=60,size=16"
PLAIN = Experiment("plain", "A title", "of the paper", "less", "much", lambda asked, rows: Told("So.", [], {}), data=DATA)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(DATA), "vitrail lab plain --minutes 7.5"),
        (Asked(DATA, quick=True), "vitrail lab plain --quick"),
        (Asked("my pictures", quick=True), "vitrail lab plain --quick --data 'my pictures'"),
        (Asked(DATA, weights="/of/mine/L_16.npz"), "vitrail lab plain --minutes 7.5 --weights L_16.npz"),
    ],
)
def test_a_page_names_the_command_that_makes_it_again(asked: Asked, said: str) -> None:
    assert command(replace(PLAIN, trials=lambda _: [Trial({}, recipe())]), asked, 7.5) == said


def test_what_needs_no_training_needs_no_minutes() -> None:
    assert command(PLAIN, Asked(DATA), 7.5) == "vitrail lab plain"


def _folder(path: Path, *splits: str, seed: int = 0) -> Path:
    noise = np.random.default_rng(seed)
    for split, name, number in product(splits, "ab", range(6)):
        (path / split / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (16, 16, 3), np.uint8)).save(path / split / name / f"{number}.png")
    return path


def _on(data: Path) -> tuple[Experiment, Asked]:
    model = replace(recipe().model, classes=2)
    return replace(PLAIN, trials=lambda _: [Trial({}, recipe(data=str(data), model=model))]), Asked(str(data), quick=True)


def test_pictures_without_a_test_are_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.lab.run.done", None)
    with pytest.raises(VitrailError, match="pics has no pictures to test on; make a folder test in it, or try fashion"):
        carried_out(*_on(_folder(tmp_path / "pics", "train", "val")), tmp_path / "lab")


def test_other_pictures_in_the_same_folder_are_not_what_was_trained_on(tmp_path: Path) -> None:
    asked = _on(_folder(tmp_path / "pics", "train", "val", "test"))
    carried_out(*asked, tmp_path / "lab")
    carried_out(*asked, tmp_path / "lab")
    shutil.rmtree(tmp_path / "pics")
    _folder(tmp_path / "pics", "train", "val", "test", seed=1)
    with pytest.raises(VitrailError, match="lab has trainings on other pictures"):
        carried_out(*asked, tmp_path / "lab")


def test_narrow_drawings_that_follow_one_another_stand_side_by_side(tmp_path: Path) -> None:
    narrow, wide = (Drawing(f"{side} wide", (side, 10), ()) for side in (NARROW, NARROW + 1))
    told = Told("So.", [narrow, narrow, "<hr>", narrow, "<hr>", wide, wide], {"some": 3})
    carried_out(replace(PLAIN, tell=lambda asked, rows: told), Asked(DATA), tmp_path)
    page = (tmp_path / "index.html").read_text()
    first, *rest = page.split("<hr>")
    assert first.count('<div class="figures"><figure') == 1
    assert first.count("<figure ") == 2
    assert [part.count('<div class="figures">') for part in rest] == [0, 0]
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [f"figure-{number}.svg" for number in range(1, 6)]
    assert json.loads((tmp_path / "numbers.json").read_text())["some"] == 3


def test_a_page_tells_how_large_pictures_were_seen_and_how_many_trainings_there_were(tmp_path: Path) -> None:
    trials = [Trial({}, recipe(seed=seed)) for seed in (0, 1)]
    carried_out(replace(PLAIN, trials=lambda _: trials), Asked(DATA, quick=True), tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert f" on {DATA}, pictures seen in 16x16 pixels" in page
    assert "2 trainings of 4 steps" in page
    assert "asked for" not in page
    assert "made by" not in page


def test_rows_of_different_versions_are_told(tmp_path: Path) -> None:
    trials = [Trial({}, recipe(seed=seed)) for seed in (0, 1)]
    asked = replace(PLAIN, trials=lambda _: trials), Asked(DATA, quick=True), tmp_path
    carried_out(*asked)
    path = next((tmp_path / "rows").iterdir())
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "made": {"vitrail": "0.0.1", "torch": "1.13"}}))
    carried_out(*asked)
    ours = f"Vitrail {row['made']['vitrail']} on torch {row['made']['torch']}"
    assert f"made by Vitrail 0.0.1 on torch 1.13 and {ours}, which need not agree" in (tmp_path / "index.html").read_text()
