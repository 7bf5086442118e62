"""A table lists images and their labels; what is missing is named with its line."""

import io
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources import parquet as parquets
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.table import read_table
from vitrail.errors import VitrailError

ROWS = [("a.png", "cat", "train"), ("b/ä c.png", "dog", "val"), ("b/d.png", "cat", "test"), ("e.png", "bird", "Training")]


def image_bytes(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((3, 5, 3), number, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def write_images(folder: Path) -> list[bytes]:
    contents = []
    for number, (path, _, _) in enumerate(ROWS):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(image_bytes(number))
        contents.append(image_bytes(number))
    return contents


def write_text(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def read_splits(path: Path, label: str | None = None, image: str | None = None, split: str | None = None) -> dict[str, Dataset]:
    return read_table(path, Columns(labels=label), image=image, split=split).splits


def error_message(path: Path, **columns: str) -> str:
    with pytest.raises(VitrailError) as caught:
        read_splits(path, **columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents_by_split(splits: dict[str, Dataset]) -> dict[str, list[tuple[bytes, str]]]:
    return {
        split: [(bytes(dataset.read(index)), dataset.class_names[dataset.labels[index]]) for index in range(len(dataset))]
        for split, dataset in splits.items()
    }


# CSV -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(("name", "between"), [("t.csv", ","), ("t.csv", ";"), ("t.tsv", "\t"), ("t.csv", ", ")])
def test_every_dialect_of_a_table_reads_the_same(name: str, between: str, newline: str, encoding: str, tmp_path: Path) -> None:
    contents = write_images(tmp_path)
    lines = [between.join(("Path", "LABEL", "split")), *(between.join(row) for row in ROWS), ""]
    splits = read_splits(write_text(tmp_path / name, newline.join(lines), encoding))
    assert list(splits) == ["train", "validation", "test"]
    assert all(dataset.class_names == ("bird", "cat", "dog") for dataset in splits.values())
    assert all(dataset.labels.dtype == np.int64 for dataset in splits.values())
    assert contents_by_split(splits) == {
        "train": [(contents[0], "cat"), (contents[3], "bird")],
        "validation": [(contents[1], "dog")],
        "test": [(contents[2], "cat")],
    }
    assert splits["validation"].describe(0) == str(tmp_path / "b" / "ä c.png")


def test_numbers_are_sorted_by_value_and_a_table_without_splits_is_one_dataset(tmp_path: Path) -> None:
    splits = read_splits(write_text(tmp_path / "t.csv", "label,file\n10,a\n9,b\n2,c\n10,d\n"))
    assert list(splits) == [""]
    assert splits[""].class_names == ("2", "9", "10")
    assert splits[""].labels.tolist() == [2, 1, 0, 2]


def test_paths_may_be_absolute_leave_the_folder_and_contain_commas(tmp_path: Path) -> None:
    write_images(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "x, y.png").write_bytes(b"xy")
    rows = f'image,y\n{tmp_path / "a.png"},1\n../e.png,2\n"../x, y.png",2\n'
    dataset = read_splits(write_text(tmp_path / "tables" / "t.csv", rows))[""]
    assert [dataset.read(index) for index in range(3)] == [image_bytes(0), image_bytes(3), b"xy"]


def test_unusual_columns_can_be_named(tmp_path: Path) -> None:
    path = write_text(tmp_path / "t.csv", "where,what,label,part\na,cat,1,train\nb,dog,2,dev\n")
    splits = read_splits(path, image="where", label="what", split="Part")
    assert {split: dataset.class_names for split, dataset in splits.items()} == dict.fromkeys(
        ("train", "validation"), ("cat", "dog")
    )
    assert "has no column 'wher' for the image paths; it has where, what, label, part; did you mean 'where'?" in error_message(
        path, image="wher"
    )
    sentence = error_message(path)
    assert "has no column for the image paths, only where, what, label, part; rename one to any of path, file," in sentence


def test_a_column_of_other_values_under_a_splits_name_is_ignored(tmp_path: Path) -> None:
    path = write_text(tmp_path / "t.csv", "path,label,fold\na,x,0\nb,y,1\n")
    assert list(read_splits(path)) == [""]
    assert "line 2: the split must be train, validation or test, got '0'" in error_message(path, split="fold")
    path = write_text(tmp_path / "t.csv", "path,label,set\na,x,train\nb,y,tset\n")
    assert "line 3: the split must be train, validation or test, got 'tset'" in error_message(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("path,label\na,x\n\n,y\n", "line 4: the path is empty"),
        ("path,label\na,x\nb,  \n", "line 3: the label is empty"),
        ("path,label\na,x\nb\n", "line 3: the label is empty"),
        ("path,label\na,x\nb\0c,y\n", "line 3: the path is empty"),
        ("path,label\n", "has no rows"),
        ("", "has no rows"),
        ("path\na\n", "has no column for the labels, only path; name it by labels_column=NAME"),
        (f"path,label\na,{'x' * 200_000}\n", "is not a readable CSV"),
    ],
)
def test_what_is_missing_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in error_message(write_text(tmp_path / "t.csv", text))


def test_a_table_of_another_encoding_or_none_is_refused(tmp_path: Path) -> None:
    assert "is not UTF-8 text" in error_message(write_text(tmp_path / "t.csv", "path,label\nä.png,x\n", "latin-1"))
    assert "is not a file; a table is a .csv, .tsv, .jsonl or .parquet file" in error_message(tmp_path / "gone.csv")
    assert "is not a file" in error_message(tmp_path)


def test_a_missing_image_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"here")
    dataset = read_splits(write_text(tmp_path / "t.csv", "path,label\na,x\nb,y\n"))[""]
    assert dataset.read(0) == b"here"
    with pytest.raises(OSError, match="b"):
        dataset.read(1)


# Parquet -------------------------------------------------------------------------------------------------------------


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.table(columns), path, **options)
    return path


def test_parquet_and_csv_read_the_same(tmp_path: Path) -> None:
    write_images(tmp_path)
    comma = write_text(tmp_path / "t.csv", "\n".join(["path,label,split", *(",".join(row) for row in ROWS)]))
    columns = dict(zip(("path", "label", "split"), map(list, zip(*ROWS, strict=True)), strict=True))
    assert contents_by_split(read_splits(parquet(tmp_path / "t.parquet", columns))) == contents_by_split(read_splits(comma))


@pytest.mark.parametrize("kind", ["plain", "pair"])
def test_images_inside_the_file_come_out_as_they_went_in(kind: str, tmp_path: Path) -> None:
    contents = [image_bytes(number) for number in range(11)]
    cells = contents if kind == "plain" else [{"bytes": content, "path": "x.png"} for content in contents]
    columns = {"img": cells, "path": ["gone"] * 11, "label": [number % 3 + 8 for number in range(11)]}
    dataset = read_splits(parquet(tmp_path / "t.parquet", columns, row_group_size=2))[""]
    assert dataset.class_names == ("8", "9", "10")
    assert dataset.labels.tolist() == [number % 3 for number in range(11)]
    order = [7, 0, 10, 3, 3, 9, 1, 2, 8, 4, 6, 5]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(dataset.read, order)) == [contents[number] for number in order]
    again = pickle.loads(pickle.dumps(dataset))  # as for another process
    assert again.read(9) == contents[9]
    assert dataset.describe(9) == f"row 10 of {tmp_path / 't.parquet'}"


