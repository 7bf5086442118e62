"""Subsets of a dataset are balanced and nested, and are evaluated on the same images."""

import numpy as np
import pytest

from vitrail.data.dataset_check import drop_unusable
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError


def contents(dataset: Dataset) -> list[bytes]:
    return [np.asarray(dataset.read(index)).tobytes() for index in range(len(dataset))]


def test_a_training_subset_is_balanced_and_leaves_validation_and_test_unchanged() -> None:
    whole, smaller = open_dataset("fashion"), open_dataset("fashion:train_size=55")
    counts = np.bincount(smaller.train.labels, minlength=10)
    assert counts.sum() == 55
    assert set(counts.tolist()) == {5, 6}
    assert contents(smaller.validation) == contents(whole.validation)
    assert contents(smaller.test) == contents(whole.test)
    assert set(contents(smaller.train)) <= set(contents(whole.train))
    assert smaller.fingerprint != whole.fingerprint


def test_a_smaller_subset_is_part_of_a_larger_one() -> None:
    smaller, larger, others = (
        set(contents(open_dataset(f"fashion:{how}").train))
        for how in ("train_size=40", "train_size=90", "train_size=40,seed=1")
    )
    assert smaller < larger
    assert others != smaller
    assert contents(open_dataset("fashion:train_size=9000").train) == contents(open_dataset("fashion").train)


def test_the_held_out_splits_can_be_smaller() -> None:
    data = open_dataset("fashion:train_size=30,heldout_size=20")
    assert [len(part) for part in data.splits.values()] == [30, 20, 20]
    assert np.bincount(data.test.labels).tolist() == [2] * 10
    assert len(drop_unusable(data, None, 0.05).data.train) == 30
    samples = open_dataset("panes:train_size=30,heldout_size=7,size=16")
    assert [len(part) for part in samples.splits.values()] == [30, 7, 7]
    assert contents(samples.test) == contents(open_dataset("panes:train_size=90,heldout_size=7,size=16").test)


def test_selected_classes_are_numbered_from_0() -> None:
    whole, some = open_dataset("fashion"), open_dataset("fashion:classes=3-4,train_size=21")
    assert some.class_names == whole.class_names[3:5]
    assert sorted(np.bincount(some.train.labels).tolist()) == [10, 11]
    for split in ("train", "test"):
        theirs = dict(zip(contents(whole.splits[split]), whole.splits[split].labels.tolist(), strict=True))
        ours = some.splits[split]
        assert [theirs[content] - 3 for content in contents(ours)] == ours.labels.tolist()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fashion:train_size=0", "train_size must be at least 1, got 0; try train_size=500"),
        ("fashion:train_size=9001", r"fashion:train_size=9001 \(train\) has 9,000 images, fewer than the 9,001 requested"),
        ("fashion:heldout_size=1001", r"\(validation\) has 1,000 images, fewer than"),
        ("fashion:train_siz=5", "no field is named 'train_siz'; did you mean 'train_size'"),
        ("fashion:train_size", "reads FIELD=VALUE, got 'train_size'"),
        ("fashion:classes=5", "classes must be the first and the last class, got '5'; try classes=0-4"),
        ("fashion:classes=5-10", "two or more of the 10 of fashion:classes=5-10, got 5-10; try classes=0-4"),
        ("fashion:classes=4-4", "two or more of the 10"),
        ("panes:heldout_size=0", "heldout_size must be from 1 to"),
    ],
)
def test_an_impossible_subset_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        open_dataset(name)
