"""``vitrail lab`` without a name lists the experiments, and reports every mistake in one sentence, before any work."""

import json
from pathlib import Path

import pytest

from vitrail.cli.main import run
from vitrail.lab.registry import NAMES
from vitrail.training.signals import TrainingStopped

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)
    assert run(["lab", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shfit"], "did you mean 'shift'?"),
        (["shift", "--minutes", "0"], "--minutes must be above 0, got 0; try --minutes 20"),
        (["shift", "--minutes", "nan"], "--minutes must be above 0, got nan"),
        (["shift", "--minutes", "soon"], "--minutes must be a number, got 'soon'"),
        (["shift", "--data", "fashoin"], "did you mean 'fashion'?"),
        (["shift", "--quick", "--data", "fashoin"], "did you mean 'fashion'?"),
        (["shift", "--data", ""], "no dataset is named"),
        (["shift", "--weights", "model.npz"], "shift takes no checkpoint; leave out --weights"),
        (["compute", "--data", "fashion"], "compute takes no dataset; leave out --data"),
        (["inside", "--weights", "nowhere.npz", "--quick"], "nowhere.npz"),
        (["shift", "--out", "a-file"], "--out must be a folder, got a-file, and a-file is a file; try --out lab"),
        (["shift", "--out", "a-file/deeper"], "and a-file is a file; try --out lab"),
        (["shift", "--device", "toaster", "--quick"], "toaster"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("here first")
    assert run(["lab", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.count("\n") == 0
    assert not list(tmp_path.glob("lab/*/rows/*"))


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert run(["lab", "compute", "--out", str(tmp_path / "there")]) == 2
    assert "a folder that can be written" in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


def test_a_stop_signal_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise TrainingStopped(143, "stopped at step 3")

    monkeypatch.setattr("vitrail.lab.runner.run_experiment", stop)
    assert run(["lab", "shift", "--out", str(tmp_path)]) == 143
    assert "resumes from there" in capsys.readouterr().err


def test_ctrl_c_between_two_runs_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitrail.lab.runner.run_experiment", stop)
    assert run(["lab", "shift", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "stopped; the same command resumes from there\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_documented(name: str) -> None:
    section = REFERENCE.split("### `vitrail lab")[1].split("\n### ")[0]
    assert f"| `{name}` |" in section


def test_a_page_without_training_is_reproducible(tmp_path: Path) -> None:
    for out in ("one", "two"):
        assert run(["lab", "compute", "--out", str(tmp_path / out)]) == 0
    one, two = ((tmp_path / out / "compute" / "index.html").read_text() for out in ("one", "two"))
    assert one == two
