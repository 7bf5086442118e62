"""A folder of images is a dataset whatever else is in it (FAULTS 4, 5, 7)."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.data.images import write_class_folders, write_image
from vitrail.data.dataset_check import check_dataset
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.image_folder import read_image_folder, read_unlabelled_folder
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.scan_folder import scan_folder
from vitrail.errors import VitrailError


def files_by_class(dataset: Dataset) -> dict[str, list[str]]:
    """Return the file names of each class."""
    files = {name: [] for name in dataset.class_names} if dataset.class_names else {}  # type: dict[str, list[str]]
    for index, label in enumerate(dataset.labels.tolist()):
        files[dataset.class_names[label]].append(Path(dataset.describe(index)).name)
    return files


def test_class_folders_are_one_dataset_with_numbers_in_order(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"10": 2, "2": 1, "cat": 3})
    parts, notes = read_image_folder(tmp_path)
    assert list(parts) == [""]
    assert parts[""].class_names == ("2", "10", "cat")
    assert files_by_class(parts[""]) == {"2": ["0.jpg"], "10": ["0.jpg", "1.jpg"], "cat": ["0.jpg", "1.jpg", "2.jpg"]}
    assert notes == []
    assert parts[""].read(0) == (tmp_path / "10" / "0.jpg").read_bytes()


@pytest.mark.parametrize("word", ["val", "valid", "validation", "Val", "dev"])
def test_splits_are_recognised_by_every_usual_name(word: str, tmp_path: Path) -> None:
    for split, counts in (("train", {"a": 2, "b": 1}), (word, {"a": 1, "b": 1}), ("test", {"b": 2})):
        write_class_folders(tmp_path / split, counts)
    parts, _ = read_image_folder(tmp_path)
    assert {split: len(dataset) for split, dataset in parts.items()} == {"train": 3, "validation": 2, "test": 2}
    assert all(dataset.class_names == ("a", "b") for dataset in parts.values())
    assert files_by_class(parts["test"]) == {"a": [], "b": ["0.jpg", "1.jpg"]}


def test_a_class_named_train_is_not_a_split(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"train": 2, "bus": 1})
    assert read_image_folder(tmp_path)[0][""].class_names == ("bus", "train")


def test_other_files_are_ignored_and_reported(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 1, "b": 1})
    for name in (".DS_Store", "a/.DS_Store", "a/Thumbs.db", "notes.txt", "a/notes.txt", "b/film.mp4", ".hidden/x.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    write_image(tmp_path / "__MACOSX" / "a" / "._0.jpg", 9)
    write_image(tmp_path / "loose.jpg", 10)
    write_image(tmp_path / "a" / "more" / "deeper" / "1.png", 11)
    parts, notes = read_image_folder(tmp_path)
    assert files_by_class(parts[""]) == {"a": ["0.jpg", "1.png"], "b": ["0.jpg"]}
    assert notes == [
        "1 image in no class folder, skipped: loose.jpg",
        "4 files of other types ignored: 2 .txt, 1 .db, 1 .mp4",
    ]


def test_links_are_followed_but_never_in_a_cycle(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "data", {"a": 1, "b": 1})
    write_class_folders(tmp_path / "elsewhere", {"x": 2}, first=5)
    (tmp_path / "data" / "c").symlink_to(tmp_path / "elsewhere" / "x")
    (tmp_path / "data" / "a" / "round").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "a" / "self").symlink_to("self")
    (tmp_path / "data" / "b" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    parts, notes = read_image_folder(tmp_path / "data")
    assert {name: len(files) for name, files in files_by_class(parts[""]).items()} == {"a": 1, "b": 2, "c": 2}
    assert notes == ["2 links broken or circular: a/round, a/self"]
    (bad,) = check_dataset(open_dataset(tmp_path / "data")).bad  # a dead link to an image is an unusable image
    assert bad.location.endswith("b/gone.jpg")
    assert bad.reason == "cannot be read: No such file or directory"


def test_an_unreadable_folder_is_refused_and_not_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_class_folders(tmp_path, {"a": 1, "b": 1})
    whole = os.scandir

    def scandir(path: Path) -> object:
        if path.name == "b":
            raise PermissionError(13, "Permission denied")  # root may read everything
        return whole(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(VitrailError, match=r"b cannot be read; change its permissions"):
        read_image_folder(tmp_path)


def test_odd_classes_are_read_and_reported(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "train", {"Cat": 2, "cat": 1, "grey wolf": 2, "Ünïcödé 猫": 1, "[red]": 1})
    write_class_folders(tmp_path / "val", {"cat": 1, "new": 1}, first=20)
    (tmp_path / "train" / "empty").mkdir()
    parts, notes = read_image_folder(tmp_path)
    assert set(parts["train"].class_names) == {"Cat", "cat", "grey wolf", "Ünïcödé 猫", "[red]", "new"}
    assert "the class folder train/empty has no images, skipped" in notes
    assert "the class 'new' is only in validation: it has no training images" in notes
    assert "the classes 'Cat' and 'cat' differ only in spelling: are they the same class?" in notes
    assert len(parts["validation"]) == 2


@pytest.mark.parametrize(
    ("built", "sentence"),
    [
        ((), "has no images; put them into one folder per class"),
        (("a/film.mp4",), r"has no images \(but 1 .mp4\)"),
        (("1.jpg", "2.jpg"), "has 2 images but no class folders"),
        (("data/train/a/1.jpg", "data/val/a/2.jpg"), r"has a single folder, data, which has the splits; name .*data instead"),
        (("train/a/1.jpg", "val/a/2.jpg", "valid/a/3.jpg"), "several folders for validation: val, valid; keep one"),
    ],
)
def test_an_unusable_folder_is_refused_with_the_expected_layout(built: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    for number, name in enumerate(built):
        write_image(tmp_path / name, number) if name.endswith("jpg") else (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    with pytest.raises(VitrailError, match=sentence):
        read_image_folder(tmp_path)


def test_images_directly_in_a_split_are_reported(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "train", {"a": 2, "b": 2})
    write_image(tmp_path / "val" / "x.jpg", 9)
    assert "1 image in no class folder, skipped: val/x.jpg" in read_image_folder(tmp_path)[1]


def test_a_file_name_that_is_not_utf8_is_listed(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 1, "b": 1})
    os.link(tmp_path / "a" / "0.jpg", os.fsencode(tmp_path / "a") + b"/\xff\xfe.jpg")
    parts, _ = read_image_folder(tmp_path)
    assert len(parts[""]) == 3
    assert all(parts[""].read(index) for index in range(3))


def test_listing_reports_progress_and_ends_with_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.sources.scan_folder.FILES_PER_REPORT", 2)
    write_class_folders(tmp_path, {"a": 5, "b": 2})
    ticks: list[tuple[str, int, int | None]] = []
    listing = scan_folder(tmp_path, lambda *tick: ticks.append(tick))
    assert len(listing.paths) == 7
    assert [done for _, done, _ in ticks] == sorted(done for _, done, _ in ticks)
    assert len(ticks) > 2
    assert ticks[-1] == ("listing", 7, 7)


@pytest.mark.slow
def test_a_hundred_thousand_files_are_listed(tmp_path: Path) -> None:
    """All of them are found and none is opened; for the speed see `docs/log.md`."""
    for folder in range(100):
        (tmp_path / f"c{folder}").mkdir()
        for file in range(1000):
            os.mknod(tmp_path / f"c{folder}" / f"{file}.jpg")
    parts, notes = read_image_folder(tmp_path)
    assert np.bincount(parts[""].labels).tolist() == [1000] * 100
    assert notes == []


def test_without_labels_every_image_below_a_folder_is_read(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"summer/beach": 2, "winter": 1})
    write_image(tmp_path / "loose.jpg", 9)
    parts, _ = read_unlabelled_folder(tmp_path)
    assert list(parts) == [""]
    names = [Path(parts[""].describe(index)).relative_to(tmp_path).as_posix() for index in range(len(parts[""]))]
    assert names == ["loose.jpg", "summer/beach/0.jpg", "summer/beach/1.jpg", "winter/0.jpg"]
    assert parts[""].labels.tolist() == [-1, 0, 0, 1]
    assert parts[""].class_names == ("summer", "winter")
    data = open_dataset(tmp_path, labelled=False)
    assert sum(len(part) for part in data.splits.values()) == 4


def test_without_labels_a_split_needs_no_classes(tmp_path: Path) -> None:
    for number, name in enumerate(("train/0.jpg", "train/1.jpg", "train/cat/2.jpg", "val/3.jpg", "elsewhere/4.jpg")):
        write_image(tmp_path / name, number)
    parts, _ = read_unlabelled_folder(tmp_path)
    assert {split: len(part) for split, part in parts.items()} == {"train": 4, "validation": 1}
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitrailError, match="no images"):
        read_unlabelled_folder(tmp_path / "empty")


def test_loose_images_are_a_dataset_without_labels(tmp_path: Path) -> None:
    for number in range(20):
        write_image(tmp_path / f"{number}.jpg", number)
    with pytest.raises(VitrailError, match="no class folders"):
        open_dataset(tmp_path)
    data = open_dataset(tmp_path, labelled=False)
    assert sum(len(part) for part in data.splits.values()) == 20
    assert data.class_names == ()
