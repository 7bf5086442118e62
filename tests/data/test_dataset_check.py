"""The dataset check names every bad file, duplicate and leak before training, and reads nothing twice (FAULTS 1, 6, 7)."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.images import image_bytes, write_class_folders, write_image
from tests.data.test_decode import BAD
from vitrail.data import image_index
from vitrail.data.dataset_check import check_dataset, drop_unusable
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def write_splits(root: Path, train: int = 20, validation: int = 4) -> Path:
    write_class_folders(root / "train", {"a": train, "b": train})
    write_class_folders(root / "val", {"a": validation, "b": validation}, first=1000)
    return root


def test_a_good_folder_passes(tmp_path: Path) -> None:
    report = check_dataset(open_dataset(write_splits(tmp_path)))
    assert report.ok
    assert report.num_images == 48
    assert report.classes == {"a": {"train": 20, "validation": 4, "test": 0}, "b": {"train": 20, "validation": 4, "test": 0}}
    assert report.sizes == {"height": (24, 24, 24), "width": (20, 20, 20)}
    assert report.image_formats == {"JPEG RGB": 48}


def test_every_bad_file_is_named_with_its_reason(tmp_path: Path) -> None:
    write_splits(tmp_path)
    for number, content in enumerate(BAD.values()):
        (tmp_path / "train" / "a" / f"bad{number}.jpg").write_bytes(content)
    (tmp_path / "val" / "b" / "bad.png").write_bytes(b"")
    report = check_dataset(open_dataset(tmp_path))
    assert not report.ok
    assert {Path(item.location).name for item in report.bad} == {"bad.png", *(f"bad{number}.jpg" for number in range(len(BAD)))}
    assert all(item.reason.startswith("cannot be decoded: ") for item in report.bad)
    assert [item.split for item in report.bad].count("validation") == 1
    assert [len(dataset) for dataset in report.data.splits.values()] == [40, 8, 0]
    assert not any("bad" in Path(report.data.train.describe(index)).name for index in range(40))


def test_training_skips_a_few_bad_images_and_stops_at_too_many(tmp_path: Path) -> None:
    write_splits(tmp_path)
    for number in range(5):
        (tmp_path / "train" / "a" / f"{number}.jpg").write_bytes(b"<html>")
    assert len(drop_unusable(open_dataset(tmp_path), max_bad_fraction=0.2).data.train) == 35
    with pytest.raises(
        VitrailError, match=r"5 of 48 images cannot be used, more than the tolerated fraction of 0.05, first .*0.jpg"
    ):
        drop_unusable(open_dataset(tmp_path))


def test_leaks_duplicates_and_conflicts_are_told_apart(tmp_path: Path) -> None:
    write_splits(tmp_path)
    (tmp_path / "val" / "a" / "leak.jpg").write_bytes((tmp_path / "train" / "a" / "3.jpg").read_bytes())
    (tmp_path / "train" / "b" / "twice.jpg").write_bytes((tmp_path / "train" / "b" / "3.jpg").read_bytes())
    (tmp_path / "train" / "b" / "other.jpg").write_bytes((tmp_path / "train" / "a" / "5.jpg").read_bytes())
    report = check_dataset(open_dataset(tmp_path))
    assert not report.ok
    (leak,) = report.leaks
    assert {Path(where).name for where in leak.locations} == {"leak.jpg", "3.jpg"}
    assert set(leak.splits) == {"train", "validation"}
    (copies,) = report.duplicates
    assert {Path(where).name for where in copies.locations} == {"twice.jpg", "3.jpg"}
    (conflict,) = report.conflicts
    assert set(conflict.classes) == {"a", "b"}


def test_nothing_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = check_dataset(open_dataset(write_splits(tmp_path)))
    monkeypatch.setattr(image_index, "_index_image", None)  # reading would fail
    again = check_dataset(open_dataset(tmp_path))
    assert again.data.fingerprint == first.data.fingerprint
    assert again.classes == first.classes


def test_only_added_or_changed_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_dataset(open_dataset(write_splits(tmp_path)))
    write_image(tmp_path / "train" / "a" / "new.jpg", 77)
    (tmp_path / "train" / "b" / "0.jpg").write_bytes(b"broken")
    (tmp_path / "train" / "b" / "1.jpg").unlink()
    read: list[str] = []
    row = image_index._index_image

    def watched(dataset: Dataset, index: int) -> image_index.ImageRecord:
        read.append(Path(dataset.describe(index)).name)
        return row(dataset, index)

    monkeypatch.setattr(image_index, "_index_image", watched)
    report = check_dataset(open_dataset(tmp_path))
    assert set(read) == {"new.jpg", "0.jpg"}
    assert [Path(item.location).name for item in report.bad] == ["0.jpg"]
    assert len(report.data.train) == 39


def test_a_damaged_cache_is_ignored(tmp_path: Path) -> None:
    report = check_dataset(open_dataset(write_splits(tmp_path)))
    cache_files = list(Path(os.environ["VITRAIL_CACHE"]).rglob("*.npz"))
    assert cache_files
    for cache_file in cache_files:
        cache_file.write_bytes(cache_file.read_bytes()[:100])
    assert check_dataset(open_dataset(tmp_path)).data.fingerprint == report.data.fingerprint


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file" / "below"))
    assert check_dataset(open_dataset(write_splits(tmp_path / "data"))).ok


def test_what_was_read_before_an_interruption_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_index, "CHUNK", 8)
    data = open_dataset(write_splits(tmp_path))

    def stop(what: str, done: int, total: int | None) -> None:
        if done >= 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_dataset(data, stop)
    totals: list[int | None] = []
    check_dataset(data, lambda what, done, total: totals.append(total))
    assert totals[0] == 48 - 24


@pytest.mark.parametrize("layout", ["train and test", "a folder a class", "csv", "tar"])
def test_an_unreadable_image_does_not_prevent_splitting(layout: str, tmp_path: Path) -> None:
    """If validation must be split off, every image is read before the check."""
    root = tmp_path / "data"
    if layout == "a folder a class":
        write_class_folders(root, {"a": 12, "b": 12})
    else:
        write_class_folders(root / "train", {"a": 12, "b": 12})
        write_class_folders(root / "test", {"a": 3, "b": 3}, first=100)
    gone = next(root.rglob("a/7.jpg"))
    gone.unlink()
    gone.symlink_to("nowhere")
    dataset: Path = root
    if layout == "csv":
        dataset = tmp_path / "list.csv"
        paths = sorted(path.relative_to(tmp_path) for path in root.rglob("*.jpg"))
        dataset.write_text("path,label\n" + "".join(f"{path},{path.parent.name}\n" for path in paths))
    if layout == "tar":
        dataset = tmp_path / "all.tar"
        with tarfile.open(dataset, "w") as tar:
            for number, path in enumerate(path for path in sorted(root.rglob("*.jpg")) if path != gone):
                tar.add(path, f"{number}.jpg")
                label = path.parent / "label"
                label.write_text(path.parent.name)
                tar.add(label, f"{number}.cls")
        assert check_dataset(open_dataset(dataset)).ok
        return
    (item,) = check_dataset(open_dataset(dataset)).bad
    assert item.location.endswith("7.jpg")


def test_shards_are_decoded_once_and_then_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for number in range(20):
            (tmp_path / "x").write_bytes(image_bytes(number))
            tar.add(tmp_path / "x", f"{number}.jpg")
            (tmp_path / "y").write_text(str(number % 2))
            tar.add(tmp_path / "y", f"{number}.cls")
    read: list[int] = []
    row = image_index._index_image

    def watched(dataset: Dataset, index: int) -> image_index.ImageRecord:
        read.append(index)
        return row(dataset, index)

    monkeypatch.setattr(image_index, "_index_image", watched)
    first = check_dataset(open_dataset(tmp_path / "all.tar"))
    assert sorted(read) == list(range(20))
    again = check_dataset(open_dataset(tmp_path / "all.tar"))
    assert len(read) == 20
    assert again.data.fingerprint == first.data.fingerprint


def test_two_tables_in_one_folder_share_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_class_folders(tmp_path, {"a": 10, "b": 10})
    for name, low, high in (("one", 0, 6), ("two", 4, 10)):
        rows = [f"{label}/{number}.jpg,{label}" for label in "ab" for number in range(low, high)]
        (tmp_path / f"{name}.csv").write_text("path,label\n" + "\n".join(rows))
    for name in ("one", "two"):
        check_dataset(open_dataset(tmp_path / f"{name}.csv"))
    monkeypatch.setattr(image_index, "_index_image", None)  # reading would fail
    for name in ("one", "two", "one"):
        assert check_dataset(open_dataset(tmp_path / f"{name}.csv")).ok


def test_running_out_of_memory_is_not_the_images_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(content: bytes) -> None:
        raise MemoryError

    root = write_class_folders(tmp_path, {"a": 4, "b": 4})
    monkeypatch.setattr(image_index, "decode_bands", greedy)
    assert len(check_dataset(open_dataset(root)).bad) == 8
    monkeypatch.undo()
    assert check_dataset(open_dataset(root)).ok  # and it was not cached


def test_bad_images_are_not_split_off_to_validation(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 4, "b": 4})
    for name in "ab":
        (tmp_path / name / "bad.jpg").write_bytes(b"")
    report = check_dataset(open_dataset(tmp_path))
    assert report.classes == {name: {"train": 2, "validation": 1, "test": 1} for name in "ab"}


def test_a_copy_in_another_format_is_a_duplicate(tmp_path: Path) -> None:
    write_splits(tmp_path)
    with Image.open(tmp_path / "train" / "a" / "2.jpg") as image:
        image.save(tmp_path / "val" / "a" / "other.png")
    (leak,) = check_dataset(open_dataset(tmp_path)).leaks
    assert {Path(where).name for where in leak.locations} == {"2.jpg", "other.png"}


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 4, "b": 4})
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    (item,) = check_dataset(open_dataset(tmp_path)).bad
    assert item.reason == "cannot be read: not a regular file of plausible size"


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    data = open_dataset(write_splits(tmp_path))
    (tmp_path / "train" / "a" / "7.jpg").unlink()
    (item,) = check_dataset(data).bad
    assert item.location.endswith("7.jpg")
    assert item.reason == "cannot be read: No such file or directory"


def test_the_fingerprint_depends_on_contents_not_on_file_names(tmp_path: Path) -> None:
    before = check_dataset(open_dataset(write_splits(tmp_path))).data.fingerprint
    (tmp_path / "train" / "a" / "0.jpg").rename(tmp_path / "train" / "a" / "zzz.jpg")
    assert check_dataset(open_dataset(tmp_path)).data.fingerprint == before
    (tmp_path / "train" / "a" / "1.jpg").write_bytes(image_bytes(5000))
    assert check_dataset(open_dataset(tmp_path)).data.fingerprint != before


def test_built_in_datasets_have_no_leaks() -> None:
    report = check_dataset(open_dataset("panes:train_size=200,size=16"))
    assert report.ok
    assert report.image_formats == {"pixels": 280}
    assert np.array_equal(sorted(report.data.class_names), sorted(open_dataset("panes").class_names))


def test_the_fingerprint_has_several_labels_and_numbers(tmp_path: Path) -> None:
    for number in range(6):
        write_image(tmp_path / f"{number}.jpg", number)

    def content_fingerprint(header: str, targets: list[str], order: list[int], target: str | None = None) -> str:
        rows = [f"{number}.jpg,{targets[number]},{'train' if number < 4 else 'val'}" for number in order]
        (tmp_path / "t.csv").write_text("\n".join([f"path,{header},split", *rows]))
        return check_dataset(open_dataset(tmp_path / "t.csv", target=target)).data.fingerprint

    several = ["a;b", "b", "", "a;c", "c", "a"]
    first = content_fingerprint("labels", several, [0, 1, 2, 3, 4, 5])
    assert content_fingerprint("labels", ["b;a", *several[1:]], [3, 1, 5, 0, 2, 4]) == first  # whatever the order
    assert content_fingerprint("labels", ["a;c", *several[1:3], "a;b", *several[4:]], [0, 1, 2, 3, 4, 5]) != first
    ages = ["1", "2", "3", "4", "5", "6.5"]
    numbers = content_fingerprint("age", ages, [0, 1, 2, 3, 4, 5], target="age")
    assert content_fingerprint("age", ages, [4, 1, 3, 0, 5, 2], target="age") == numbers
    assert content_fingerprint("age", ["2", "1", *ages[2:]], [0, 1, 2, 3, 4, 5], target="age") != numbers
    assert content_fingerprint("size", ages, [0, 1, 2, 3, 4, 5], target="size") != numbers


def test_equal_images_with_other_sets_of_labels_or_numbers_are_a_conflict(tmp_path: Path) -> None:
    for number in range(4):
        write_image(tmp_path / f"{number}.jpg", number // 2)
    for header, targets in (("labels", ["a;b", "b;a", "a;c", "c"]), ("label", ["0.5", "0.5", "1.5", "2.5"])):
        rows = [f"{number}.jpg,{target},train" for number, target in enumerate(targets)]
        (tmp_path / "t.csv").write_text("\n".join([f"path,{header},split", *rows]))
        report = check_dataset(open_dataset(tmp_path / "t.csv"))
        assert len(report.duplicates) == len(report.conflicts) == 1
        assert {Path(where).name for where in report.conflicts[0].locations} == {"2.jpg", "3.jpg"}
