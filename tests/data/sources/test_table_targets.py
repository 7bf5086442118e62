"""Several labels per image, numbers or one label: every kind of table reads the same, says what it found, names bad rows."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.sources.columns import Columns, choose_columns
from vitrail.data.sources.dataset import Dataset, SourceSplits
from vitrail.data.sources.label_sets import LabelSets
from vitrail.data.sources.table import read_table
from vitrail.errors import VitrailError

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
SETS = [["hat", "shoe"], ["shoe"], [], ["hat", "dress", "shoe"], ["dress", "hat"], ["shoe", "dress"], ["hat"]]
NAMES = ("dress", "hat", "shoe")
MATRIX = [[int(name in labels) for name in NAMES] for labels in SETS]


def write_csv(path: Path, rows: Sequence[Sequence[Any]], delimiter: str = ",") -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def write_json_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.table(columns), path)
    return path


def with_labels(path: Path, cells: Sequence[Any], delimiter: str = ",") -> Path:
    """Write a CSV with a column of labels."""
    return write_csv(path, [("path", "labels"), *((f"{row}.png", cell) for row, cell in enumerate(cells))], delimiter)


def read(path: Path, **options: Any) -> SourceSplits:
    return read_table(path, choose_columns(**options))


def whole(path: Path, **options: Any) -> Dataset:
    return read(path, **options).splits[""]


def sets_of(dataset: Dataset) -> list[list[str]]:
    assert isinstance(dataset.label_sets, LabelSets)
    return [[dataset.class_names[label] for label in dataset.label_sets.classes_of(index)] for index in range(len(dataset))]


def error_message(path: Path, **options: Any) -> str:
    with pytest.raises(VitrailError) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Several labels ------------------------------------------------------------------------------------------------------


def _csv_of(separator: str, delimiter: str = ",", name: str = "t.csv") -> Any:
    return lambda folder: with_labels(folder / name, [separator.join(labels) for labels in SETS], delimiter)


FILES = [f"{row}.png" for row in range(len(SETS))]
KINDS: dict[str, Any] = {
    "semicolons": _csv_of(";"),
    "spaced": _csv_of(" ; "),
    "bars": _csv_of("|"),
    "commas": _csv_of(","),
    "commas between semicolons": _csv_of(",", ";"),
    "tabs": _csv_of("|", "\t", "t.tsv"),
    "a last separator": lambda folder: with_labels(folder / "t.csv", ["".join(f"{one};" for one in each) for each in SETS]),
    "lists as Python writes them": lambda folder: with_labels(folder / "t.csv", [str(each) for each in SETS]),
    "lists as JSON writes them": lambda folder: with_labels(folder / "t.csv", [json.dumps(each) for each in SETS]),
    "a column per class": lambda folder: write_csv(
        folder / "t.csv", [("path", *NAMES), *((f, *row) for f, row in zip(FILES, MATRIX, strict=True))]
    ),
    "a column of -1 and 1 per class": lambda folder: write_csv(
        folder / "t.csv",
        [("path", *NAMES), *((f, *(2 * one - 1 for one in row)) for f, row in zip(FILES, MATRIX, strict=True))],
    ),
    "JSON lines": lambda folder: write_json_lines(
        folder / "t.jsonl", [{"file": f, "tags": each} for f, each in zip(FILES, SETS, strict=True)]
    ),
    "JSON lines with a missing list first": lambda folder: write_json_lines(
        folder / "t.jsonl", [{"file": f} | ({"tags": each} if each else {}) for f, each in zip(FILES, SETS, strict=True)]
    ),
    "JSON lines with a key per class": lambda folder: write_json_lines(
        folder / "t.jsonl",
        [{"file": f, **dict(zip(NAMES, map(bool, row), strict=True))} for f, row in zip(FILES, MATRIX, strict=True)],
    ),
    "Parquet lists": lambda folder: write_parquet(folder / "t.parquet", {"path": FILES, "labels": SETS}),
    "Parquet text": lambda folder: write_parquet(
        folder / "t.parquet", {"path": FILES, "labels": [";".join(each) or None for each in SETS]}
    ),
    "Parquet columns": lambda folder: write_parquet(
        folder / "t.parquet", {"path": FILES, **{name: [row[at] for row in MATRIX] for at, name in enumerate(NAMES)}}
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_reads_the_same_label_sets(kind: str, tmp_path: Path) -> None:
    source = read(KINDS[kind](tmp_path))
    dataset = source.splits[""]
    assert dataset.class_names == NAMES
    assert sets_of(dataset) == [sorted(each) for each in SETS]
    assert dataset.label_sets is not None
    assert dataset.label_sets.rows(np.arange(len(SETS))).tolist() == MATRIX
    assert dataset.has_label.all()
    assert source.columns.several
    assert "3 labels, 1.6 per image, 1 image without any" in source.notes[0]
    assert read_table(dataset_path(dataset), source.columns).splits[""].class_names == NAMES  # as a later command reads it


def dataset_path(dataset: Dataset) -> Path:
    path = dataset.path(0)
    assert path is not None
    return next(each for each in path.parent.iterdir() if each.stem == "t")


def test_what_was_found_is_said_and_can_be_overridden(tmp_path: Path) -> None:
    path = with_labels(tmp_path / "t.csv", ["hat|shoe", "hat", "shoe", "hat|shoe"])
    assert read(path).notes[0] == (
        "labels has several labels per image, separated by '|': 2 labels, 1.5 per image, 0 images without any; "
        "separator=none reads a cell as one label"
    )
    single = read(path, separator="none")
    assert single.splits[""].class_names == ("hat", "hat|shoe", "shoe")
    assert single.splits[""].labels.tolist() == [1, 0, 2, 1]
    assert single.columns == Columns(labels="labels", separator="none", several=False)
    assert sets_of(whole(path, separator="/")) == [["hat|shoe"], ["hat"], ["shoe"], ["hat|shoe"]]
    unusual = write_csv(tmp_path / "u.csv", [("path", "label", "worn"), ("a", "x", "hat; shoe"), ("b", "y", "hat")])
    assert whole(unusual).class_names == ("x", "y")
    assert sets_of(whole(unusual, labels_column="Worn")) == [["hat", "shoe"], ["hat"]]


def test_single_labels_with_commas_stay_single_and_it_is_said(tmp_path: Path) -> None:
    cells = ["tench, Tinca tinca", "goldfish, Carassius auratus", "tench, Tinca tinca", "cock"]
    source = read(with_labels(tmp_path / "t.csv", cells))
    assert source.splits[""].class_names == ("cock", "goldfish, Carassius auratus", "tench, Tinca tinca")
    assert source.splits[""].label_sets is None
    assert source.notes == (
        "labels with a comma, such as 'tench, Tinca tinca', are read as one label each; separator=, splits them",
    )
    assert sets_of(whole(with_labels(tmp_path / "t.csv", cells), separator=","))[0] == ["Tinca tinca", "tench"]
    assert read(with_labels(tmp_path / "t.csv", cells), separator="none").notes == ()


def test_one_column_of_ones_in_each_row_is_a_label(tmp_path: Path) -> None:
    rows = [("path", "cat", "dog", "age"), ("a", 0, 1, 3), ("b", 1, 0, 7), ("c", 0, 1, 2)]
    source = read(write_csv(tmp_path / "t.csv", rows))
    assert source.splits[""].labels.tolist() == [1, 0, 1]
    assert source.notes == ("each row has a one in a single column, which is its label: 2 classes; age is not used",)
    several = read_table(tmp_path / "t.csv", Columns(several=True)).splits[""]
    assert sets_of(several) == [["dog"], ["cat"], ["dog"]]


def test_lists_of_zeros_and_ones_are_a_class_each(tmp_path: Path) -> None:
    rows = [{"path": "a", "labels": [0, 1, 1]}, {"path": "b", "labels": [0, 0, 0]}, {"path": "c", "labels": [1, 0, 1]}]
    dataset = whole(write_json_lines(tmp_path / "t.jsonl", rows))
    assert dataset.class_names == ("0", "1", "2")
    assert sets_of(dataset) == [["1", "2"], [], ["0", "2"]]
    numbers = [{"path": "a", "labels": [0, 10]}, {"path": "b", "labels": [2]}]  # class numbers
    assert sets_of(whole(write_json_lines(tmp_path / "t.jsonl", numbers))) == [["0", "10"], ["2"]]


@pytest.mark.parity
def test_class_names_of_hugging_faces_lists_keep_their_order(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kind = datasets.List(datasets.ClassLabel(names=["shoe", "hat", "dress", "tie"]))
    features = datasets.Features({"path": datasets.Value("string"), "labels": kind})
    rows = datasets.Dataset.from_dict({"path": ["a", "b", "c"], "labels": [[1, 0], [], [2]]}, features=features)
    rows.to_parquet(tmp_path / "t.parquet")
    dataset = whole(tmp_path / "t.parquet")
    assert dataset.class_names == ("shoe", "hat", "dress", "tie")
    assert sets_of(dataset) == [["shoe", "hat"], [], ["dress"]]


def test_a_label_without_a_training_image_is_said_with_its_row(tmp_path: Path) -> None:
    rows = [("path", "labels", "split"), ("a", "x;y", "train"), ("b", "y", "val"), ("c", "z;y", "test"), ("d", "", "test")]
    source = read(write_csv(tmp_path / "t.csv", rows))
    assert source.notes[-1] == "no training image has the label 'z' (line 4), so it cannot be learned"
    assert {split: sets_of(dataset) for split, dataset in source.splits.items()} == {
        "train": [["x", "y"]],
        "validation": [["y"]],
        "test": [["y", "z"], []],
    }


def test_labels_of_different_spelling_are_said_with_their_rows(tmp_path: Path) -> None:
    source = read(with_labels(tmp_path / "t.csv", ["T-shirt;hat", "hat", "t shirt", "Hat;hat"]))
    assert source.notes[1:] == (
        "the labels 'Hat' (line 5) and 'hat' (line 2) are spelled differently and so are different classes; use one spelling "
        "if they mean the same",
        "the labels 'T-shirt' (line 2) and 't shirt' (line 4) are spelled differently and so are different classes; use one "
        "spelling if they mean the same",
    )
    single = read(with_labels(tmp_path / "t.csv", ["cat", "dog", "Cat"]))
    assert "the labels 'Cat' (line 4) and 'cat' (line 2) are spelled differently" in single.notes[0]
    assert read(with_labels(tmp_path / "t.csv", ["!", "?", "!"])).notes == ()


# Numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_labels_with_decimals_are_numbers_and_it_is_said(kind: str, tmp_path: Path) -> None:
    numbers, path = [0.5, 2.0, -1.25, 7.0], tmp_path / f"t.{kind}"
    if kind == "csv":
        with_labels(path, numbers)
    elif kind == "jsonl":
        write_json_lines(path, [{"path": f"{row}", "labels": number} for row, number in enumerate(numbers)])
    else:
        write_parquet(path, {"path": list("abcd"), "labels": numbers})
    source = read(path)
    assert source.splits[""].target_names == source.columns.targets == ("labels",)
    assert np.array_equal(np.asarray(source.splits[""].targets), np.array(numbers)[:, None])
    assert source.splits[""].class_names == ()
    assert source.notes == (
        "labels has numbers such as 0.5, which are predicted as numbers; labels_column=labels reads them as classes",
    )
    assert len(whole(path, labels_column="labels").class_names) == 4
    assert whole(path, target="LABELS").target_names == ("labels",)


def test_several_targets_are_columns_in_their_order(tmp_path: Path) -> None:
    rows = [("path", "label", "width", "age"), ("a", "x", 1, 30), ("b", "y", " 2.5 ", 4e1)]
    dataset = whole(write_csv(tmp_path / "t.csv", rows), target=["age", "width"])
    assert dataset.target_names == ("age", "width")
    assert np.array_equal(np.asarray(dataset.targets), np.array([[30, 1], [40, 2.5]]))
    assert whole(tmp_path / "t.csv").class_names == ("x", "y")


def test_many_whole_numbers_are_classes_and_the_other_reading_is_said(tmp_path: Path) -> None:
    source = read(with_labels(tmp_path / "t.csv", range(21)))
    assert source.splits[""].class_names == tuple(map(str, range(21)))
    assert source.notes == ("the 21 whole numbers in labels are taken as classes; target=labels predicts them as a number",)
    assert read(with_labels(tmp_path / "t.csv", range(20))).notes == ()


# Mistakes ------------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Sequence[Any], dict[str, Any], str]] = {
    "empty between": (["a;b", "a;;b"], {}, "line 3: labels has an empty label, got 'a;;b'; remove it"),
    "empty first": (["a;b", ";a"], {}, "line 3: labels has an empty label, got ';a'; remove it"),
    "empty in a list": (["['a']", "['a', ' ']"], {}, "line 3: labels has an empty label, got"),
    "no list": (["['a']", "['a'"], {"labels_column": "labels"}, ""),
    "numpy's list": (["['a' 'b']", "['b']"], {}, "line 2: labels must be a list, got \"['a' 'b']\"; try"),
    "nested": (["['a']", "[['a', 'b']]"], {}, "line 3: labels must be a list of names or whole numbers, as in other rows, got"),
    "None": (["['a']", "['a', None]"], {}, "line 3: labels must be a list of names or whole numbers"),
    "NaN": ([0.5, "nan", 1.5], {}, "line 3: the target labels must be a number, got 'nan'; correct it or remove the row"),
    "missing": ([0.5, 1.5, "", 2.5], {}, "line 4: the target labels must be a number, got nothing"),
    "text among numbers": ([0.5, 1.5, 2.5, "?"], {}, "line 5: the target labels must be a number, got '?'"),
    "infinite": ([1, "inf"], {"target": "labels"}, "line 3: the target labels must be a number, got 'inf'"),
    "decimal comma": (["1", "2,5"], {"target": "labels"}, "line 3: the target labels must be a number, got '2,5'"),
    "unknown labels": (["a"], {"labels_column": "lables"}, "has no column 'lables' for the labels; it has labels;"),
    "unknown target": (["a"], {"target": "scor"}, "has no column 'scor' for the target; it has labels"),
    "empty single": (["a", "b", ""], {}, "line 4: the label is empty; fill it in, remove the row, or name the separator"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_row(name: str, tmp_path: Path) -> None:
    cells, options, sentence = MISTAKES[name]
    if sentence:
        assert sentence in error_message(with_labels(tmp_path / "t.csv", cells), **options)
    else:  # a cell that only begins like a list is a label
        assert whole(with_labels(tmp_path / "t.csv", cells), **options).class_names == ("['a'", "['a']")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"p": 1}], "has no column for the image paths, only p"),
        ([{"path": "a", "labels": ["x"]}, {"path": "b", "labels": "y"}], "line 2: labels must be a list of names or whole"),
        ([{"path": "a", "labels": ["x"]}, {"path": "b", "labels": [1.5]}], "line 2: labels must be a list of names or whole"),
        ([{"path": "a", "labels": [{"name": "x"}]}], "line 1: labels must be a list of names or whole numbers"),
        ([{"path": "a", "labels": {"x": 1}}], "line 1: labels must be a list of names or whole numbers"),
        ([{"path": "a", "labels": ["x", True]}], "line 1: labels must be a list of names or whole numbers"),
        (
            [{"path": "a", "hat": 1, "tie": 0, "z": 0}, {"path": "b", "hat": 0, "tie": 1}],
            "line 2: z must be 0 or 1, as in the other",
        ),
        ([{"path": 5, "labels": ["x"]}], "line 1: the path is empty"),
    ],
)
def test_a_mistake_in_json_lines_is_one_sentence(rows: list[dict[str, Any]], sentence: str, tmp_path: Path) -> None:
    assert sentence in error_message(write_json_lines(tmp_path / "t.jsonl", rows))


def test_lines_that_are_no_objects_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"path": "a", "label": "x"}\n\n["b"]\n')
    assert "line 3 must be an object such as" in error_message(path)
    path.write_text('{"path": "a", "label": "x"}\n{"path": \n')
    assert "line 2 is not JSON" in error_message(path)
    path.write_text("\n")
    assert "has no rows" in error_message(path)


def test_an_unquoted_comma_is_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("path,labels\na,hat\nb,hat,shoe\n")
    assert "line 3: there are 3 cells where the header has 2; put a cell with ',' in quotation marks" in error_message(path)
    path.write_text("path,labels\na,hat,\nb,shoe,,\n")
    assert whole(path).class_names == ("hat", "shoe")


def test_a_column_with_an_unknown_value_is_no_class_without_a_word(tmp_path: Path) -> None:
    rows = [("path", "hat", "tie", "shoe"), ("a", 1, 0, 0), ("b", 1, 1, ""), ("c", 1, 0, 1)]
    assert "line 3: shoe must be 0 or 1, as in the other columns of zeros and ones, got nothing" in error_message(
        write_csv(tmp_path / "t.csv", rows)
    )
    rows[2] = ("b", 1, 1, -1)
    assert "line 3: shoe must be 0 or 1, as in the other columns of zeros and ones, got -1" in error_message(
        write_csv(tmp_path / "t.csv", rows)
    )


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([["x"], [None]], "row 2: labels must be a list of names or whole numbers"),
        ([[{"x": 1}], []], "row 1: labels must be a list of names or whole numbers"),
        ([[["x"]], []], "row 1: labels must be a list of names or whole numbers"),
        ([0.5, None], "row 2: the target labels must be a number, got nothing"),
        ([b"x", b"y"], "must hold text, numbers or lists of labels, got bytes"),
    ],
)
def test_a_mistake_in_parquet_is_one_sentence(labels: list[Any], sentence: str, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", {"path": ["a", "b"], "labels": labels})
    assert sentence in error_message(path)


# Size ----------------------------------------------------------------------------------------------------------------

MEASURE = """
import sys
from tests.peak_memory import peak_bytes
from vitrail.data.sources.table import read_table
read_table("few.csv")
before = peak_bytes()
labels = read_table("many.csv").splits["train"].label_sets
print(peak_bytes() - before, len(labels), len(labels.members))
"""


@pytest.mark.parametrize("distinct", [1, 8])
def test_memory_grows_by_a_few_hundred_bytes_a_row(distinct: int, tmp_path: Path) -> None:
    """``distinct``: in how many cells the same labels occur; objects per row would take a thousand bytes and more."""
    count = 100_000
    for name, rows in (("few", 10), ("many", count)):
        with open(tmp_path / f"{name}.csv", "w") as file:
            file.write("path,labels,split\n")
            for row in range(rows):
                labels = [f"label {row // distinct // 20**power % 20 + 20 * power}" for power in range(4)]
                file.write(f"images/{row:09d}.jpg,{';'.join(labels)},{'val' if row % 10 == 5 else 'train'}\n")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    growth, images, members = map(int, done.stdout.split())
    assert (images, members) == (count * 9 // 10, 4 * count * 9 // 10)
    assert growth < (500 if distinct == 1 else 320) * count, growth


def test_a_separator_that_no_cell_has_is_said(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", [("file", "labels"), ("a.png", "red;blue"), ("b.png", "red")])
    assert "one in each cell, since none has the separator '#'" in read(table, separator="#").notes[0]
    assert "separated by ';'" in read(table, separator=";").notes[0]


def test_a_column_that_is_almost_of_zeros_and_ones_is_said_with_its_row(tmp_path: Path) -> None:
    rows = [("file", "red", "blue", "tie", "note"), ("a.png", 1, 1, 0, "x"), ("b.png", 0, 1, 2, "y"), ("c.png", 1, 0, 1, "x")]
    assert "; tie (which has '2' in line 3), note are not used" in read(write_csv(tmp_path / "t.csv", rows)).notes[0]
