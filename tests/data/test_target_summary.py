"""The dataset check tells which labels occur together, are missing or spelled alike, and which numbers are far out."""

import numpy as np
import pytest

from vitrail.data.sources.dataset import ArrayDataset, Dataset, with_label_sets, with_numbers
from vitrail.data.sources.label_sets import LabelSets
from vitrail.data.sources.labels import similar_names
from vitrail.data.target_summary import MAX_PAIRED, LabelPair, summarise_targets


def images(count: int) -> Dataset:
    return ArrayDataset(np.zeros((count, 2, 3, 3), np.uint8), np.full(count, -1, np.int64), ())


def several(lists: list[list[int]], names: tuple[str, ...]) -> Dataset:
    return with_label_sets(images(len(lists)), LabelSets.from_lists(lists, len(names)), names)


NAMES = ("coat", "Hat", "hat", "shoe", "tie")


def test_labels_together_without_and_missing_are_counted() -> None:
    splits = {
        "train": several([[0, 2, 3], [2, 3], [], [3], [1]], NAMES),
        "validation": several([[2, 3], []], NAMES),
        "test": several([], NAMES),
    }
    summary = summarise_targets(splits)
    assert summary.several is not None
    assert summary.several.pairs == (
        LabelPair(("shoe", "hat"), 3, 0.75),
        LabelPair(("shoe", "coat"), 1, 0.25),
        LabelPair(("hat", "coat"), 1, 1 / 3),
    )
    assert summary.several.unlabelled == {"train": 1, "validation": 1}
    assert (summary.several.mean, summary.several.most) == (9 / 7, 3)
    assert summary.absent == {"train": ("tie",), "validation": ("coat", "Hat", "tie")}
    assert summary.similar == (("Hat", "hat"),)
    assert summary.numbers == {}


def test_pairs_are_those_of_a_matrix_of_zeros_and_ones() -> None:
    matrix = np.random.default_rng(0).random((9000, 7)) < 0.3
    names = tuple("abcdefg")
    summary = summarise_targets({"train": with_label_sets(images(9000), LabelSets.from_matrix(matrix), names)})
    assert summary.several is not None
    for pair in summary.several.pairs:
        one, other = (matrix[:, names.index(label)] for label in pair.labels)
        assert pair.images == (one & other).sum()
        assert pair.jaccard == (one & other).sum() / (one | other).sum()
    assert len(summary.several.pairs) == 21
    wide = LabelSets.from_lists([[0, 1, label] for label in range(2, MAX_PAIRED + 50)], MAX_PAIRED + 50)
    frequent = summarise_targets({"train": with_label_sets(images(len(wide)), wide, tuple(map(str, range(MAX_PAIRED + 50))))})
    assert frequent.several is not None
    assert frequent.several.pairs[0] == LabelPair(("0", "1"), MAX_PAIRED + 48, 1.0)


def test_single_labels_are_missing_too() -> None:
    labels = np.array([0, 1, 1])
    splits: dict[str, Dataset] = {
        "train": ArrayDataset(np.zeros((3, 2, 3, 3), np.uint8), labels, ("ant", "bees", "bee")),
        "validation": ArrayDataset(np.zeros((0, 2, 3, 3), np.uint8), labels[:0], ("ant", "bees", "bee")),
    }
    summary = summarise_targets(splits)
    assert summary.absent == {"train": ("bee",)}
    assert summary.several is None


def test_numbers_have_a_range_and_outliers() -> None:
    values = np.stack([np.arange(20.0), np.full(20, 5.0)], axis=1)
    values[7, 0], values[3, 0], values[5, 1] = 1000, np.nan, 6
    splits = {
        "train": with_numbers(images(15), values[:15], ("age", "size")),
        "validation": with_numbers(images(5), values[15:], ("age", "size")),
    }
    summary = summarise_targets(splits)
    train = summary.numbers["age"]["train"]
    finite = np.delete(values[:15, 0], 3)
    assert (train.minimum, train.maximum, train.missing) == (0, 1000, 1)
    assert train.mean == pytest.approx(finite.mean())
    assert train.std == pytest.approx(finite.std())
    assert summary.numbers["size"]["validation"].statistics == (5, 5, 5, 0)
    (outlier,) = summary.outliers  # a column of one value but for an exception has no spread to measure it by
    assert (outlier.target, outlier.value, outlier.location, outlier.split) == ("age", 1000, "image 7 of array", "train")
    assert summary.num_outliers == 1


def test_names_are_similar_in_case_accents_punctuation_or_plural() -> None:
    names = ["T-shirt", "t shirt", "cafe", "café", "shoe", "shoes", "gas", "ga", "1", "-1", "1.0", "10", "?", "!", "hat"]
    assert similar_names(names) == [("T-shirt", "t shirt"), ("cafe", "café"), ("shoe", "shoes")]
