"""Tables with a row for each box."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.coco_images import write_image
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError

SIZE = (20, 32)
HEADER = "path,label,left,top,right,bottom"
ROWS = ["b.png,dog,1,2,4,8", "a.png,cat,3,4,9.5,6", "b.png,cat,0,0,32,20", "c.png,,,,,"]


def write(folder: Path, rows: list[str], header: str = HEADER, name: str = "boxes.csv") -> Path:
    for seed, stem in enumerate("abc"):
        write_image(folder / f"{stem}.png", SIZE, seed)
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def read(path: Path, **columns: Any) -> DatasetSplits:
    return open_dataset(path, columns=Columns(**columns), split_fractions=SplitFractions(0.0, 0.0))


def test_an_image_has_the_boxes_of_its_rows_and_none_if_they_are_empty(tmp_path: Path) -> None:
    data = read(write(tmp_path, ROWS))
    train = data.train
    assert train.has_box_targets
    assert data.class_names == ("cat", "dog")
    assert [train.title(index) for index in range(len(train))] == ["b.png", "a.png", "c.png"]
    assert train.objects(0).boxes.tolist() == [[1, 2, 4, 8], [0, 0, 32, 20]]
    assert train.objects(0).labels.tolist() == [1, 0]
    assert train.objects(1).boxes.tolist() == [[3, 4, 9.5, 6]]
    assert len(train.objects(2)) == 0
    assert data.columns == Columns(labels="label", boxes=True)
    assert read(tmp_path / "boxes.csv", labels="label", boxes=True).fingerprint == data.fingerprint
    notes = "\n".join(data.notes)
    assert "3 boxes of 2 classes (cat, dog): 3 in 3 images" in notes
    assert "boxes are in the columns left, top, right, bottom, in pixels" in notes


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("filename,width,height,class,xmin,ymin,xmax,ymax", "a.png,32,20,cat,3,4,9,6"),  # TensorFlow's
        ("file,x1,y1,x2,y2,class", "a.png,3,4,9,6,cat"),
        ("file,x0,y0,x1,y1,class", "a.png,3,4,9,6,cat"),
        (
            "label_name,bbox_x,bbox_y,bbox_width,bbox_height,image_name,image_width,image_height,path",
            "cat,3,4,6,2,x,32,20,a.png",
        ),
        ("path,x,y,w,h,name", "a.png,3,4,6,2,cat"),
        ("path,left,top,width,height,category", "a.png,3,4,6,2,cat"),
        ("path,LabelName,XMin,XMax,YMin,YMax,IsGroupOf,label", "a.png,no,0.09375,0.28125,0.2,0.3,0,cat"),  # Open Images'
        ("Path;Label;Box XMin;Box YMin;Box XMax;Box YMax", "a.png;cat;3;4;9;6"),
    ],
)
def test_columns_are_found_by_their_names(header: str, row: str, tmp_path: Path) -> None:
    data = read(write(tmp_path, [row], header))
    assert data.class_names == ("cat",)
    assert data.train.objects(0).boxes.round(9).tolist() == [[3, 4, 9, 6]]
    note = next(note for note in data.notes if note.startswith("boxes are in the columns"))
    assert ("the last two its width and height" in note) == any(word in header for word in ("bbox_x", ",w,h", "left,top,width"))
    assert ("fractions of the image" in note) == ("IsGroupOf" in header)


def test_splits_and_crowds_have_columns(tmp_path: Path) -> None:
    rows = ["a.png,cat,3,4,9,6,train,1", "b.png,cat,3,4,9,6,val,0", "a.png,cat,3,4,9,8,train,", "c.png,dog,1,1,2,2,test,0"]
    data = read(write(tmp_path, rows, f"{HEADER},split,crowd"))
    assert [len(part) for part in data.splits.values()] == [1, 1, 1]
    assert data.train.objects(0).crowd.tolist() == [True, False]
    assert data.train.class_names == ("cat", "dog")
    rows[2] = rows[2].replace("train", "test")
    with pytest.raises(VitrailError, match=r"boxes\.csv, line 4: a\.png is in test, and in line 2 in train; give all rows"):
        read(write(tmp_path, rows, f"{HEADER},split,crowd"))
    rows[2] = rows[2].replace("test", "holdout")
    with pytest.raises(VitrailError, match=r"line 4: the split must be train, validation or test, got 'holdout'"):
        read(write(tmp_path, rows, f"{HEADER},split,crowd"))


def test_boxes_without_a_class_are_of_one(tmp_path: Path) -> None:
    data = read(write(tmp_path, ["a.png,3,4,9,6"], "path,xmin,ymin,xmax,ymax"))
    assert data.class_names == ("object",)
    assert "no column names a class, so all boxes are of one, 'object'" in data.notes


def test_lines_of_json_and_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    write(tmp_path, [])
    rows: list[dict[str, Any]] = [
        {"path": "b.png", "label": 2, "xmin": 3, "ymin": 4, "xmax": 9.5, "ymax": 6},
        {"path": "a.png", "label": None, "xmin": None, "ymin": None, "xmax": None, "ymax": None},
        {"path": "b.png", "label": 10, "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2},
    ]
    (tmp_path / "boxes.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "boxes.parquet")
    for name in ("boxes.jsonl", "boxes.parquet"):
        data = read(tmp_path / name)
        assert data.class_names == ("2", "10")
        assert data.train.objects(0).boxes.tolist() == [[3, 4, 9.5, 6], [1, 1, 2, 2]]
        assert data.train.objects(0).labels.tolist() == [0, 1]
        assert len(data.train.objects(1)) == 0


def test_faulty_boxes_are_named_by_their_line(tmp_path: Path) -> None:
    """Also where only the image itself knows its size."""
    rows = ["a.png,cat,3,4,3,9", "", "a.png,cat,33,1,40,9", "b.png,cat,nan,1,4,9", "a.png,cat,3,4,9,6", "a.png,dog,30,1,40,9"]
    data = read(write(tmp_path, rows))
    assert len(data.train.objects(0)) == 2
    found = {data.train.describe_object(fault.image, fault.number): fault.kind for fault in data.train.box_faults()}
    path = tmp_path / "boxes.csv"
    kinds = {2: "degenerate", 4: "outside", 5: "not finite", 7: "partly outside"}
    assert found == {f"{path}, line {line}": kind for line, kind in kinds.items()}
    assert f"1 box is degenerate, without a width or a height, and left out: {path}, line 2" in data.notes


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("a.png,cat,here,4,9,6", r"boxes\.csv, line 3: left must be a number, got 'here'"),
        ("a.png,cat,3,4,9,", r"line 3: the box has no bottom; fill it in, or leave all four empty"),
        ("a.png,,3,4,9,6", r"line 3: the box has no label"),
        (",cat,3,4,9,6", r"line 3: the path is empty"),
    ],
)
def test_a_row_that_is_wrong_is_named(row: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=sentence):
        read(write(tmp_path, [ROWS[0], row]))


def test_a_table_without_boxes_is_refused_where_they_are_needed(tmp_path: Path) -> None:
    path = write(tmp_path, ["a.png,cat"], "path,label")
    with pytest.raises(VitrailError, match="has no columns of boxes, only label; name four of them xmin, ymin, xmax, ymax"):
        read(path, boxes=True)


def test_boxes_are_left_aside_by_choice_and_images_are_read_once(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS[:3])
    assert read(path, boxes=False).train.labels.tolist() == [1, 0, 0]
    assert read(path, targets=("left",)).target_names == ("left",)
    data = open_dataset(path, labelled=False)
    assert sum(map(len, data.splits.values())) == 2
    assert not data.train.has_box_targets


def test_the_fingerprint_changes_with_any_box(tmp_path: Path) -> None:
    fingerprints = {
        read(write(tmp_path, [row, "b.png,dog,1,1,2,2"])).fingerprint
        for row in ("a.png,cat,3,4,9,6", "a.png,cat,3,4,9,7", "a.png,dog,3,4,9,6", "a.png,,,,,")
    }
    assert len(fingerprints) == 4
