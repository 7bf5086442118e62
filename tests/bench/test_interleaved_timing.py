"""Contestants take turns, and the best of each counts."""

import time

from vitrail.bench.interleaved_timing import best_of_interleaved


def test_contestants_take_turns_and_the_best_of_each_counts() -> None:
    order: list[str] = []

    def work(name: str, items: int, waits: list[float]) -> int:
        order.append(name)
        time.sleep(waits.pop(0))
        return items

    slow, quick = [0.05, 0.02], [0.01, 0.01]
    result = best_of_interleaved({"a": lambda: work("a", 10, slow), "b": lambda: work("b", 10, quick)}, 2)
    assert order == ["a", "b", "b", "a"]  # each comes first once
    assert 0 < result["a"] <= 10 / 0.02  # sleeping never takes less than requested
    assert 0 < result["b"] <= 10 / 0.01
