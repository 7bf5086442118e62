"""Assignments with the smallest sum of costs, compared with scipy's and with all permutations."""

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

from vitrail.tasks.linear_assignment import assign


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (7, 3), (6, 6), (0, 4), (20, 100), (40, 31)])
@pytest.mark.parametrize("kind", ["real", "whole numbers", "equal"])
def test_the_sum_is_as_small_as_scipys(shape: tuple[int, int], kind: str) -> None:
    generator = np.random.default_rng(0)
    for _ in range(10):
        costs = {
            "real": generator.normal(size=shape),
            "whole numbers": generator.integers(-3, 3, size=shape).astype(float),
            "equal": np.ones(shape),
        }[kind]
        rows, columns = assign(costs)
        assert len(rows) == len(columns) == min(shape)
        assert len(set(columns.tolist())) == len(columns)
        assert (np.diff(rows) > 0).all()
        assert costs[rows, columns].sum() == pytest.approx(costs[linear_sum_assignment(costs)].sum())


def test_the_sum_is_the_smallest_of_all_permutations() -> None:
    costs = np.random.default_rng(1).normal(size=(5, 5))
    rows, columns = assign(costs)
    assert costs[rows, columns].sum() == pytest.approx(
        min(costs[range(5), list(order)].sum() for order in permutations(range(5)))
    )


def test_costs_that_are_not_finite_are_taken_last() -> None:
    costs = np.array([[np.nan, 2.0, 9.0], [1.0, np.inf, 8.0]])
    assert assign(costs)[1].tolist() == [1, 0]
    assert sorted(assign(np.full((2, 3), np.nan))[1].tolist()) == [0, 1]
