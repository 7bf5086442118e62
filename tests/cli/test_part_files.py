"""``vitrail predict`` and ``vitrail embed`` into part files: one process, ``torchrun``, killed and restarted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data import images as sample_images
from tests.small_models import small_vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.weights.load import load
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
NUM_IMAGES = 41


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save ``model``, ``other`` and ``bare`` (without a head), and ``in`` with 41 images, one of them bad."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    for seed, name, classes in ((0, "model", 5), (1, "other", 5), (2, "bare", 0)):
        torch.manual_seed(seed)
        model = small_vit(classes=classes)
        model.preprocess = Preprocess((12, 15))
        save(model, tmp_path / name)
    for number in range(NUM_IMAGES):
        sample_images.write_image(tmp_path / "in" / f"{number:02}.png", number)
    (tmp_path / "in" / "07.png").write_bytes(b"")


def join_parts(folder: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(folder).glob("part-*.jsonl")))


def file_stamps(folder: str) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(folder).glob("part-*")}


def load_arrays(*files: Path) -> dict[str, Any]:
    opened = []
    for path in files:
        with np.load(path, allow_pickle=False) as file:
            opened.append(dict(file))
    joined = {name: np.concatenate([each[name] for each in opened]) for name in ("features", "files", "labels", "splits")}
    assert len({each["names"].tobytes() for each in opened}) == 1
    return {**joined, "names": opened[0]["names"]}


def launch(ranks: int, *arguments: str) -> "subprocess.Popen[str]":
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", "vitrail"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*line, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_part_files_equal_one_file_and_a_rerun_does_nothing(capsys: Capture) -> None:
    assert run(["predict", "model", "in", "--out", "rows.jsonl", "--batch-size", "4"]) == 1
    assert run(["predict", "model", "in", "--out", "parts", "--batch-size", "4", "--rows-per-file", "8"]) == 1
    line = "41 images, 1 with an error, in 6 parts: parts\n"
    assert capsys.readouterr().out == f"41 images, 1 with an error: rows.jsonl\n{line}"
    assert join_parts("parts") == Path("rows.jsonl").read_bytes()
    done = json.loads(Path("parts/_done.json").read_text())
    assert (done["num_images"], done["num_bad"], len(done["parts"])) == (41, 1, 6)
    before = file_stamps("parts")
    assert run(["predict", "model", "in", "--out", "parts"]) == 1
    assert capsys.readouterr().out == line
    assert run(["predict", "model", "in", "--out", "parts", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"model": "model", "images": 41, "errors": 1, "out": "parts", "parts": 6}
    assert file_stamps("parts") == before


def test_only_missing_parts_are_computed(capsys: Capture) -> None:
    command = ["predict", "model", "in", "--out", "parts", "--rows-per-file", "8"]
    assert run(command) == 1
    rows, before = join_parts("parts"), file_stamps("parts")
    cut = Path("parts/part-000003.jsonl")
    cut.write_bytes(cut.read_bytes()[:-100])
    Path("parts/part-000005.jsonl").unlink()
    Path("parts/_in_progress/000005-1-0123456789ab").write_text("half")
    assert run(command) == 1
    assert join_parts("parts") == rows
    after = file_stamps("parts")
    assert {name for name in before if before[name] != after[name]} == {"part-000003.jsonl", "part-000005.jsonl"}
    assert os.listdir("parts/_in_progress") == []


def test_a_new_head_keeps_features_that_did_not_change(tmp_path: Path, capsys: Capture) -> None:
    command = ["in", "--out", "parts", "--rows-per-file", "8"]
    model = load("model")
    assert run(["embed", "model", *command]) == 0
    before = file_stamps("parts")
    model.head = torch.nn.Linear(24, 5)
    save(model, tmp_path / "model")
    assert run(["embed", "model", *command]) == 0
    assert file_stamps("parts") == before
    assert run(["embed", "other", *command]) == 2
    assert "parts was started with other weights" in capsys.readouterr().err


def test_a_folder_belongs_to_one_command(tmp_path: Path, capsys: Capture) -> None:
    command = ["in", "--out", "parts", "--rows-per-file", "8"]
    assert run(["predict", "model", *command]) == 1
    before = file_stamps("parts")
    capsys.readouterr()

    def refused(*arguments: str) -> str:
        assert run(list(arguments)) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        return printed.err

    assert "parts was started with other weights; name another folder" in refused("predict", "other", *command)
    assert "started with top 5 instead of 2" in refused("predict", "model", *command, "--top", "2")
    assert "started with drop_patches 0.0 instead of 0.5" in refused("predict", "model", *command, "--drop-patches", "0.5")
    assert "started with command predict instead of embed" in refused("embed", "model", "in", "--out", "parts")
    sample_images.write_image(tmp_path / "in" / "99.png", 99)
    assert "started with other data and with images 41 instead of 42" in refused("predict", "model", *command)
    assert file_stamps("parts") == before


@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_features_of_all_splits_are_those_of_one_file(format: str, tmp_path: Path, capsys: Capture) -> None:
    """Parts cross the boundaries of splits; one has no readable image, and is a table without rows."""
    parquet = pytest.importorskip("pyarrow.parquet")
    for split, count, first in (("train", 7, 0), ("val", 4, 100), ("test", 3, 200)):
        sample_images.write_class_folders(tmp_path / "set" / split, {"ant": count, "bee": count + 1}, first)
    (tmp_path / "set" / "train" / "ant" / "3.jpg").write_bytes(b"none")
    assert run(["embed", "model", "set", "--out", f"rows.{format}", "--batch-size", "1"]) == 0
    command = ["embed", "model", "set", "--out", "parts", "--format", format, "--batch-size", "1"]
    assert run([*command, "--rows-per-file", "4"]) == 0
    assert capsys.readouterr().out.endswith("30 images, 1 unreadable, in 8 parts: parts\n")
    assert run(["embed", "bare", "set", "--out", "ones", "--format", format, "--rows-per-file", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["images"], answer["parts"], answer["out"]) == (30, 31, "ones")
    assert [sentence.split(":")[0] for sentence in answer["unreadable_images"]] == ["set/train/ant/3.jpg"]
    if format == "parquet":
        assert parquet.read_table("parts").equals(parquet.read_table("rows.parquet"))
        assert parquet.read_table("ones").num_rows == 30
        return
    expected, found = load_arrays(Path("rows.npz")), load_arrays(*sorted(Path("parts").glob("*.npz")))
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    ones = load_arrays(*sorted(Path("ones").glob("*.npz")))
    assert ones["files"].tolist() == expected["files"].tolist()


def test_bad_images_are_counted_over_all_parts(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "in" / "06.png").write_bytes(b"")  # two of the first eight, but within tolerance of all 41
    assert run(["embed", "bare", "in", "--out", "parts", "--rows-per-file", "8"]) == 0
    assert capsys.readouterr().out == "39 images, 2 unreadable, in 6 parts: parts\n"
    (tmp_path / "in" / "30.png").write_bytes(b"")
    assert run(["embed", "bare", "in", "--out", "more", "--rows-per-file", "8"]) == 2
    assert "3 of 41 images cannot be used, more than the tolerated fraction of 0.05" in capsys.readouterr().err
    assert not Path("more/_done.json").exists()


@pytest.mark.parametrize(
    ("ranks", "arguments", "sentence"),
    [
        (
            1,
            ["predict", "model", "in", "--rows-per-file", "8"],
            "--rows-per-file is for a folder of part files, got none; try --out predictions",
        ),
        (1, ["predict", "model", "in", "--out", "x.csv", "--rows-per-file", "8"], "got x.csv; try --out predictions"),
        (1, ["predict", "model", "in", "--out", "parts", "--csv"], "name one of them"),
        (1, ["predict", "model", "in", "--out", "in"], "part files need a folder of their own, got in with"),
        (1, ["predict", "model", "in", "--out", "gone/parts"], "part files need a folder, in one that exists"),
        (1, ["predict", "bare", "in", "--out", "parts"], "the model has no classifier"),
        (1, ["embed", "model", "in", "--out", "in/parts"], "--out must not be inside the dataset, got in/parts"),
        (1, ["embed", "model", "in", "--out", "x.npz", "--format", "npz"], "--format is for a folder of part files"),
        (2, ["predict", "model", "in"], "several processes need a folder for part files, got none; try --out predictions"),
        (2, ["predict", "model", "in", "--out", "x.jsonl"], "several processes need a folder for part files, got x.jsonl"),
        (2, ["predict", "model", "-", "--out", "parts"], "several processes cannot share stdin"),
        (2, ["embed", "model", "in", "--out", "x.npz"], "several processes need a folder for part files, got x.npz"),
    ],
)
def test_a_mistake_is_one_sentence(
    ranks: int, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    before = sorted(os.listdir())
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert sorted(set(os.listdir()) - {"cache"}) == before


@pytest.mark.slow
def test_two_processes_write_what_one_does(capsys: Capture) -> None:
    pytest.importorskip("pyarrow.parquet")
    assert run(["predict", "model", "in", "--out", "single", "--rows-per-file", "4"]) == 1
    with launch(2, "predict", "model", "in", "--out", "both", "--rows-per-file", "4") as process:
        output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors  # a bad image is no failure, for which torchrun would end the other rank
    assert "41 images, 1 with an error, in 11 parts: both\n" in output
    assert sorted(file_stamps("both")) == sorted(file_stamps("single"))
    assert join_parts("both") == join_parts("single")
    files = [json.loads(line)["file"] for line in join_parts("both").splitlines()]
    assert files == [f"in/{number:02}.png" for number in range(NUM_IMAGES)]


def processes_by_rank(launcher: int) -> dict[int, int]:
    """Return the process ids by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == launcher:
                words = dict(word.split(b"=", 1) for word in (entry / "environ").read_bytes().split(b"\0") if b"=" in word)
                found[int(words[b"RANK"])] = int(entry.name)
        except (OSError, KeyError):
            continue  # ended meanwhile, or not a rank
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find the process of a rank")
def test_after_a_process_is_killed_another_world_size_resumes(tmp_path: Path, capsys: Capture) -> None:
    for number in range(160):  # large ones, so that there is time to kill it
        sample_images.write_image(tmp_path / "many" / f"{number:03}.png", number, (503, 401))
    command = ["embed", "bare", "many", "--out", "parts", "--rows-per-file", "4", "--batch-size", "2", "--workers", "0"]
    with launch(2, *command) as process:
        while process.poll() is None and not (len(file_stamps("parts")) and os.listdir("parts/_manifests")):
            time.sleep(0.01)
        os.kill(processes_by_rank(process.pid)[0 if Path("parts/_manifests/000001.json").exists() else 1], signal.SIGKILL)
        _, errors = process.communicate(timeout=400)
    assert process.returncode != 0, errors
    assert not Path("parts/_done.json").exists()
    complete = {f"part-{path.stem}.npz" for path in Path("parts/_manifests").iterdir()}
    before = {name: stamp for name, stamp in file_stamps("parts").items() if name in complete}
    assert 0 < len(before) < 40
    with launch(3, *command) as process:
        output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert "160 images, in 40 parts: parts\n" in output
    assert {name: stamp for name, stamp in file_stamps("parts").items() if name in before} == before
    assert os.listdir("parts/_in_progress") == []
    assert run(["embed", "bare", "many", "--out", "rows.npz", "--batch-size", "2"]) == 0
    expected, found = load_arrays(Path("rows.npz")), load_arrays(*sorted(Path("parts").glob("*.npz")))
    assert len(set(found["files"].tolist())) == 160
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
