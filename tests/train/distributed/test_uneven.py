"""If ranks could not read all of their images, a step is that of the readable images."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.distributed.torchrun import command, environment
from tests.train.small_run import batch, built, still
from vitrail.data.loader import Batch
from vitrail.tasks.classify import Classify
from vitrail.train.recipe import Optim
from vitrail.train.state import fresh
from vitrail.train.step import train_step
from vitrail.train.team import Team, joined

WAYS = (("ddp", "muon"), ("fsdp", "muon"), ("ddp", "sgd"), ("fsdp", "sgd"))
PARTS = ((5, 0), (3, 2), (0, 4), (0, 0), (1, 7))  # images of two ranks, step by step


def some(start: int, end: int) -> Batch:
    whole = batch(8)
    return Batch(whole.images[start:end], whole.labels[start:end], whole.indices[start:end])


def learned(team: Team, parallel: str, micro: int | None, kind: str) -> list[dict[str, float]]:
    optim = Optim(kind="sgd", nesterov=True, weight_decay=0.1) if kind == "sgd" else Optim(kind="muon", clip=1.0)
    settings = still(parallel=parallel, micro=micro, steps=10, optim=optim)
    state = fresh(built(settings).train(), settings, team)
    metrics = []
    for parts in PARTS:
        mine = (0, sum(parts)) if team.ranks == 1 else (sum(parts[: team.rank]), sum(parts[: team.rank + 1]))
        metrics.append(train_step(state, Classify(10), some(*mine), settings))
    return [*metrics, {"images": state.images, "step": state.step}]


@pytest.mark.parametrize("micro", [None, 2])
def test_images_that_are_missing_on_a_rank_do_not_count(micro: int | None, tmp_path: Path) -> None:
    (tmp_path / "go.py").write_text("from tests.train.distributed.test_uneven import main; main()")
    line = command(2, tmp_path / "found", micro or 0, script=str(tmp_path / "go.py"))
    root = str(Path(__file__).parents[3])
    done = subprocess.run(line, capture_output=True, text=True, env=environment(PYTHONPATH=root), timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for parallel, kind in WAYS:
        expected = learned(Team(), "auto", micro, kind)
        metrics = json.loads((tmp_path / f"found-{parallel}-{kind}").read_text())
        for step, (ours, theirs) in enumerate(zip(expected, metrics, strict=True)):
            assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6), (parallel, kind, step)


def main() -> None:
    """Entry point of one rank."""
    torch.manual_seed(0)
    prefix, micro = sys.argv[1], int(sys.argv[2]) or None
    with joined() as team:
        for parallel, kind in WAYS:
            metrics = learned(team, parallel, micro, kind)
            if team.first:
                Path(f"{prefix}-{parallel}-{kind}").write_text(json.dumps(metrics))
