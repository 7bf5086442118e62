"""``vitrail predict`` from the command line: one row per image, whatever its name and whatever is wrong with it."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.cli.full_disk import full_disk
from tests.data import images as sample_images
from tests.small_models import small_vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.inference.predict import predict
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
Bytes = pytest.CaptureFixture[bytes]
COMMAND = [sys.executable, "-m", "vitrail", "predict"]


@pytest.fixture(autouse=True)
def _a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save ``run``, and ``in`` with three images."""
    monkeypatch.chdir(tmp_path)
    model = small_vit()
    model.preprocess, model.class_names = Preprocess((12, 15)), ("ant", "bee, small", "cat", "dög", "elk")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    save(model, tmp_path / "run" / "best")
    for number, name in enumerate(("a.jpg", "b.png", "deep/c.jpg")):
        sample_images.write_image(tmp_path / "in" / name, number)


def read_csv(text: str | bytes) -> list[dict[str, str]]:
    text = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    return list(csv.DictReader(io.StringIO(text, newline="")))


def predicted_files(capsys: Any, *arguments: str) -> list[str]:
    assert run(["predict", "run", *arguments, "--csv"]) == 0
    return [row["file"] for row in read_csv(capsys.readouterr().out)]


def test_a_table_for_people(capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--top", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["file", "label", "probability"]
    expected = predict("run", ["in/a.jpg", "in/b.png", "in/deep/c.jpg"])
    for row, prediction in zip(rows, expected, strict=True):
        first, second = prediction.top[:2]
        assert (
            row.split()
            == f"{prediction.file} {first.label} {first.probability:.2%} {second.label} {second.probability:.2%}".split()
        )
    assert len({row.index("%") for row in rows}) == 1  # the columns are aligned


def test_csv_jsonl_and_json_have_the_values_of_the_function(tmp_path: Path, capsys: Capture) -> None:
    expected = predict("run", ["in/a.jpg", "in/b.png", "in/deep/c.jpg"], top_k=3)
    plain = json.loads(json.dumps([asdict(row) for row in expected]))
    command = ["predict", "run", "in", "--top", "3"]
    assert run([*command, "--jsonl"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == plain
    assert run([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"model": "run", "images": 3, "errors": 0, "out": None, "predictions": plain}
    assert run([*command, "--csv"]) == 0
    displayed = capsys.readouterr().out
    for row, prediction in zip(read_csv(displayed), expected, strict=True):
        assert (row["file"], row["label"], row["error"]) == (prediction.file, prediction.label, "")
        assert float(row["probability"]) == prediction.probability
        assert (row["label_3"], float(row["probability_3"])) == (prediction.top[2].label, prediction.top[2].probability)
    for kind in ("csv", "jsonl"):
        assert run([*command, f"--{kind}"]) == 0
        printed = capsys.readouterr().out
        assert run([*command, "--out", f"rows.{kind}"]) == 0
        assert capsys.readouterr().out == f"3 images, 0 with an error: rows.{kind}\n"
        assert (tmp_path / f"rows.{kind}").read_text() == printed
    assert run([*command, "--out", "rows.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": "run", "images": 3, "errors": 0, "out": "rows.csv"}


def test_a_bad_file_is_a_row_with_an_error_and_the_exit_code_is_1(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "in" / "aa.jpg").write_bytes(b"")
    Image.new("1", (10_000, 10_000)).save(tmp_path / "in" / "bomb.png", optimize=True)
    assert run(["predict", "run", "in", "gone.jpg", "--csv", "--batch-size", "2"]) == 1
    displayed = capsys.readouterr()
    rows = {row["file"]: row for row in read_csv(displayed.out)}
    assert list(rows) == ["in/a.jpg", "in/aa.jpg", "in/b.png", "in/bomb.png", "in/deep/c.jpg", "gone.jpg"]
    assert rows["in/aa.jpg"]["error"] == "cannot be decoded: it is empty"
    assert "67,108,864" in rows["in/bomb.png"]["error"]
    assert rows["gone.jpg"]["error"] == "cannot be read: No such file or directory"
    assert all((row["label"] == "") == (row["error"] != "") for row in rows.values())
    assert displayed.err == "6 images, 3 with an error\n"
    assert run(["predict", "run", "in"]) == 1
    assert "in/aa.jpg      cannot be decoded: it is empty" in capsys.readouterr().out


def test_every_file_name_is_exact_in_the_csv(tmp_path: Path, capsysbinary: Bytes) -> None:
    odd = ["a b.png", "a,b.png", 'a"b.png', "a\nb.png", "a\rb.png", " .png", "=1+1.png", "ü日本.png", os.fsdecode(b"a\xff.png")]
    for name in odd:
        with open(tmp_path / "in" / name, "wb") as file:  # Pillow would not take every name
            file.write(sample_images.image_bytes(5, format="PNG"))
    command = ["predict", "run", *(f"in/{name}" for name in odd), "--top", "2"]
    assert run([*command, "--csv"]) == 0
    printed = capsysbinary.readouterr().out
    assert [row["file"] for row in read_csv(printed)] == [f"in/{name}" for name in odd]
    assert run([*command, "--out", "rows.csv"]) == 0
    assert (tmp_path / "rows.csv").read_bytes() == printed
    capsysbinary.readouterr()
    assert run([*command, "--jsonl"]) == 0
    lines = capsysbinary.readouterr().out.splitlines()
    assert [json.loads(line)["file"] for line in lines] == [f"in/{name}" for name in odd]
    assert run(command) == 0
    assert len(capsysbinary.readouterr().out.splitlines()) == 1 + len(odd)  # no name breaks a line


def test_folders_are_walked_like_datasets(tmp_path: Path, capsys: Capture) -> None:
    inside = tmp_path / "in"
    for junk in (".hidden.jpg", "notes.txt", "Thumbs.db", ".git/x.jpg"):
        sample_images.write_image(inside / junk, 1)
    (inside / "loop").symlink_to(inside)
    assert predicted_files(capsys, "in") == ["in/a.jpg", "in/b.png", "in/deep/c.jpg"]
    (inside / "self.jpg").symlink_to("self.jpg")
    (inside / "dead.jpg").symlink_to("nowhere")
    os.mkfifo(inside / "pipe.jpg")
    assert run(["predict", "run", "in/", "--csv"]) == 1
    bad = {row["file"]: row["error"] for row in read_csv(capsys.readouterr().out) if row["error"]}
    assert list(bad) == ["in/dead.jpg", "in/pipe.jpg", "in/self.jpg"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("in/*.jpg", ["in/a.jpg"]),
        ("in/[ab].*", ["in/a.jpg", "in/b.png"]),
        ("in/*", ["in/a.jpg", "in/b.png", "in/deep/c.jpg"]),
        ("in/**/*.jpg", ["in/a.jpg", "in/deep/c.jpg"]),
        ("in/**", ["in/a.jpg", "in/b.png", "in/deep/c.jpg"]),
        ("i?/**/deep/*", ["in/deep/c.jpg"]),
        ("**/d*/c.jpg", ["./in/deep/c.jpg"]),
    ],
)
def test_patterns_are_expanded_where_the_shell_did_not(
    pattern: str, expected: list[str], tmp_path: Path, capsys: Capture
) -> None:
    if "**" in pattern:  # cycles of links must not be followed
        (tmp_path / "in" / "round").symlink_to(tmp_path / "in")
        (tmp_path / "in" / "about").symlink_to(tmp_path / "in")
    assert predicted_files(capsys, pattern) == expected


def test_a_file_with_a_star_in_its_name_is_that_file(tmp_path: Path, capsys: Capture) -> None:
    sample_images.write_image(tmp_path / "in" / "[a]*.jpg", 4)
    assert predicted_files(capsys, "in/[a]*.jpg") == ["in/[a]*.jpg"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\0"])
def test_names_are_read_from_stdin(end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: Bytes) -> None:
    odd = b"in/a\xff [1].jpg"
    (tmp_path / os.fsdecode(odd)).write_bytes(sample_images.image_bytes(5))
    names = [b"in/b.png", odd, b"in/deep"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(end.join([*names, b"", b""]))))
    assert predicted_files(capsysbinary, "in/a.jpg", "-") == ["in/a.jpg", "in/b.png", os.fsdecode(odd), "in/deep/c.jpg"]


def test_a_label_with_a_lone_surrogate_is_written(capsysbinary: Bytes) -> None:
    model = small_vit()
    model.preprocess, model.class_names = Preprocess((12, 15)), tuple(f"{number}\ud800" for number in range(5))
    save(model, "halves")
    assert run(["predict", "halves", "in/a.jpg", "--csv"]) == 0
    assert read_csv(capsysbinary.readouterr().out)[0]["label"].endswith("?")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "empty"], "there is no image in empty; name files, or folders of images"),
        (["run", "-"], "there is no image in stdin"),
        (["run", "in/*.bmp"], "no image matches 'in/*.bmp'"),
        (["run", "in/**/*.bmp"], "no image matches"),
        (["run"], "Missing argument"),
        (["nowhere", "in"], "nowhere does not exist"),
        (["in", "in"], "no pytorch_model.bin; name a run or a model folder, and in a command the model before the data"),
        (["run", "in", "--out", "rows.txt"], "--out must end in .csv or .jsonl or .json, got rows.txt; try rows.csv"),
        (["run", "in", "--out", "gone/rows.csv"], "--out must be a file in a folder that exists"),
        (["run", "in", "--csv", "--jsonl"], "name one of them"),
        (["run", "in", "--csv", "--out", "rows.csv"], "name one of them"),
        (["run", "in", "--jsonl", "--json"], "name one of them"),
        (["run", "in", "--top", "0"], "--top"),
        (["run", "in", "--batch-size", "0"], "--batch-size"),
        (["run", "in", "--device", "warp"], "device"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").touch()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n\n")))
    assert run(["predict", *arguments]) == 2
    displayed = capsys.readouterr()
    assert sentence in displayed.err
    assert displayed.err.count("\n") == 1
    assert displayed.out == ""


