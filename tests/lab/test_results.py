"""The lab results in the docs are reproduced from their saved rows by today's code, and the text has no other numbers."""

import json
import math
import re
import shlex
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from vitrail.cli.main import run
from vitrail.data.sources.known_datasets import KNOWN_DATASETS, pack_path
from vitrail.lab.registry import NAMES

RESULTS = Path(__file__).parents[2] / "docs" / "lab"
LINES = re.findall(r"^vitrail lab (.+) --out docs/lab$", (RESULTS / "index.md").read_text(), re.MULTILINE)
REQUIRED = ("variants", "compute", "positions", "data-scale", "cls-or-gap", "resolution", "inside")
SYSTEM_FOLDER = KNOWN_DATASETS["fashion-mnist"].system_folder or Path()
NUMBER_WITH_UNIT = re.compile(r"\d[\d,]*\.\d+ ?(?:%|points)")


def _forbidden(*_: object, **__: object) -> None:
    raise AssertionError("a training job without a row in the docs; rerun the command of docs/lab/index.md")


def _is_close(ours: Any, theirs: Any) -> bool:
    """Whether two results are equal up to rounding: a checkpoint is measured again on this processor."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_is_close(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_is_close, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-3, abs_tol=1e-3)
    return bool(ours == theirs)


def test_every_experiment_with_a_result_has_its_command_and_its_text() -> None:
    folders = {path.parent.name for path in RESULTS.glob("*/numbers.json")}
    assert {line.split()[0] for line in LINES} == folders
    assert {path.stem for path in RESULTS.glob("*.md")} == {*folders, "index"}
    assert set(REQUIRED) <= folders <= set(NAMES)


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=pytest.mark.thorough if "--weights" in line or "--data" in line else ()) for line in LINES],
)
def test_the_rows_reproduce_the_results_in_the_docs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *options = shlex.split(line)
    if "--weights" in options and not (RESULTS.parents[1] / options[options.index("--weights") + 1]).exists():
        pytest.skip("the inspected weights are not here")
    if "fashion-mnist" in options and not pack_path("fashion-mnist").is_file():
        monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
        downloaded = run(["data", "download", "fashion-mnist"]) == 0
        if not downloaded and not SYSTEM_FOLDER.is_dir():
            pytest.skip("fashion-mnist is neither installed (apt install dataset-fashion-mnist) nor can it be downloaded here")
        assert downloaded
    shutil.copytree(RESULTS / name, tmp_path / "docs" / "lab" / name, ignore=shutil.ignore_patterns("runs"))
    monkeypatch.setattr("vitrail.lab.trials.fit", _forbidden)
    monkeypatch.setattr("vitrail.lab.time_budget._step_factor", _forbidden)
    monkeypatch.chdir(RESULTS.parents[1])  # the path of the weights is relative to it
    assert run(["lab", name, *options, "--out", str(tmp_path / "docs" / "lab")]) == 0
    ours, result = (json.loads((root / name / "numbers.json").read_text()) for root in (RESULTS, tmp_path / "docs" / "lab"))
    assert _is_close(result, ours)


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.md") if path.stem != "index"))
def test_a_text_has_the_numbers_of_its_page(name: str) -> None:
    page = re.sub(r"<style.*?</style>|<svg.*?</svg>|<[^>]+>", " ", (RESULTS / name / "index.html").read_text(), flags=re.DOTALL)
    on_page = set(re.findall(r"\d[\d,]*\.\d+", unescape(page)))
    in_text = NUMBER_WITH_UNIT.findall((RESULTS / f"{name}.md").read_text())
    assert in_text or name in ("variants", "compute", "inside")
    assert [number for number in in_text if number.rstrip(" %points") not in on_page] == []
