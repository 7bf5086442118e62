"""Subsets of a dataset are balanced and nested, and are evaluated on the same images."""

import numpy as np
import pytest

from vitrail.data.check import usable
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Source
from vitrail.errors import VitrailError


def contents(source: Source) -> list[bytes]:
    return [np.asarray(source.content(index)).tobytes() for index in range(len(source))]


def test_a_training_subset_is_balanced_and_leaves_validation_and_test_unchanged() -> None:
    whole, few = pictures("fashion"), pictures("fashion:count=55")
    counts = np.bincount(few.train.labels, minlength=10)
    assert counts.sum() == 55
    assert set(counts.tolist()) == {5, 6}
    assert contents(few.validation) == contents(whole.validation)
    assert contents(few.test) == contents(whole.test)
    assert set(contents(few.train)) <= set(contents(whole.train))
    assert few.fingerprint != whole.fingerprint


def test_a_smaller_subset_is_part_of_a_larger_one() -> None:
    few, more, others = (set(contents(pictures(f"fashion:{how}").train)) for how in ("count=40", "count=90", "count=40,seed=1"))
    assert few < more
    assert others != few
    assert contents(pictures("fashion:count=9000").train) == contents(pictures("fashion").train)


def test_the_held_out_splits_can_be_smaller() -> None:
    data = pictures("fashion:count=30,held=20")
    assert [len(part) for part in data.splits.values()] == [30, 20, 20]
    assert np.bincount(data.test.labels).tolist() == [2] * 10
    assert len(usable(data, None, 0.05).data.train) == 30
    drawn = pictures("panes:count=30,held=7,size=16")
    assert [len(part) for part in drawn.splits.values()] == [30, 7, 7]
    assert contents(drawn.test) == contents(pictures("panes:count=90,held=7,size=16").test)


def test_selected_classes_are_numbered_from_0() -> None:
    whole, some = pictures("fashion"), pictures("fashion:classes=3-4,count=21")
    assert some.names == whole.names[3:5]
    assert sorted(np.bincount(some.train.labels).tolist()) == [10, 11]
    for split in ("train", "test"):
        theirs = dict(zip(contents(whole.splits[split]), whole.splits[split].labels.tolist(), strict=True))
        ours = some.splits[split]
        assert [theirs[content] - 3 for content in contents(ours)] == ours.labels.tolist()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fashion:count=0", "count must be at least 1, got 0; try count=500"),
        ("fashion:count=9001", r"fashion:count=9001 \(train\) has 9,000 images, fewer than the 9,001 requested"),
        ("fashion:held=1001", r"\(validation\) has 1,000 images, fewer than"),
        ("fashion:cont=5", "no field is named 'cont'; did you mean 'count'"),
        ("fashion:count", "reads FIELD=VALUE, got 'count'"),
        ("fashion:classes=5", "classes must be the first and the last class, got '5'; try classes=0-4"),
        ("fashion:classes=5-10", "two or more of the 10 of fashion:classes=5-10, got 5-10; try classes=0-4"),
        ("fashion:classes=4-4", "two or more of the 10"),
        ("panes:held=0", "held must be from 1 to"),
    ],
)
def test_an_impossible_subset_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        pictures(name)
