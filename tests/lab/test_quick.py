"""Every experiment works from the command line to its page, and a second call reuses all results."""

import json
from pathlib import Path

import pytest

from vitrail.cli.main import run
from vitrail.lab import trials
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.registry import NAMES, get_experiment
from vitrail.lab.runner import NO_TRAINING_NOTE, QUICK_NOTE

QUICK_NAMES = ("variants", "compute", "patches", "norm")  # without training and with it


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_NAMES else pytest.mark.thorough) for name in NAMES]
)
def test_a_quick_test_writes_a_page_with_its_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["lab", name, "--quick", "--out", str(tmp_path), "--device", "cpu"]
    assert run(command) == 0
    output = " ".join(capsys.readouterr().out.split())
    folder, chosen = tmp_path / f"{name}-quick", get_experiment(name)
    page, numbers = (folder / "index.html").read_text(), json.loads((folder / "numbers.json").read_text())
    assert numbers["summary"] in output
    assert numbers["experiment"] == name
    assert numbers["quick"] is True
    for text in ("In the paper", "Scaled down", "Limitations"):
        assert text in page
    trained = bool(chosen.jobs(ExperimentOptions(chosen.data, quick=True)))
    assert chosen.trains == trained
    assert [QUICK_NOTE in text for text in (page, output)] == [trained] * 2
    assert (NO_TRAINING_NOTE in page) == (not trained)
    assert page.index(numbers["summary"][:20].replace("'", "&#x27;")) < page.index("In the paper") < page.index("Scaled down")
    assert f"<code>vitrail lab {name} --quick</code>" in page
    assert "<script" not in page

    monkeypatch.setattr(trials, "fit", None)
    assert run([*command, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["summary"], again["quick"]) == (numbers["summary"], trained)


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_described_and_has_distinct_jobs(name: str) -> None:
    chosen = get_experiment(name)
    assert chosen.name == name
    assert all(len(text) > 20 for text in (chosen.title, chosen.paper, chosen.scaled, chosen.limits))
    trials = chosen.jobs(ExperimentOptions(chosen.data, quick=True))
    assert len({each.key for each in trials}) == len(trials)
