"""Folds divide the images of a dataset by content, evenly by class: the same on every machine, and no duplicate in two."""

from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.data.images import make_image, write_class_folders
from vitrail.data.sources.content_split import SplitFractions, fold_of, split_by_content_hash
from vitrail.data.sources.dataset import Dataset, DatasetSplits, with_label_sets, with_numbers
from vitrail.data.sources.fold import Fold
from vitrail.data.sources.folds import fold_splits
from vitrail.data.sources.label_sets import LabelSets
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.strata import strata_of
from vitrail.errors import VitrailError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def keys(count: int) -> ndarray:
    return np.array([f"{number * 7919 % 100_003:016d}".encode() for number in range(count)], "V16")


def contents(dataset: Dataset) -> list[bytes]:
    return sorted(bytes(dataset.read(index)) for index in range(len(dataset)))


def all_folds(data: DatasetSplits, folds: int, val_fraction: float = 0.2) -> list[DatasetSplits]:
    return [fold_splits(data, Fold(number, folds), val_fraction) for number in range(1, folds + 1)]


@pytest.mark.parametrize("folds", [2, 5, 7])
@pytest.mark.parametrize("sizes", [(7, 41, 12), (8, 9, 13, 27)])
def test_folds_are_even_in_every_class_and_in_all(sizes: tuple[int, ...], folds: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    fold = fold_of(keys(len(labels)), labels, folds)
    for part in (fold, *(fold[labels == label] for label in range(len(sizes)))):
        counts = np.bincount(part, minlength=folds + 1)[1:]
        assert counts.sum() == len(part)
        assert np.ptp(counts) <= 1


def test_folds_do_not_depend_on_the_order_of_the_images() -> None:
    rng = np.random.default_rng(1)
    labels, order = rng.integers(0, 4, 130), rng.permutation(130)
    assert (fold_of(keys(130)[order], labels[order], 6) == fold_of(keys(130), labels, 6)[order]).all()
    matrix = rng.random((130, 9)) < 0.3
    sets, same = LabelSets.from_matrix(matrix), LabelSets.from_matrix(matrix[order])
    assert (fold_of(keys(130)[order], same, 6) == fold_of(keys(130), sets, 6)[order]).all()


def test_duplicates_share_a_fold_and_others_make_up_for_them() -> None:
    names = np.concatenate([keys(30), np.repeat(keys(30)[:1], 5)])  # one image six times
    fold = fold_of(names, np.zeros(35, np.int64), 5)
    assert len(set(fold[30:].tolist()) | {int(fold[0])}) == 1
    assert np.bincount(fold)[1:].tolist() == [7, 7, 7, 7, 7]


def test_an_image_under_two_labels_is_in_one_fold() -> None:
    names, labels = np.concatenate([keys(20), keys(20)]), np.repeat([0, 1], 20)
    fold = fold_of(names, labels, 4)
    assert (fold[:20] == fold[20:]).all()


def test_the_folds_of_a_folder_do_not_depend_on_its_names(tmp_path: Path) -> None:
    first = write_class_folders(tmp_path / "one", {"a": 23, "b": 11})
    for number, file in enumerate(sorted(first.rglob("*.jpg"), reverse=True)):
        copy = tmp_path / "two" / file.parent.name / f"x{number * 37 % 101}.jpeg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    ones, twos = (all_folds(open_dataset(tmp_path / name), 3) for name in ("one", "two"))
    for one, two in zip(ones, twos, strict=True):
        assert all(contents(one.splits[split]) == contents(two.splits[split]) for split in one.splits)
    tested = [content for one in ones for content in contents(one.test)]
    assert sorted(tested) == sorted(file.read_bytes() for file in first.rglob("*.jpg"))


def test_equal_pixels_in_different_files_share_a_fold_and_never_leak(tmp_path: Path) -> None:
    for number in range(24):
        for copy in ("", " again"):
            path, info = tmp_path / f"class {number % 2}" / f"{number}{copy}.png", PngInfo()
            path.parent.mkdir(exist_ok=True)
            info.add_text("copy", copy)
            make_image(number).save(path, pnginfo=info)
    for splits in all_folds(open_dataset(tmp_path), 4):
        pixels = [
            {np.asarray(Image.open(str(split.path(index)))).tobytes() for index in range(len(split))}
            for split in splits.splits.values()
        ]
        assert [len(split) for split in splits.splits.values()] == [28, 8, 12]
        assert sum(map(len, pixels)) == len(set.union(*pixels)) == 24


def test_a_fold_is_the_test_split_and_the_validation_split_comes_from_the_others() -> None:
    labels = np.repeat([0, 1, 2], [40, 25, 15])
    data = open_dataset([(image, int(label)) for image, label in zip(_images(80), labels, strict=True)])
    folds = all_folds(data, 5, val_fraction=0.25)
    served = np.zeros(80, np.int64)
    for splits in folds:
        parts = [{bytes(dataset.read(index)) for index in range(len(dataset))} for dataset in splits.splits.values()]
        assert len(set.union(*parts)) == sum(map(len, parts)) == 80
        assert [np.bincount(part.labels).tolist() for part in splits.splits.values()] == [[24, 15, 9], [8, 5, 3], [8, 5, 3]]
        served += [bytes(image) in parts[1] for image in _images(80)]
    assert served.tolist() == [1] * 80  # with as large a part as a fold, each image is in the validation split once


def test_a_test_split_of_its_own_is_left_out_and_one_that_was_split_off_is_not() -> None:
    images = list(zip(_images(60), (np.arange(60) % 3).tolist(), strict=True))
    split_off, own = open_dataset(images), open_dataset({"train": images[:48], "test": images[48:]})
    assert [sum(len(splits.test) for splits in all_folds(data, 4)) for data in (split_off, own)] == [60, 48]
    (note,) = fold_splits(own, Fold(2, 4), 0.1).notes
    assert note == "fold 2 of 4 is the test split; the dataset's own test split of 12 images is left out"
    assert fold_splits(split_off, Fold(2, 4), 0.1).notes == ("fold 2 of 4 is the test split",)


def test_the_splits_of_a_fold_are_those_of_any_fold_again() -> None:
    data = open_dataset([(image, number % 3) for number, image in enumerate(_images(60))])
    first, second = fold_splits(data, Fold(1, 4), 0.2), fold_splits(data, Fold(2, 4), 0.2)
    assert fold_splits(first, Fold(1, 4), 0.2) is first
    again = fold_splits(first, Fold(2, 4), 0.2)
    assert all(contents(again.splits[split]) == contents(second.splits[split]) for split in again.splits)
    assert again.notes == second.notes == ("fold 2 of 4 is the test split",)


def test_unusable_images_are_in_no_fold(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 12, "b": 12})
    (tmp_path / "a" / "broken.jpg").write_bytes(b"no image")
    folds = all_folds(open_dataset(tmp_path), 3)
    assert [len(splits.test) for splits in folds] == [8, 8, 8]
    broken = str(tmp_path / "a" / "broken.jpg")
    assert all(broken in [splits.train.describe(index) for index in range(len(splits.train))] for splits in folds)


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (1, "folds must be at least 2, got 1"),
        (-3, "folds must be at least 2, got -3"),
        (
            5,
            "folds must be at most the number of images of each class, got folds=5 and 3 different images of 'b' .*try folds=3",
        ),
        (99, "folds must be at most 9, the number of different images"),
    ],
)
def test_folds_that_cannot_be_made_are_refused(tmp_path: Path, folds: int, message: str) -> None:
    write_class_folders(tmp_path, {"a": 6, "b": 3})
    (tmp_path / "b" / "copy.jpg").write_bytes((tmp_path / "b" / "0.jpg").read_bytes())
    with pytest.raises(VitrailError, match=message):
        fold_splits(open_dataset(tmp_path), Fold(1, folds), 0.1)
    with pytest.raises(VitrailError, match=r"fold\.number must be from 1 to 5"):
        Fold(6, 5)


