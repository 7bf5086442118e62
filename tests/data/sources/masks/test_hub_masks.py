"""Masks in a column of a Hugging Face dataset: found by its name and type, and read as those of a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.images import image_bytes
from tests.data.mask_images import HEIGHT, WIDTH, blocks, png, write_mask_folder
from vitrail import open_dataset
from vitrail.data.dataset_check import check_dataset
from vitrail.data.sources.dataset import IGNORED
from vitrail.errors import VitrailError

pytestmark = pytest.mark.parity
datasets: Any = pytest.importorskip("datasets")


def make_rows(
    numbers: range, mask: str = "annotation", values: tuple[int, ...] = (0, 1, 2), labels: bool = False, **masks: Any
) -> Any:
    contents = {number: masks.get(f"mask_{number}", png(blocks(number, values))) for number in numbers}
    columns: dict[str, Any] = {
        "image": [{"bytes": image_bytes(number, (HEIGHT, WIDTH)), "path": None} for number in numbers],
        mask: [None if content is None else {"bytes": content, "path": None} for content in contents.values()],
    }
    features = {"image": datasets.Image(), mask: datasets.Image()}
    if labels:
        columns["species"], features["species"] = [number % 2 for number in numbers], datasets.ClassLabel(names=["cat", "dog"])
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def save(folder: Path, **splits: Any) -> Path:
    datasets.DatasetDict(splits).save_to_disk(folder)
    return folder


@pytest.mark.parametrize("column", ["annotation", "mask", "label", "Segmentation"])
def test_the_column_of_masks_is_found(tmp_path: Path, column: str) -> None:
    """A saved dataset and a folder of the same files have the same classes and masks."""
    folder = save(tmp_path / "set", train=make_rows(range(6), column), validation=make_rows(range(6, 9), column))
    data = open_dataset(folder)
    same = open_dataset(write_mask_folder(tmp_path / "files", {"train": 6, "val": 3}))
    assert data.class_names == same.class_names == ("class 0", "class 1", "class 2")
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 6, "validation": 3, "test": 0}
    assert f"the column {column} has the masks of the images in the column image" in data.notes
    for index in range(6):
        np.testing.assert_array_equal(data.train.mask(index), blocks(index, (0, 1, 2)))
    assert check_dataset(data).ok


def test_names_and_ignored_values(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", train=make_rows(range(4), values=(0, 1, 2, 255)))
    (folder / "id2label.json").write_text(json.dumps({"0": "unlabeled", "1": "road", "2": "car", "7": "lamp"}))
    data = open_dataset(folder)
    assert data.class_names == ("road", "car", "lamp")
    assert set(np.unique(data.train.mask(0))) == {IGNORED, 0, 1}
    data = open_dataset(folder, ignore="car")
    assert data.class_names == ("road", "lamp")
    assert open_dataset(folder, columns=data.columns).fingerprint == data.fingerprint


def test_labels_of_images_come_first_unless_masks_are_chosen(tmp_path: Path) -> None:
    from vitrail.data.sources.columns import Columns

    folder = save(tmp_path / "set", train=make_rows(range(8), labels=True))
    assert open_dataset(folder).class_names == ("cat", "dog")
    assert open_dataset(folder, columns=Columns(masks=True)).class_names == ("class 0", "class 1", "class 2")
    pretraining = open_dataset(folder, labelled=False)
    assert not pretraining.train.has_mask_targets
    plain = save(tmp_path / "plain/set", train=make_rows(range(8), labels=True).remove_columns("annotation"))
    with pytest.raises(VitrailError, match="set has no masks"):
        open_dataset(plain, columns=Columns(masks=True))


def test_missing_and_broken_masks_are_named(tmp_path: Path) -> None:
    rows = make_rows(range(40), mask_3=None, mask_5=b"<html>", mask_9=png(blocks(9, (0, 1), (WIDTH, HEIGHT))))
    data = open_dataset(save(tmp_path / "set", train=rows, test=make_rows(range(50, 52)), validation=make_rows(range(60, 62))))
    assert [(file.location.split(" of ")[0], file.reason) for file in data.left_out] == [("row 4", "has no mask")]
    assert len(data.train) == 39
    bad = {item.location.split(" of ")[0]: item.reason for item in check_dataset(data).bad}
    assert list(bad) == ["row 6", "row 10"]
    assert "its mask in the column annotation of row 6" in bad["row 6"]
    assert "cannot be decoded: it is none of PNG" in bad["row 6"]
    assert f"is {HEIGHT} x {WIDTH} pixels, and its image {WIDTH} x {HEIGHT}" in bad["row 10"]
