"""The cost of reading attention, measured on a small model: a ratio of two times that are both reported."""

import pytest

from tests.small_models import small_config
from vitrail.bench.explain import benchmark_explain


def test_the_ratio_is_that_of_the_times_and_every_head_is_counted() -> None:
    speed = benchmark_explain(rounds=2, config=small_config())
    assert speed.heads == 4 * 3
    assert set(speed.seconds) == {"forward", "heads", "class"}
    assert speed.heads_ratio == pytest.approx(speed.seconds["heads"] / speed.seconds["forward"], abs=1e-3)
    assert speed.class_ratio == pytest.approx(speed.seconds["class"] / speed.seconds["forward"], abs=1e-3)
