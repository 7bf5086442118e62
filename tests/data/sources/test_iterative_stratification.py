"""Iterative stratification: every label is spread as evenly as its images allow, which a split by hash alone does not do."""

import numpy as np
import pytest
from numpy import ndarray

from vitrail.data.sources.iterative_stratification import stratify
from vitrail.data.sources.label_sets import LabelSets

FREQUENCIES = 0.5 / np.arange(1, 31)  # Zipf's law: of 900 images, 450 have the first label and about 15 the last


def deal(matrix: ndarray, parts: int, sizes: ndarray | None = None) -> ndarray:
    """Return how many images of each label a part has, and of all in the last row: labels by parts."""
    sizes = np.ones(len(matrix), np.int64) if sizes is None else sizes
    counts = (matrix * sizes[:, None]).sum(0)
    wanted = np.repeat(counts[:, None], parts, axis=1)
    part = stratify(LabelSets.from_matrix(matrix), parts * sizes, wanted, np.full(parts, int(sizes.sum())))
    every = np.concatenate([matrix, np.ones((len(matrix), 1), np.int64)], axis=1) * sizes[:, None]
    return np.stack([every[part == number].sum(0) for number in range(parts)], axis=1)


@pytest.mark.parametrize("parts", [3, 5, 10])
def test_every_label_is_within_one_image_of_its_part(parts: int) -> None:
    matrix = (np.random.default_rng(parts).random((900, 30)) < FREQUENCIES).astype(np.int64)
    dealt = deal(matrix, parts)
    wanted = np.append(matrix.sum(0), len(matrix))[:, None] / parts
    assert np.abs(dealt - wanted).max() <= 1
    by_order = np.stack([matrix[number::parts].sum(0) for number in range(parts)], axis=1)
    assert np.abs(by_order - wanted[:-1]).max() > 5  # a split that ignores labels


def test_rare_labels_are_spread_and_not_left_to_chance() -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.random((400, 40)) < 0.3).astype(np.int64)
    matrix[:, 20:] = 0
    for label in range(20, 40):
        matrix[rng.choice(400, 5, replace=False), label] = 1
    assert deal(matrix, 5)[20:40].tolist() == [[1] * 5] * 20
    by_order = np.stack([matrix[number::5].sum(0) for number in range(5)], axis=1)
    assert (by_order[20:].min(1) == 0).mean() > 0.5


def test_labels_that_always_occur_together_and_images_with_many_are_balanced_too() -> None:
    rng = np.random.default_rng(1)
    topics = rng.integers(0, 4, 600)
    matrix = (rng.random((600, 24)) < np.where(np.arange(24) // 6 == topics[:, None], 0.7, 0.1)).astype(np.int64)
    matrix[:, 23] = matrix[:, 22]
    dealt = deal(matrix, 5)
    assert np.abs(dealt - np.append(matrix.sum(0), 600)[:, None] / 5).max() < 3


def test_one_label_per_image_is_dealt_evenly() -> None:
    labels = np.repeat(np.arange(4), [3, 17, 28, 51])
    dealt = deal(np.eye(4, dtype=np.int64)[np.random.default_rng(2).permutation(labels)], 4)
    assert np.ptp(dealt, axis=1).max() <= 1


def test_images_without_any_label_fill_the_parts_up() -> None:
    matrix = np.zeros((50, 3), np.int64)
    matrix[:20, 0] = 1
    dealt = deal(matrix, 6)
    assert np.ptp(dealt, axis=1).max() <= 1
    assert dealt[-1].sum() == 50


def test_copies_count() -> None:
    matrix, sizes = np.ones((21, 1), np.int64), np.array([10, *[1] * 20])
    assert deal(matrix, 3, sizes).tolist() == [[10, 10, 10], [10, 10, 10]]


def test_unequal_parts_get_what_they_want() -> None:
    matrix = (np.random.default_rng(3).random((500, 6)) < [0.5, 0.3, 0.2, 0.1, 0.05, 0.02]).astype(np.int64)
    fractions = np.array([0.7, 0.2, 0.1])
    wanted = np.rint(matrix.sum(0)[:, None] * fractions).astype(np.int64)
    part = stratify(LabelSets.from_matrix(matrix), np.ones(500, np.int64), wanted, np.array([350, 100, 50]))
    dealt = np.stack([matrix[part == number].sum(0) for number in range(3)], axis=1)
    assert np.abs(dealt - wanted).max() <= 1
    assert np.abs(np.bincount(part) - [350, 100, 50]).max() <= 1
