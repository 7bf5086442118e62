"""If ranks could not read all of their images, a step is that of the readable images."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.small_models import classification_task
from tests.training.distributed.torchrun import command, environment
from tests.training.small_run import batch, build_test_model, deterministic_recipe
from vitrail.data.loader import Batch
from vitrail.recipes.recipe import Optim
from vitrail.training.process_group import ProcessGroup, process_group
from vitrail.training.state import create_state
from vitrail.training.step import train_step

STRATEGIES = (("ddp", "muon"), ("fsdp", "muon"), ("ddp", "sgd"), ("fsdp", "sgd"))
IMAGES_PER_RANK = ((5, 0), (3, 2), (0, 4), (0, 0), (1, 7))  # images of two ranks, step by step


def batch_slice(start: int, end: int) -> Batch:
    whole = batch(8)
    return Batch(whole.images[start:end], whole.targets[start:end], whole.indices[start:end])


def train_uneven(group: ProcessGroup, parallel: str, micro: int | None, kind: str) -> list[dict[str, float]]:
    optim = Optim(name="sgd", nesterov=True, weight_decay=0.1) if kind == "sgd" else Optim(name="muon", grad_clip=1.0)
    settings = deterministic_recipe(parallel=parallel, micro_batch_size=micro, steps=10, optim=optim)
    state = create_state(build_test_model(settings).train(), settings, group)
    metrics = []
    for parts in IMAGES_PER_RANK:
        bounds = (0, sum(parts)) if group.world_size == 1 else (sum(parts[: group.rank]), sum(parts[: group.rank + 1]))
        metrics.append(train_step(state, classification_task(10), batch_slice(*bounds), settings))
    return [*metrics, {"images": state.images, "step": state.step}]


@pytest.mark.thorough
@pytest.mark.parametrize("micro", [None, 2])
def test_images_that_are_missing_on_a_rank_do_not_count(micro: int | None, tmp_path: Path) -> None:
    (tmp_path / "go.py").write_text("from tests.training.distributed.test_uneven_batches import main; main()")
    line = command(2, tmp_path / "metrics", micro or 0, script=str(tmp_path / "go.py"))
    root = str(Path(__file__).parents[3])
    done = subprocess.run(line, capture_output=True, text=True, env=environment(PYTHONPATH=root), timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for parallel, kind in STRATEGIES:
        expected = train_uneven(ProcessGroup(), "auto", micro, kind)
        metrics = json.loads((tmp_path / f"metrics-{parallel}-{kind}").read_text())
        for step, (ours, theirs) in enumerate(zip(expected, metrics, strict=True)):
            assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6), (parallel, kind, step)


def main() -> None:
    """Entry point of one rank."""
    torch.manual_seed(0)
    prefix, micro = sys.argv[1], int(sys.argv[2]) or None
    with process_group() as group:
        for parallel, kind in STRATEGIES:
            metrics = train_uneven(group, parallel, micro, kind)
            if group.is_main:
                Path(f"{prefix}-{parallel}-{kind}").write_text(json.dumps(metrics))
