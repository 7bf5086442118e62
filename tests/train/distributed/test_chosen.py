"""A run replicates the model on each process if it fits, else shards it."""

import pytest
import torch

from vitrail.models.variants import variant
from vitrail.train.distributed import Parallel, chosen
from vitrail.train.team import Team


@pytest.mark.parametrize(
    ("parallel", "free", "expected"),
    [("auto", 2**40, "ddp"), ("auto", 2**30, "fsdp"), ("auto", None, "ddp"), ("ddp", 1, "ddp"), ("fsdp", 2**40, "fsdp")],
)
def test_models_that_do_not_fit_are_sharded(
    parallel: Parallel, free: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Team, "free", lambda self, where: free)
    monkeypatch.setattr(Team, "everyone", lambda self, *values: [list(values)] * self.ranks)  # the same on all ranks
    assert chosen(parallel, variant("L/16"), torch.device("cpu"), Team(1, 2)) == expected


def test_one_process_without_enough_memory_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "free", lambda self, where: 2**40)
    monkeypatch.setattr(Team, "everyone", lambda self, *values: [list(values), [1.0]])
    assert chosen("auto", variant("L/16"), torch.device("cpu"), Team(0, 2)) == "fsdp"