def test_a_pair_without_bytes_is_read_from_its_path_and_one_without_either_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image_bytes(3))
    cells = [{"bytes": None, "path": "a.png"}, {"bytes": None, "path": None}, {"bytes": b"x", "path": None}]
    dataset = read_splits(parquet(tmp_path / "t.parquet", {"image": cells, "label": ["x", "y", "y"]}))[""]
    assert dataset.read(0) == image_bytes(3)
    assert dataset.read(2) == b"x"
    with pytest.raises(VitrailError, match=r"row 2 of .* has no image"):
        dataset.read(1)


@pytest.mark.parity
def test_class_names_written_by_hugging_faces_library_keep_their_order(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ant", "cow"])})
    rows = {"image": [{"bytes": image_bytes(number), "path": None} for number in range(4)], "label": [2, 0, 2, 0]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "t.parquet")
    dataset = read_splits(tmp_path / "t.parquet")[""]
    assert dataset.class_names == ("zebra", "ant", "cow")
    assert dataset.labels.tolist() == [2, 0, 2, 0]
    assert [dataset.read(number) for number in range(4)] == [image_bytes(number) for number in range(4)]


def test_integers_stay_integers_and_missing_values_are_named(tmp_path: Path) -> None:
    columns = {"path": ["a", "b", "c"], "label": [2.0, 10.0, 2.0]}
    assert read_splits(parquet(tmp_path / "t.parquet", columns))[""].class_names == ("2", "10")
    columns = {"path": ["a", "b", "c"], "label": [1, None, 1]}
    assert "row 2: the label is empty" in error_message(parquet(tmp_path / "t.parquet", columns))
    columns = {"path": ["a", "b", "c"], "label": [{"x": 1}, {"x": 2}, {"x": 3}]}
    assert "the column label of" in error_message(parquet(tmp_path / "t.parquet", columns))
    assert "has no rows" in error_message(parquet(tmp_path / "t.parquet", {"path": [], "label": []}))


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "middle"])
def test_a_damaged_parquet_file_is_named(damage: str, tmp_path: Path) -> None:
    cells = [bytes(np.random.default_rng(number).integers(0, 256, 5000, np.uint8)) for number in range(6)]
    path = parquet(tmp_path / "t.parquet", {"image": cells, "label": list("xyzxyz")}, row_group_size=2, compression="snappy")
    whole = path.read_bytes()
    ends = {"cut": whole[:-9], "garbage": b"no parquet" * 30, "empty": b"", "middle": whole[:9] + b"\xff" * 4000 + whole[4009:]}
    path.write_bytes(ends[damage])
    if damage == "middle":
        dataset = read_splits(path)[""]
        with pytest.raises(VitrailError, match=r"row group 0 of .* cannot be read"):
            dataset.read(1)
        assert dataset.read(5) == cells[5]
    else:
        assert "is not a readable Parquet file" in error_message(path)


def test_a_file_that_changes_after_it_was_opened_is_noticed(tmp_path: Path) -> None:
    path = parquet(tmp_path / "t.parquet", {"image": [b"1", b"2", b"3"], "label": list("xyz")}, row_group_size=1)
    dataset = read_splits(path)[""]
    assert dataset.read(0) == b"1"
    parquet(path, {"image": [b"22", b"1", b"33"], "label": list("zyx")}, row_group_size=1)
    with pytest.raises(VitrailError, match="has changed since it was opened"):
        dataset.read(1)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "t.parquet", "anything")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert error_message(path) == "a Parquet table needs pyarrow; try pip install 'vitrail[datasets]'"


def test_a_row_group_too_large_to_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquets, "MAX_ROW_GROUP_BYTES", 1000)
    columns, plain = (
        {"image": [b"x" * 900, b"y" * 900], "label": ["a", "b"]},
        {"use_dictionary": False, "write_statistics": False},
    )
    assert "rewrite it with row_group_size=1000" in error_message(parquet(tmp_path / "t.parquet", columns, **plain))
    assert len(read_splits(parquet(tmp_path / "t.parquet", columns, row_group_size=1, **plain))[""]) == 2
