"""Each schedule is its formula, starts from 0 and ends where it should."""

import math

import pytest

from vitrail.recipes.recipe import Schedule
from vitrail.training.schedule import lr_multiplier


@pytest.mark.parametrize("kind", ["cosine", "linear", "rsqrt", "constant"])
def test_warm_up_is_a_straight_line_to_the_peak(kind: str) -> None:
    schedule = Schedule(kind, warmup_steps=10)  # type: ignore[arg-type]
    assert [lr_multiplier(schedule, step, 100) for step in range(10)] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert lr_multiplier(schedule, 10, 100) == 1


def test_each_kind_is_its_formula() -> None:
    for step in (20, 35, 99):
        done = (step - 10) / 90
        assert lr_multiplier(Schedule("cosine", 10), step, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi * done)))
        assert lr_multiplier(Schedule("linear", 10), step, 100) == pytest.approx(1 - done)
        assert lr_multiplier(Schedule("rsqrt", 10, rsqrt_timescale=50), step, 100) == pytest.approx(
            math.sqrt(50 / (50 + step - 10))
        )
        assert lr_multiplier(Schedule("constant", 10), step, 100) == 1
        assert lr_multiplier(Schedule("cosine", 10, min_lr_ratio=0.1), step, 100) == pytest.approx(
            0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))
        )


def test_cooldown_is_a_straight_line_to_zero() -> None:
    schedule = Schedule("constant", cooldown_steps=20)
    assert lr_multiplier(schedule, 79, 100) == lr_multiplier(schedule, 80, 100) == 1
    assert [lr_multiplier(schedule, step, 100) for step in (85, 90, 99)] == pytest.approx([0.75, 0.5, 0.05])
