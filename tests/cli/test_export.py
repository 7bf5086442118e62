"""``vitrail export``: one file that predicts and is evaluated, or one sentence; and nothing written anywhere else."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.small import exportable_vit
from vitrail.cli.main import run
from vitrail.data.sources.open import open_dataset
from vitrail.exporters import export
from vitrail.weights.save import save

pytest.importorskip("onnx")

QUICK = ["--images", "20"]
DOCS_IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``mine``, a model that records its dataset."""
    model = exportable_vit(channels=1, classes=10)
    model.class_names = open_dataset("fashion").class_names
    root = tmp_path_factory.mktemp("cli")
    save(model, root / "mine", metadata={"dataset": {"name": "fashion"}, "recipe": {"data": "fashion"}})
    return root


@pytest.fixture(scope="module")
def exported(folder: Path) -> dict[str, Any]:
    """Export the model to ``mine.onnx``; return the JSON that is printed."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as output:
        patch.chdir(folder)
        assert run(["export", "mine", "--json", *QUICK]) == 0
    printed: dict[str, Any] = json.loads(output.getvalue())
    return printed


def _vitrail(home: Path, here: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ORT_", "VITRAIL_"))}
    return subprocess.run(
        [sys.executable, "-m", "vitrail", *map(str, words)],
        cwd=here,
        env={**env, "HOME": str(home), "TMPDIR": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.compile
@pytest.mark.thorough
def test_nothing_is_written_but_the_file(folder: Path, tmp_path: Path) -> None:
    """In processes with an empty home: onnxruntime leaves no device id there; torch and we have a cache, which is empty."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    done = _vitrail(home, here, "export", folder / "mine", "--json", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    predicted = _vitrail(home, here, "predict", "mine.onnx", DOCS_IMAGES, "--json")
    assert predicted.returncode == 0, predicted.stderr
    written = {name for name in _files(tmp_path) if not name.startswith("home/.cache/vitrail/")}
    assert written == {"here/mine.onnx"}


@pytest.mark.compile
def test_json_reports_the_export(exported: dict[str, Any], folder: Path) -> None:
    assert (exported["out"], exported["format"], exported["backend"]) == ("mine.onnx", "onnx", "onnxruntime")
    parity = exported["parity"]
    assert (parity["num_images"], parity["image_source"], parity["real_images"]) == (20, "test of fashion", True)
    assert parity["relative_difference"] < 1e-5
    assert parity["agreement"] == 1
    assert parity["torch_top1"] == parity["file_top1"]
    assert exported["file_bytes"] == (folder / "mine.onnx").stat().st_size


@pytest.mark.compile
@pytest.mark.usefixtures("exported")
def test_the_file_is_evaluated_like_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(folder / "mine"), str(folder / "mine.onnx"), "fashion", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["runs"][0]["top1"] == both["runs"][1]["top1"]
    assert both["paired"][0]["p"] == 1


@pytest.mark.compile
def test_a_file_with_different_outputs_is_exit_code_2_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights differ between the export and the check."""
    save(exportable_vit(), tmp_path / "run")
    write = export.WRITERS["onnx"]

    def spoiled(model: Any, path: Path, *rest: Any, **more: Any) -> None:
        model.head.weight.data.add_(1.0)
        write(model, path, *rest, **more)
        model.head.weight.data.sub_(1.0)

    monkeypatch.setitem(export.WRITERS, "onnx", spoiled)
    monkeypatch.chdir(tmp_path)
    assert run(["export", "run", "--out", "x.onnx"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vitrail: the logits of x.onnx differ from the model's by")
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.compile
def test_int8_export_reports_its_layers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(folder / "mine"), "--to", "int8", "--out", str(tmp_path / "a.onnx"), "--max-drop", "20", *QUICK]
    assert run([*words, "--calibration", "16", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["quantisation"]["num_layers"] == len(output["quantisation"]["sensitivity"]) == 8
    assert output["quantisation"]["accuracy_drop"] <= 0.2
    assert run(["predict", str(tmp_path / "a.onnx"), str(DOCS_IMAGES), "--json"]) == 0


@pytest.mark.compile
def test_the_result_is_printed_as_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(exportable_vit(), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert run(["export", "run", "--to", "program"]) == 0
    output = capsys.readouterr().out
    assert "same top-1 prediction" in output
    assert "compared on synthetic images, as the model does not record its dataset" in output
    assert "file: run.pt2" in output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["run", "--out", "x.pt2"], "--out must end in .onnx, got x.pt2; try x.onnx"),
        (["run", "--out", "no/x.onnx"], "--out must be a file in a folder that exists"),
        (["run", "--to", "program", "--out", "x.onnx"], "--out must end in .pt2"),
        (["run", "--data", "nowhere"], "there is no 'nowhere'"),
        (["run", "--tolerance", "0"], "tolerance must be a number above 0, got 0"),
        (["run", "--tolerance", "nan"], "tolerance must be a number above 0, got nan"),
        (["run", "--max-drop", "nan"], "--max-drop must be at most 99, got 'nan'"),
        (["run", "--merge-tokens", "many"], "merge_tokens must be tokens per layer or a speed"),
        (["x.onnx"], "x.onnx does not exist"),
        (["relative", "--dynamic"], "leave --dynamic out"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(exportable_vit(), tmp_path / "run")
    save(exportable_vit(position="relative"), tmp_path / "relative")
    monkeypatch.chdir(tmp_path)
    assert run(["export", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["relative", "run"]
