"""``vitrail embed``: the features, file, label and split of every image, read back."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import vitrail
from tests.cli.probe_data import save_models_and_dataset
from tests.data import images as sample_images
from vitrail.cli.main import run
from vitrail.inference.features import embed

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    save_models_and_dataset(tmp_path)


def test_an_npz_and_a_parquet_hold_what_the_function_returns(capsys: Capture) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run(["embed", "model", "set", "--out", "rows.parquet", "--batch-size", "4"]) == 0
    assert capsys.readouterr().out == "22 train, 13 validation, 10 test, 24 features each: rows.parquet\n"
    assert run(["embed", "model", "set", "--out", "rows.npz", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["images"] == {"train": 22, "validation": 13, "test": 10}
    assert (answer["width"], answer["unreadable_images"], answer["out"]) == (24, [], "rows.npz")
    data = vitrail.open_dataset("set")
    rows = parquet.read_table("rows.parquet").to_pydict()
    with np.load("rows.npz", allow_pickle=False) as file:
        arrays = dict(file)
    start = 0
    for split, source in data.splits.items():
        part = slice(start, start + len(source))
        start = part.stop
        expected = embed("model", source)
        assert np.array_equal(arrays["features"][part], expected.values)
        assert np.array_equal(np.array(rows["features"][part], np.float32), expected.values)
        files = [source.describe(index) for index in range(len(source))]
        assert arrays["files"][part].tolist() == rows["file"][part] == files
        assert arrays["names"][arrays["labels"][part]].tolist() == rows["label"][part]
        assert rows["label"][part] == [data.class_names[label] for label in source.labels]
        assert arrays["splits"][part].tolist() == rows["split"][part] == [split] * len(source)
    assert start == len(rows["file"]) == len(arrays["files"])


def test_rows_are_written_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run(["embed", "model", "set", "--out", "rows.parquet", "--batch-size", "4", "--split", "train"]) == 0
    assert parquet.ParquetFile("rows.parquet").num_row_groups == 6  # 22 images in batches of four


@pytest.mark.parametrize("out", ["rows.npz", "rows.parquet"])
def test_labels_are_not_needed_and_a_bad_image_is_left_out(out: str, tmp_path: Path, capsys: Capture) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for number in range(40):
        sample_images.write_image(tmp_path / "loose" / f"{number}.png", number)
    (tmp_path / "loose" / "7.png").write_bytes(b"")
    (tmp_path / "loose" / "notes.txt").touch()
    assert run(["embed", "bare", "loose", "--out", out]) == 0
    assert "39 images, 24 features each; 1 unreadable" in capsys.readouterr().out
    if out == "rows.npz":
        with np.load(out, allow_pickle=False) as file:
            assert set(file["labels"].tolist()) == {-1}
            assert len(file["files"]) == 39
    else:
        assert set(parquet.read_table(out).column("label").to_pylist()) == {None}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["model", "set", "--out", "rows.csv"], "--out must end in .parquet or .npz, got rows.csv; try rows.npz"),
        (["model", "set", "--out", "gone/rows.npz"], "--out must be a file in a folder that exists"),
        (["model", "set", "--out", "folder.npz"], "--out must be a file, got the folder folder.npz; try folder.npz/mine.npz"),
        (["weights.npz", "set", "--out", "weights.npz"], "--out must not be the weights themselves"),
        (["model", "nowhere", "--out", "rows.npz"], "there is no 'nowhere'"),
        (["nothing", "set", "--out", "rows.npz"], "nothing does not exist"),
        (["model", "set", "--out", "rows.npz", "--split", "dev"], "--split must be train, validation or test"),
        (["model", "only", "--out", "rows.npz", "--split", "train"], "only has no images in train; it has test"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path, capsys: Capture) -> None:
    sample_images.write_class_folders(tmp_path / "only" / "test", {"ant": 3, "bee": 4})
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "weights.npz").touch()
    before = sorted(tmp_path.iterdir())
    assert run(["embed", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "cache"] == before


def test_without_pyarrow_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["embed", "model", "set", "--out", "rows.parquet"]) == 2
    assert "a Parquet file needs pyarrow" in capsys.readouterr().err


def test_an_existing_file_is_kept_on_failure(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "rows.npz").write_text("of last time")
    for number in range(9):  # more than are tolerated
        (tmp_path / "set" / "test" / "bee" / f"x{number}.jpg").write_bytes(b"none")
    assert run(["embed", "model", "set", "--out", "rows.npz"]) == 2
    assert "cannot be used" in capsys.readouterr().err
    assert (tmp_path / "rows.npz").read_text() == "of last time"
    assert not list(tmp_path.glob(".rows*"))


def test_without_a_name_the_features_go_to_one_file(tmp_path: Path, capsys: Capture) -> None:
    assert run(["embed", "model", "set"]) == 0
    assert capsys.readouterr().out.endswith(": features.npz\n")
    assert (tmp_path / "features.npz").is_file()
