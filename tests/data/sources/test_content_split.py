"""A split by content is the same wherever the files are, keeps duplicates together and is stratified by class."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.images import image_bytes, write_class_folders
from vitrail.data.sources.content_split import SplitFractions, split_by_content_hash
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def contents(dataset: Dataset) -> set[bytes]:
    return {bytes(dataset.read(index)) for index in range(len(dataset))}


def keys(count: int) -> np.ndarray:
    return np.array([f"{number * 7919 % 100_003:016d}".encode() for number in range(count)], "V16")


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, (1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1)), (10, (8, 1, 1)), (25, (21, 2, 2)), (100, (80, 10, 10))],
)
def test_every_class_is_split_by_the_fractions_and_keeps_training_images(size: int, expected: tuple[int, ...]) -> None:
    labels = np.repeat([0, 1], [size, 40])
    parts = split_by_content_hash(keys(size + 40), labels, SplitFractions())
    assert tuple(int((labels[part] == 0).sum()) for part in parts.values()) == expected
    assert tuple(int((labels[part] == 1).sum()) for part in parts.values()) == (32, 4, 4)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(size + 40))


def test_neither_names_nor_order_nor_folder_matter(tmp_path: Path) -> None:
    first = write_class_folders(tmp_path / "one", {"a": 30, "b": 20})
    for number, file in enumerate(sorted(first.rglob("*.jpg"), reverse=True)):
        copy = tmp_path / "two" / file.parent.name / f"x{number * 37 % 101}.jpeg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    one, two = open_dataset(first), open_dataset(tmp_path / "two")
    for split in ("train", "validation", "test"):
        assert contents(one.splits[split]) == contents(two.splits[split])
        assert len(one.splits[split]) > 0


def test_duplicates_stay_together(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 20, "b": 20})
    for file in list(tmp_path.rglob("*.jpg")):
        file.with_name(f"copy of {file.name}").write_bytes(file.read_bytes())
    data = open_dataset(tmp_path)
    sets = [contents(dataset) for dataset in data.splits.values()]
    assert [len(dataset) for dataset in data.splits.values()] == [64, 8, 8]
    assert sum(map(len, sets)) == len(set.union(*sets))


def test_one_content_under_two_labels_is_in_one_split() -> None:
    some = keys(60)
    both = np.concatenate([some, some[:10]])
    parts = split_by_content_hash(both, np.repeat([0, 1, 2], [30, 30, 10]), SplitFractions())
    sets = [set(both[part].tolist()) for part in parts.values()]
    assert sum(map(len, sets)) == len(set.union(*sets)) == 60


@pytest.mark.parametrize("fractions", [(0.5, 0.4), (0.9, 0.0), (0.0, 0.9), (0.3, 0.3)])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_some_training_data_is_always_left(fractions: tuple[float, float], size: int) -> None:
    assert len(split_by_content_hash(keys(size), np.zeros(size, np.int64), SplitFractions(*fractions))["train"]) >= 1


def test_an_added_image_moves_few_others(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 50, "b": 50})
    before = contents(open_dataset(tmp_path).train)
    (tmp_path / "a" / "new.jpg").write_bytes(image_bytes(999))
    assert len(before - contents(open_dataset(tmp_path).train)) <= 2


def test_given_splits_are_not_split_further(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "train", {"a": 20, "b": 10})
    write_class_folders(tmp_path / "test", {"a": 2, "b": 2}, first=50)
    data = open_dataset(tmp_path)
    assert [len(dataset) for dataset in data.splits.values()] == [27, 3, 4]
    assert any("no validation split given; it is split off from train by content" in note for note in data.notes)
    none = open_dataset(tmp_path, split_fractions=SplitFractions(validation=0.0))
    assert [len(dataset) for dataset in none.splits.values()] == [30, 0, 4]


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (-0.1, 0.1), (0.0, 1.0)])
def test_fractions_that_leave_no_training_data_are_refused(fractions: tuple[float, float]) -> None:
    with pytest.raises(VitrailError, match=r"must leave some training data, got .*; try 0.1 and 0.1"):
        SplitFractions(*fractions)
