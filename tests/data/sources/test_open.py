"""Whatever a user names is opened as a dataset, or refused with what would work."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.images import image_bytes, write_class_folders
from vitrail.data.pack_writer import write_pack
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_fashion_is_built_in_with_a_validation_split() -> None:
    data = open_dataset("fashion")
    assert [len(dataset) for dataset in data.splits.values()] == [9000, 1000, 2000]
    assert np.bincount(data.validation.labels).tolist() == [100] * 10
    assert open_dataset("fashion").fingerprint == data.fingerprint


def test_panes_takes_options_after_its_name() -> None:
    data = open_dataset("panes:train_size=50,size=32x48,seed=3")
    assert [len(dataset) for dataset in data.splits.values()] == [50, 10, 10]
    assert np.asarray(data.train.read(0)).shape == (32, 48, 3)
    assert data.fingerprint != open_dataset("panes:train_size=50,size=32x48,seed=4").fingerprint


def test_every_kind_of_dataset_has_the_same_images(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path / "data" / "train", {"a": 6, "b": 5}).parent
    write_class_folders(root / "val", {"a": 2, "b": 2}, first=30)
    folder = open_dataset(root)
    rows = ["path,label,split"]
    for split, dataset in (("train", folder.train), ("val", folder.validation)):
        for index, label in enumerate(dataset.labels.tolist()):
            rows.append(f"{Path(dataset.describe(index)).relative_to(tmp_path)},{dataset.class_names[label]},{split}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    write_pack(tmp_path / "stored.pack", {"train": folder.train, "validation": folder.validation}, store="jpeg")
    for other in (open_dataset(tmp_path / "list.csv"), open_dataset(str(tmp_path / "stored.pack"))):
        assert other.class_names == folder.class_names
        for split in ("train", "validation"):
            ours, theirs = folder.splits[split], other.splits[split]
            assert np.array_equal(ours.labels, theirs.labels)
            assert [ours.read(index) for index in range(len(ours))] == [theirs.read(i) for i in range(len(theirs))]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fashon", "there is no 'fashon'; did you mean 'fashion'"),
        ("/nowhere/at/all", "there is no '/nowhere/at/all'; name a folder of images"),
        ("fashion:size=3", "no field is named 'size'"),
        ("", "no dataset is named; try a folder, or 'fashion'"),
        ("panes:sze=32", "no field is named 'sze'; did you mean 'size'"),
        ("panes:size=8", "size must be at least 16 pixels"),
        ("panes:train_size=-5", "train_size must be from 1 to"),
        ("cifar10", "cifar10 is not on this machine yet; `vitrail data download cifar10` downloads it"),
    ],
)
def test_an_unknown_name_is_refused_with_suggestions(name: str, sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        open_dataset(name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("x.zip", "is an archive; unpack it"), ("x.tar.gz", "is an archive; unpack it"), ("x.md", "is not a dataset")],
)
def test_a_file_that_is_not_a_dataset_is_refused(name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(VitrailError, match=sentence):
        open_dataset(tmp_path / name)


def test_the_fingerprint_changes_with_labels_and_files_but_not_with_the_folder(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path / "one", {"a": 6, "b": 6})
    before = open_dataset(root).fingerprint
    shutil.copytree(root, tmp_path / "two")
    assert open_dataset(tmp_path / "two").fingerprint == before
    (root / "a" / "0.jpg").rename(root / "b" / "9.jpg")
    assert open_dataset(root).fingerprint != before


def test_too_few_classes_or_images_are_reported(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "one", {"only": 5})
    assert "there is a single class, 'only': nothing to classify" in open_dataset(tmp_path / "one").notes
    write_class_folders(tmp_path / "rare", {"a": 5, "b": 1})
    assert "only one training image in 'b'" in open_dataset(tmp_path / "rare").notes


def test_a_tar_next_to_class_folders_is_ignored(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "all.tar").write_bytes(image_bytes(1))
    assert open_dataset(tmp_path).class_names == ("a", "b")


def test_a_folder_with_the_name_of_a_dataset_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_class_folders(tmp_path / "fashion", {"a": 3, "b": 3})
    monkeypatch.chdir(tmp_path)
    assert any("write ./fashion to use the folder" in note for note in open_dataset("fashion").notes)
    assert open_dataset("./fashion").class_names == ("a", "b")


def test_a_table_per_split_is_read_as_train_is(tmp_path: Path) -> None:
    """A small test set could not tell by itself that commas separate labels."""
    (tmp_path / "a.csv").write_text("path,labels\n" + "".join(f"{row}.png,{cell}\n" for row, cell in enumerate(
        ['"hat,tie"', "hat", '"tie,shoe"', '"shoe,hat"', "tie"]
    )))  # fmt: skip
    (tmp_path / "b.csv").write_text('path,worn\n5.png,"shoe,tie"\n6.png,\n')
    with pytest.raises(VitrailError, match=r"b.csv has no column for the labels, only path, worn"):
        open_dataset({"train": tmp_path / "a.csv", "test": tmp_path / "b.csv"})
    (tmp_path / "b.csv").write_text('path,tags\n5.png,"shoe,tie"\n6.png,\n')
    parts = {"train": tmp_path / "a.csv", "test": tmp_path / "b.csv"}
    for of_splits in (parts, dict(reversed(parts.items()))):
        data = open_dataset(of_splits, split_fractions=SplitFractions(0.0, 0.0))
        assert data.class_names == ("hat", "shoe", "tie")
        assert [data.test.target(index).tolist() for index in range(2)] == [[0, 1, 1], [0, 0, 0]]
        assert data.notes[0].startswith("train: labels has several labels per image, separated by ','")
        assert data.notes[1].startswith("test: tags has several labels per image")


def test_other_data_has_no_columns_to_name(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 3, "b": 3})
    with pytest.raises(VitrailError, match="has no columns; labels_column and separator are for tables"):
        open_dataset(tmp_path, labels_column="tags")
    with pytest.raises(VitrailError, match="has no target 'age'; targets are columns"):
        open_dataset(tmp_path, target="age")
    data = open_dataset(tmp_path, columns=Columns(several=True))  # as a multi-label model is evaluated on it
    assert data.train.label_sets is not None
    assert sorted(data.train.target(index).tolist() for index in range(len(data.train)))[0] == [0, 1]
