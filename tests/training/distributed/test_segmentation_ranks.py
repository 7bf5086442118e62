"""EoMT on one process and on two: matching, annealing and losses of images do not depend on the rank that has them."""

from pathlib import Path

import pytest

from tests.training.distributed.torchrun import lines, steps, torchrun

SETTINGS = {
    "steps": 6,
    "schedule.warmup_steps": 0,
    "eval_every": 3,
    "checkpoint_every": 6,
    "task.queries": 5,
    "optim.name": "adamw",
}


@pytest.mark.parametrize(
    "parallel", [pytest.param("ddp", marks=pytest.mark.thorough), pytest.param("fsdp", marks=pytest.mark.slow)]
)
def test_queries_are_trained_the_same_on_two_ranks(parallel: str, tmp_path: Path) -> None:
    changes = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    call = ("train", "panes:train_size=40,size=24x32", "--task", "segment", "--head", "eomt", "--model", "mu/8", *changes)
    runs = {ranks: tmp_path / f"run-{ranks}" for ranks in (1, 2)}
    for ranks, run in runs.items():
        strategy = ("--set", f"parallel={parallel}") if ranks > 1 else ()
        done = torchrun(ranks, *call, "--batch-size", "10", "--out", run, *strategy)
        assert done.returncode == 0, done.stderr[-2000:]
    ours, theirs = (steps(run) for run in runs.values())
    assert list(theirs) == list(ours) == list(range(1, 7))
    for step, metrics in ours.items():
        assert theirs[step]["loss"] == pytest.approx(metrics["loss"], rel=1e-4)
    evaluations = [[line["validation"]["miou"] for line in lines(run) if "validation" in line] for run in runs.values()]
    assert evaluations[1] == pytest.approx(evaluations[0], abs=2e-3)