def test_numbers_are_stratified_by_their_quantiles() -> None:
    images = open_dataset([(image, 0) for image in _images(100)], split_fractions=SplitFractions(0.0, 0.0)).train
    ages = np.random.default_rng(2).exponential(size=(100, 1))
    strata = strata_of(with_numbers(images, ages, ("age",)))
    assert isinstance(strata, ndarray)
    rank = np.argsort(np.argsort(ages[:, 0]))
    assert (strata == rank // 10).all()
    fold = fold_of(keys(100), strata, 5)
    assert all(np.bincount(fold[rank // 10 == tenth])[1:].tolist() == [2] * 5 for tenth in range(10))


def test_numbers_of_the_users_own_are_stratified_too() -> None:
    heights = np.random.default_rng(6).permutation(60) / 7
    data = open_dataset(list(zip(_images(60), heights.tolist(), strict=True)), labelled=False)
    for splits in all_folds(data, 3):
        tenths = [int(splits.test.target(index) * 7) // 10 for index in range(20)]
        assert np.ptp(np.bincount(tenths, minlength=6)) <= 1


def test_several_numbers_are_stratified_together() -> None:
    images = open_dataset([(image, 0) for image in _images(60)], split_fractions=SplitFractions(0.0, 0.0)).train
    numbers = np.random.default_rng(3).random((60, 2))
    strata = strata_of(with_numbers(images, numbers, ("height", "width")))
    assert isinstance(strata, LabelSets)
    fold = fold_of(keys(60), strata, 3)
    matrix = strata.rows(np.arange(60))
    counts = np.stack([matrix[fold == number].sum(0) for number in (1, 2, 3)])
    assert matrix.sum(1).tolist() == [2] * 60
    assert np.ptp(counts.astype(int), axis=0).max() <= 1


def test_a_missing_split_of_images_with_several_labels_is_stratified() -> None:
    rng = np.random.default_rng(4)
    matrix = rng.random((200, 7)) < np.array([0.6, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02])
    images = open_dataset([(image, 0) for image in _images(200)], split_fractions=SplitFractions(0.0, 0.0)).train
    data = open_dataset(with_label_sets(images, LabelSets.from_matrix(matrix), tuple("abcdefg")))
    for split, fraction in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
        sets = data.splits[split].label_sets
        assert sets is not None
        assert np.abs(sets.counts() - fraction * matrix.sum(0)).max() < 2
        assert sets.counts().min() >= 1


def test_labels_with_fewer_images_than_folds_are_said() -> None:
    matrix = np.zeros((40, 3), np.uint8)
    matrix[:30, 0] = matrix[5:9, 1] = matrix[35:37, 2] = 1
    images = open_dataset([(image, 0) for image in _images(40)], split_fractions=SplitFractions(0.0, 0.0)).train
    data = open_dataset(with_label_sets(images, LabelSets.from_matrix(matrix), ("hat", "scarf", "tie")))
    folds = all_folds(data, 4)
    assert [splits.notes[0] for splits in folds] == ["fewer images than folds have 'tie': some folds do not test them"] * 4
    counts = np.stack([splits.test.label_sets.counts() for splits in folds if splits.test.label_sets is not None])
    assert np.ptp(counts.astype(int), axis=0).max() <= 1
    assert counts.sum(0).tolist() == [30, 4, 2]


def test_copies_of_an_image_have_the_labels_of_all() -> None:
    names = np.concatenate([keys(12), keys(12)[:3]])
    lists = [[number % 3] for number in range(12)] + [[3], [3], [3]]
    parts = split_by_content_hash(names, LabelSets.from_lists(lists, 4), SplitFractions(0.33, 0.33))
    of_split = np.zeros(15, np.int64)
    for number, indices in enumerate(parts.values()):
        of_split[indices] = number
    assert (of_split[12:] == of_split[:3]).all()
    assert sorted(of_split[12:].tolist()) == [0, 1, 2]


def _images(count: int) -> list[ndarray]:
    return list(np.random.default_rng(5).integers(0, 256, (count, 5, 7, 3), np.uint8))
