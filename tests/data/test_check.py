"""The dataset check names every bad file, duplicate and leak before training, and reads nothing twice (FAULTS 1, 6, 7)."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import classes, encoded, put
from tests.data.test_decode import BAD
from vitrail.data import catalogue
from vitrail.data.check import check, usable
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Source
from vitrail.errors import VitrailError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def split(root: Path, train: int = 20, validation: int = 4) -> Path:
    classes(root / "train", {"a": train, "b": train})
    classes(root / "val", {"a": validation, "b": validation}, first=1000)
    return root


def test_a_good_folder_passes(tmp_path: Path) -> None:
    found = check(pictures(split(tmp_path)))
    assert found.ok
    assert found.pictures == 48
    assert found.classes == {"a": {"train": 20, "validation": 4, "test": 0}, "b": {"train": 20, "validation": 4, "test": 0}}
    assert found.sizes == {"height": (24, 24, 24), "width": (20, 20, 20)}
    assert found.kinds == {"JPEG RGB": 48}


def test_every_bad_file_is_named_with_its_reason(tmp_path: Path) -> None:
    split(tmp_path)
    for number, content in enumerate(BAD.values()):
        (tmp_path / "train" / "a" / f"bad{number}.jpg").write_bytes(content)
    (tmp_path / "val" / "b" / "bad.png").write_bytes(b"")
    found = check(pictures(tmp_path))
    assert not found.ok
    assert {Path(item.where).name for item in found.bad} == {"bad.png", *(f"bad{number}.jpg" for number in range(len(BAD)))}
    assert all(item.reason.startswith("cannot be decoded: ") for item in found.bad)
    assert [item.split for item in found.bad].count("validation") == 1
    assert [len(source) for source in found.data.splits.values()] == [40, 8, 0]
    assert not any("bad" in Path(found.data.train.where(index)).name for index in range(40))


def test_training_skips_a_few_bad_images_and_stops_at_too_many(tmp_path: Path) -> None:
    split(tmp_path)
    for number in range(5):
        (tmp_path / "train" / "a" / f"{number}.jpg").write_bytes(b"<html>")
    assert len(usable(pictures(tmp_path), tolerated=0.2).data.train) == 35
    with pytest.raises(
        VitrailError, match=r"5 of 48 images cannot be used, more than the tolerated fraction of 0.05, first .*0.jpg"
    ):
        usable(pictures(tmp_path))


def test_leaks_duplicates_and_conflicts_are_told_apart(tmp_path: Path) -> None:
    split(tmp_path)
    (tmp_path / "val" / "a" / "leak.jpg").write_bytes((tmp_path / "train" / "a" / "3.jpg").read_bytes())
    (tmp_path / "train" / "b" / "twice.jpg").write_bytes((tmp_path / "train" / "b" / "3.jpg").read_bytes())
    (tmp_path / "train" / "b" / "other.jpg").write_bytes((tmp_path / "train" / "a" / "5.jpg").read_bytes())
    found = check(pictures(tmp_path))
    assert not found.ok
    (leak,) = found.leaks
    assert {Path(where).name for where in leak.where} == {"leak.jpg", "3.jpg"}
    assert set(leak.splits) == {"train", "validation"}
    (copies,) = found.duplicates
    assert {Path(where).name for where in copies.where} == {"twice.jpg", "3.jpg"}
    (conflict,) = found.conflicts
    assert set(conflict.classes) == {"a", "b"}


def test_nothing_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = check(pictures(split(tmp_path)))
    monkeypatch.setattr(catalogue, "_row", None)  # reading would fail
    again = check(pictures(tmp_path))
    assert again.data.fingerprint == first.data.fingerprint
    assert again.classes == first.classes


def test_only_added_or_changed_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(pictures(split(tmp_path)))
    put(tmp_path / "train" / "a" / "new.jpg", 77)
    (tmp_path / "train" / "b" / "0.jpg").write_bytes(b"broken")
    (tmp_path / "train" / "b" / "1.jpg").unlink()
    read: list[str] = []
    row = catalogue._row

    def watched(source: Source, index: int) -> catalogue.Row:
        read.append(Path(source.where(index)).name)
        return row(source, index)

    monkeypatch.setattr(catalogue, "_row", watched)
    found = check(pictures(tmp_path))
    assert set(read) == {"new.jpg", "0.jpg"}
    assert [Path(item.where).name for item in found.bad] == ["0.jpg"]
    assert len(found.data.train) == 39


def test_a_damaged_cache_is_ignored(tmp_path: Path) -> None:
    found = check(pictures(split(tmp_path)))
    places = list(Path(os.environ["VITRAIL_CACHE"]).rglob("*.npz"))
    assert places
    for place in places:
        place.write_bytes(place.read_bytes()[:100])
    assert check(pictures(tmp_path)).data.fingerprint == found.data.fingerprint


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file" / "below"))
    assert check(pictures(split(tmp_path / "data"))).ok


def test_what_was_read_before_an_interruption_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "CHUNK", 8)
    data = pictures(split(tmp_path))

    def stop(what: str, done: int, total: int | None) -> None:
        if done >= 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(data, stop)
    seen: list[int | None] = []
    check(data, lambda what, done, total: seen.append(total))
    assert seen[0] == 48 - 24


@pytest.mark.parametrize("layout", ["train and test", "a folder a class", "csv", "tar"])
def test_an_unreadable_image_does_not_prevent_splitting(layout: str, tmp_path: Path) -> None:
    """If validation must be split off, every image is read before the check."""
    root = tmp_path / "data"
    if layout == "a folder a class":
        classes(root, {"a": 12, "b": 12})
    else:
        classes(root / "train", {"a": 12, "b": 12})
        classes(root / "test", {"a": 3, "b": 3}, first=100)
    gone = next(root.rglob("a/7.jpg"))
    gone.unlink()
    gone.symlink_to("nowhere")
    source: Path = root
    if layout == "csv":
        source = tmp_path / "list.csv"
        paths = sorted(path.relative_to(tmp_path) for path in root.rglob("*.jpg"))
        source.write_text("path,label\n" + "".join(f"{path},{path.parent.name}\n" for path in paths))
    if layout == "tar":
        source = tmp_path / "all.tar"
        with tarfile.open(source, "w") as tar:
            for number, path in enumerate(path for path in sorted(root.rglob("*.jpg")) if path != gone):
                tar.add(path, f"{number}.jpg")
                label = path.parent / "label"
                label.write_text(path.parent.name)
                tar.add(label, f"{number}.cls")
        assert check(pictures(source)).ok
        return
    (item,) = check(pictures(source)).bad
    assert item.where.endswith("7.jpg")


def test_shards_are_decoded_once_and_then_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for number in range(20):
            (tmp_path / "x").write_bytes(encoded(number))
            tar.add(tmp_path / "x", f"{number}.jpg")
            (tmp_path / "y").write_text(str(number % 2))
            tar.add(tmp_path / "y", f"{number}.cls")
    read: list[int] = []
    row = catalogue._row

    def watched(source: Source, index: int) -> catalogue.Row:
        read.append(index)
        return row(source, index)

    monkeypatch.setattr(catalogue, "_row", watched)
    first = check(pictures(tmp_path / "all.tar"))
    assert sorted(read) == list(range(20))
    again = check(pictures(tmp_path / "all.tar"))
    assert len(read) == 20
    assert again.data.fingerprint == first.data.fingerprint


def test_two_tables_in_one_folder_share_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes(tmp_path, {"a": 10, "b": 10})
    for name, low, high in (("one", 0, 6), ("two", 4, 10)):
        rows = [f"{label}/{number}.jpg,{label}" for label in "ab" for number in range(low, high)]
        (tmp_path / f"{name}.csv").write_text("path,label\n" + "\n".join(rows))
    for name in ("one", "two"):
        check(pictures(tmp_path / f"{name}.csv"))
    monkeypatch.setattr(catalogue, "_row", None)  # reading would fail
    for name in ("one", "two", "one"):
        assert check(pictures(tmp_path / f"{name}.csv")).ok


def test_running_out_of_memory_is_not_the_images_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(content: bytes) -> None:
        raise MemoryError

    root = classes(tmp_path, {"a": 4, "b": 4})
    monkeypatch.setattr(catalogue, "decode", greedy)
    assert len(check(pictures(root)).bad) == 8
    monkeypatch.undo()
    assert check(pictures(root)).ok  # and it was not cached


def test_bad_images_are_not_split_off_to_validation(tmp_path: Path) -> None:
    classes(tmp_path, {"a": 4, "b": 4})
    for name in "ab":
        (tmp_path / name / "bad.jpg").write_bytes(b"")
    found = check(pictures(tmp_path))
    assert found.classes == {name: {"train": 2, "validation": 1, "test": 1} for name in "ab"}


def test_a_copy_in_another_format_is_a_duplicate(tmp_path: Path) -> None:
    split(tmp_path)
    with Image.open(tmp_path / "train" / "a" / "2.jpg") as shown:
        shown.save(tmp_path / "val" / "a" / "other.png")
    (leak,) = check(pictures(tmp_path)).leaks
    assert {Path(where).name for where in leak.where} == {"2.jpg", "other.png"}


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    classes(tmp_path, {"a": 4, "b": 4})
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    (item,) = check(pictures(tmp_path)).bad
    assert item.reason == "cannot be read: not a regular file of plausible size"


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    data = pictures(split(tmp_path))
    (tmp_path / "train" / "a" / "7.jpg").unlink()
    (item,) = check(data).bad
    assert item.where.endswith("7.jpg")
    assert item.reason == "cannot be read: No such file or directory"


def test_the_fingerprint_depends_on_contents_not_on_file_names(tmp_path: Path) -> None:
    before = check(pictures(split(tmp_path))).data.fingerprint
    (tmp_path / "train" / "a" / "0.jpg").rename(tmp_path / "train" / "a" / "zzz.jpg")
    assert check(pictures(tmp_path)).data.fingerprint == before
    (tmp_path / "train" / "a" / "1.jpg").write_bytes(encoded(5000))
    assert check(pictures(tmp_path)).data.fingerprint != before


def test_built_in_datasets_have_no_leaks() -> None:
    found = check(pictures("panes:count=200,size=16"))
    assert found.ok
    assert found.kinds == {"pixels": 280}
    assert np.array_equal(sorted(found.data.names), sorted(pictures("panes").names))
