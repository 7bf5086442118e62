"""Boxes in YOLO's layout."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.coco_images import write_image
from vitrail.data.dataset_check import check_dataset
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError

SIZE = (20, 32)
YAML = "train: images/train\nval: images/val\ntest: images/test\nnames:\n  0: cat\n  1: dog\n  2: parrot\n"
BOX, POLYGON = "1 0.5 0.5 0.25 0.5", "0 0.125 0.1 0.5 0.2 0.25 0.75"
BOXES = Columns(boxes=True)


def write(root: Path, labels: dict[str, str | None]) -> None:
    """Write images and label files by ``split/name``."""
    (root / "data.yaml").write_text(YAML)
    for seed, (name, text) in enumerate(labels.items()):
        write_image(root / "images" / f"{name}.png", SIZE, seed)
        path = root / "labels" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)


def read(root: Path, columns: Columns | None = None) -> DatasetSplits:
    return open_dataset(root, columns=columns, split_fractions=SplitFractions(0.0, 0.0))


def test_five_numbers_are_a_box(tmp_path: Path) -> None:
    write(tmp_path, {"train/a": f"{BOX}\n\n2 0.25 0.75 0.5 0.5\n", "val/b": BOX})
    data = read(tmp_path)
    assert data.train.has_box_targets
    assert data.columns == BOXES
    assert data.class_names == ("cat", "dog", "parrot")
    assert data.train.objects(0).boxes.tolist() == [[12, 5, 20, 15], [0, 10, 16, 20]]
    assert data.train.objects(0).labels.tolist() == [1, 2]
    assert data.train.objects(0).areas.tolist() == [80, 160]
    assert "3 boxes of 3 classes (cat, dog, parrot): 2 in 1 image of train, 1 in 1 image of validation" in data.notes
    assert check_dataset(data).ok


def test_a_polygon_has_a_box_around_it_if_boxes_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {"train/a": f"{BOX}\n{POLYGON}\n"})
    assert read(tmp_path).train.has_mask_targets
    for columns in (BOXES, Columns(boxes=True, masks=False)):
        data = read(tmp_path, columns)
        assert data.train.objects(0).boxes.tolist() == [[12, 5, 20, 15], [4, 2, 16, 15]]
        assert data.train.objects(0).labels.tolist() == [1, 0]
        assert "train: 1 line has a polygon; boxes are around them" in data.notes
        assert not data.train.has_mask_targets


def test_an_image_without_a_label_file_has_no_objects_and_is_told_apart(tmp_path: Path) -> None:
    write(tmp_path, {"train/a": BOX, "train/b": None, "train/c": "", "train/d": "\n", "train/e": None})
    data = read(tmp_path)
    assert [len(data.train.objects(index)) for index in range(5)] == [1, 0, 0, 0, 0]
    assert "4 images without objects, first " in "\n".join(data.notes)
    assert "train: 2 images have no label file, taken for images without objects, as YOLO has it, first b.png" in data.notes
    assert "train: 2 images have an empty label file" in data.notes


def test_a_test_split_without_any_label_file_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"train/a": BOX, "test/b": None})
    data = read(tmp_path)
    assert len(data.test) == 0
    assert any("test is left out: none of its 1 images has a label file" in note for note in data.notes)
    (tmp_path / "labels/train/a.txt").unlink()
    with pytest.raises(VitrailError, match=r"has no label file for any of 1 images in train, first .*labels/train/a\.txt"):
        read(tmp_path)


def test_degenerate_boxes_are_named_by_their_line(tmp_path: Path) -> None:
    lines = [BOX, "", "0 0.5 0.5 0 0.1", "0 0.5 0.5 0.1 -0.1", "0 nan 0.5 0.1 0.1", "0 1.2 0.5 0.1 0.1", "0 1 0.5 0.2 0.1"]
    write(tmp_path, {"train/a": "\n".join(lines)})
    data = read(tmp_path)
    assert len(data.train.objects(0)) == 2
    assert [(fault.number, fault.kind) for fault in data.train.box_faults()] == [
        (3, "degenerate"), (4, "degenerate"), (5, "not finite"), (6, "outside"), (7, "partly outside")
    ]  # fmt: skip
    file = tmp_path / "labels/train/a.txt"
    remark = "2 boxes are degenerate, without a width or a height, and left out"
    assert f"{remark}: {file}, line 3, {file}, line 4" in data.notes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("3 0.5 0.5 0.1 0.1", r"a\.txt whose line 2 must have a class from 0 to 2, got 3"),
        ("1 320 240 100 50", "must have fractions of the image from 0 to 1, got 320"),
        ("1 inf 0.5 0.1 0.1", "must have fractions of the image from 0 to 1, got inf"),
        ("dog 0.5 0.5 0.1 0.1", "must have a class and numbers, got 'dog 0.5"),
        ("1 0.5 0.5 0.1", "must have a class and at least three corners, x and y each, got 4 numbers"),
    ],
)
def test_a_line_that_is_wrong_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    write(tmp_path, {"train/a": f"{BOX}\n{text}", "train/b": BOX})
    data = read(tmp_path)
    with pytest.raises(VitrailError, match=sentence):
        data.train.objects(0)
    assert len(data.train.objects(1)) == 1
    assert any("1 image whose annotations cannot be used, first" in note for note in data.notes)
    (tmp_path / "labels/train/b.txt").write_text(text)
    (tmp_path / "labels/train/a.txt").unlink()
    with pytest.raises(VitrailError, match=sentence.removeprefix(r"a\.txt whose line 2 ")):
        read(tmp_path)


def test_masks_cannot_be_drawn_from_boxes(tmp_path: Path) -> None:
    write(tmp_path, {"train/a": BOX})
    with pytest.raises(VitrailError, match=r"has 1 boxes and no polygon in train, first .*a\.txt; a mask is drawn"):
        read(tmp_path, Columns(masks=True))


def test_the_fingerprint_changes_with_any_box(tmp_path: Path) -> None:
    fingerprints = set()
    for text in (BOX, f"{BOX}\n{BOX}", BOX.replace("1 ", "0 "), "1 0.5 0.5 0.25 0.6", ""):
        write(tmp_path, {"train/a": text, "train/b": BOX})
        fingerprints.add(read(tmp_path).fingerprint)
    assert len(fingerprints) == 5


def test_boxes_are_those_that_were_written(tmp_path: Path) -> None:
    """To the rounding of six digits."""
    rng = np.random.default_rng(0)
    corners = np.sort(rng.uniform(0, 1, (50, 2, 2)), axis=1).reshape(-1, 4)
    centres, sides = (corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]
    rows = zip(centres.tolist(), sides.tolist(), strict=True)
    write(tmp_path, {"train/a": "\n".join(f"0 {x:.6f} {y:.6f} {width:.6f} {height:.6f}" for (x, y), (width, height) in rows)})
    expected = corners * [SIZE[1], SIZE[0], SIZE[1], SIZE[0]]
    np.testing.assert_allclose(read(tmp_path).train.objects(0).boxes, expected, atol=1e-4)
