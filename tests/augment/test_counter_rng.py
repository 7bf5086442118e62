"""The random numbers have no state: they depend only on their key, and pass statistical tests."""

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from vitrail.augment.counter_rng import permutation, random_bits, uniforms


def test_a_sample_alone_has_the_numbers_it_has_in_a_batch() -> None:
    epochs, indices = np.array([3, 3, 4, 0]), np.array([10, 11, 10, 2**40])
    together = uniforms(7, epochs, indices, 6)
    alone = [uniforms(7, int(epoch), int(index), 6) for epoch, index in zip(epochs, indices, strict=True)]
    assert np.array_equal(together, np.stack(alone))
    assert np.array_equal(uniforms(7, epochs, indices, 4, first_slot=2), together[:, 2:])


def test_every_part_of_the_key_counts() -> None:
    one = uniforms(1, 2, 3, 5)
    others = [uniforms(2, 2, 3, 5), uniforms(1, 3, 3, 5), uniforms(1, 2, 4, 5), uniforms(1, 3, 2, 5), uniforms(-1, 2, 3, 5)]
    assert all(not np.isin(one, other).any() for other in others)


@pytest.mark.parametrize("axis", ["index", "epoch", "slot"])
def test_the_numbers_are_uniform_along_every_part_of_the_key(axis: str) -> None:
    many, zeros = np.arange(40_000), np.zeros(40_000, np.int64)
    keys = {"index": (zeros, many), "epoch": (many, zeros)}
    u = uniforms(0, *keys[axis], 2) if axis in keys else uniforms(0, 0, 0, 80_000).reshape(-1, 2)
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u.T)[0, 1]) < 0.02
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.02
    assert u.min() >= 0
    assert u.max() < 1


def splitmix(state: int) -> int:
    """SplitMix64 as published, in integers of any size."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


def test_the_stream_is_the_published_hash_and_never_changes() -> None:
    """A run resumed with a later version must draw the same numbers."""
    key = splitmix(splitmix(splitmix(5) ^ 2) ^ 7)
    assert (
        random_bits(5, 2, 7, np.array([3])).tolist()
        == [splitmix((key + 3 * 0x9E3779B97F4A7C15) % 2**64)]
        == [9276661751216942188]
    )
    assert permutation(5, 1, 8).tolist() == [2, 5, 3, 4, 6, 0, 1, 7]


def test_an_epoch_has_every_number_once_in_an_order_of_its_own() -> None:
    first, second = permutation(0, 0, 1000), permutation(0, 1, 1000)
    assert sorted(first.tolist()) == list(range(1000))
    assert (first == second).mean() < 0.02
    assert (first == permutation(1, 0, 1000)).mean() < 0.02
    assert len(permutation(0, 0, 0)) == 0
