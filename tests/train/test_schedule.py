"""Each schedule is its formula, starts from 0 and ends where it should."""

import math

import pytest

from vitrail.train.recipe import Schedule
from vitrail.train.schedule import rate


@pytest.mark.parametrize("kind", ["cosine", "linear", "rsqrt", "constant"])
def test_warm_up_is_a_straight_line_to_the_peak(kind: str) -> None:
    schedule = Schedule(kind, warmup=10)  # type: ignore[arg-type]
    assert [rate(schedule, step, 100) for step in range(10)] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rate(schedule, 10, 100) == 1


def test_each_kind_is_its_formula() -> None:
    for step in (20, 35, 99):
        done = (step - 10) / 90
        assert rate(Schedule("cosine", 10), step, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi * done)))
        assert rate(Schedule("linear", 10), step, 100) == pytest.approx(1 - done)
        assert rate(Schedule("rsqrt", 10, timescale=50), step, 100) == pytest.approx(math.sqrt(50 / (50 + step - 10)))
        assert rate(Schedule("constant", 10), step, 100) == 1
        assert rate(Schedule("cosine", 10, floor=0.1), step, 100) == pytest.approx(
            0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))
        )


def test_cooldown_is_a_straight_line_to_zero() -> None:
    schedule = Schedule("constant", cooldown=20)
    assert rate(schedule, 79, 100) == rate(schedule, 80, 100) == 1
    assert [rate(schedule, step, 100) for step in (85, 90, 99)] == pytest.approx([0.75, 0.5, 0.05])
