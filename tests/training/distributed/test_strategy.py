"""A run replicates the model on each process if it fits, else shards it."""

import pytest
import torch

from vitrail.models.variants import variant
from vitrail.training.parallel import Parallel, choose_strategy
from vitrail.training.process_group import ProcessGroup


@pytest.mark.parametrize(
    ("parallel", "free", "expected"),
    [("auto", 2**40, "ddp"), ("auto", 2**30, "fsdp"), ("auto", None, "ddp"), ("ddp", 1, "ddp"), ("fsdp", 2**40, "fsdp")],
)
def test_models_that_do_not_fit_are_sharded(
    parallel: Parallel, free: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessGroup, "free_memory", lambda self, where: free)
    monkeypatch.setattr(ProcessGroup, "gather", lambda self, *values: [list(values)] * self.world_size)  # the same on all ranks
    assert choose_strategy(parallel, variant("L/16"), torch.device("cpu"), ProcessGroup(1, 2)) == expected


def test_one_process_without_enough_memory_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessGroup, "free_memory", lambda self, where: 2**40)
    monkeypatch.setattr(ProcessGroup, "gather", lambda self, *values: [list(values), [1.0]])
    assert choose_strategy("auto", variant("L/16"), torch.device("cpu"), ProcessGroup(0, 2)) == "fsdp"