def test_an_exported_file_that_cannot_be_compiled_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("vitrail.training.hardware_check.compiler_fault", lambda device: None)
    assert run(["predict", "x.onnx", "in", "--compile"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(
        "vitrail: x.onnx is an exported file, which cannot be sped up"
    )  # and not that it is being compiled


def write_names(tmp_path: Path, count: int) -> Path:
    """Write the name of one image ``count`` times."""
    names = tmp_path / "names"
    names.write_text("in/a.jpg\n" * count)
    return names


@pytest.mark.thorough
def test_rows_are_streamed_and_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    """More rows than a pipe holds: the first ones are read before the last ones can have been written."""
    with (
        open(write_names(tmp_path, 3000)) as names,
        subprocess.Popen(
            [*COMMAND, "run", "-", "--csv", "--batch-size", "4"], stdin=names, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"file,label,probability,")
        assert process.stdout.readline().startswith(b"in/a.jpg,")
        assert process.poll() is None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (1, 141)  # depending on which write fails first


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["--json", "--top=2"])
def test_the_reader_may_close_the_pipe(option: str) -> None:
    line = f"{' '.join(COMMAND)} run in {option} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


@pytest.mark.thorough
def test_a_stopped_command_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("of last time")
    before = {path.name for path in tmp_path.iterdir()} | {"names"}
    with (
        open(write_names(tmp_path, 20_000)) as names,
        subprocess.Popen([*COMMAND, "run", "-", "--out", "rows.csv", "--batch-size", "1"], stdin=names) as process,
    ):
        while process.poll() is None and not any(path.stat().st_size for path in tmp_path.glob(".rows.*")):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 143
    assert (tmp_path / "rows.csv").read_text() == "of last time"
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "rows.csv").write_text("of last time")
    before = {path.name for path in tmp_path.iterdir()}
    with full_disk(2048, monkeypatch):
        assert run(["predict", "run", *["in/a.jpg"] * 100, "--out", "rows.csv"]) == 1
    assert capsys.readouterr().err == "vitrail: [Errno 27] File too large\n"
    assert (tmp_path / "rows.csv").read_text() == "of last time"
    assert {path.name for path in tmp_path.iterdir()} == before
