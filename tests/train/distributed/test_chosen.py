"""Left to itself, a run keeps the whole model on each process wherever that fits."""

import pytest
import torch

from vitrail.models.variants import variant
from vitrail.train.distributed import Parallel, chosen
from vitrail.train.team import Team


@pytest.mark.parametrize(
    ("asked", "free", "expected"),
    [("auto", 2**40, "ddp"), ("auto", 2**30, "fsdp"), ("auto", None, "ddp"), ("ddp", 1, "ddp"), ("fsdp", 2**40, "fsdp")],
)
def test_models_that_do_not_fit_are_shared_out(
    asked: Parallel, free: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Team, "free", lambda self, where: free)
    monkeypatch.setattr(Team, "everyone", lambda self, *values: [list(values)] * self.ranks)  # all see the same
    assert chosen(asked, variant("L/16"), torch.device("cpu"), Team(1, 2)) == expected


def test_one_process_that_has_no_room_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "free", lambda self, where: 2**40)
    monkeypatch.setattr(Team, "everyone", lambda self, *values: [list(values), [1.0]])
    assert chosen("auto", variant("L/16"), torch.device("cpu"), Team(0, 2)) == "fsdp"
