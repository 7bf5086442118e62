"""``vitrail bench scaling``: the cost of splitting a training step over two processes.

One process of two threads, and two processes of one thread each by DDP and by FSDP2, do the same steps of the same global batch
on the same cores, interleaved, the best of several rounds: an efficiency of one means that communication costs nothing. All
processes run from the start, and wait for their turn.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch

from vitrail.bench.interleaved_timing import best_of_interleaved
from vitrail.bench.reference_models import WEIGHT_DECAY
from vitrail.bench.reference_training import own_train_step
from vitrail.data.loader import Batch
from vitrail.data.preprocess import vit_preprocess
from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.models.variants import variant
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.recipe import Optim, Recipe
from vitrail.recipes.registry import get_recipe
from vitrail.training.process_group import process_group

WORLD_SIZE = 2
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class ScalingResult:
    """Efficiency: speed of two processes relative to one of two threads, on the same steps."""

    ddp_efficiency: float
    fsdp_efficiency: float
    images_per_second: dict[str, float]  # single, ddp, fsdp
    model: str
    batch_size: int
    rounds: int


def benchmark_scaling(
    model: str = "Ti/16", batch_size: int = 32, rounds: int = 5, progress: Progress | None = None
) -> ScalingResult:
    if batch_size % WORLD_SIZE:
        raise VitrailError(f"batch must be a multiple of the {WORLD_SIZE} processes, got {batch_size}; try {batch_size + 1}")
    variant(model)  # fails here if the name is unknown
    with ExitStack() as stack:
        turns = {
            name: stack.enter_context(_start_processes(model, batch_size, world_size, parallel))
            for name, world_size, parallel in (("single", 1, "ddp"), ("ddp", WORLD_SIZE, "ddp"), ("fsdp", WORLD_SIZE, "fsdp"))
        }
        rates = best_of_interleaved(turns, rounds, progress)
    efficiency = {name: round(rates[name] / rates["single"], 3) for name in ("ddp", "fsdp")}
    return ScalingResult(
        efficiency["ddp"], efficiency["fsdp"], {name: round(rate, 2) for name, rate in rates.items()}, model, batch_size, rounds
    )


@contextmanager
def _start_processes(model: str, batch_size: int, world_size: int, parallel: str) -> Iterator[Callable[[], int]]:
    """Start processes that run a step on request, and end when their input closes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = str(WORLD_SIZE // world_size)
    environment = {
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": threads,
    }
    command = [sys.executable, "-m", "vitrail.bench.distributed_scaling", model, str(batch_size), parallel]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )
            for rank in range(world_size)
        ]

        def turn() -> int:
            for each in processes:
                assert each.stdin is not None
                print(file=each.stdin, flush=True)
            for each in processes:
                assert each.stdout is not None
                if not each.stdout.readline():
                    raise VitrailError(f"a process of {model} by {parallel} has exited; it may be out of memory")
            return batch_size

        turn()  # warm-up
        turn()
        yield turn
        for each in processes:
            each.communicate()


def _run_process(model: str, batch_size: int, parallel: Parallel) -> None:
    """Run one of the processes: a line in, a step, a line out."""
    recipe = _benchmark_recipe(model, batch_size, parallel)
    with process_group() as group:
        torch.manual_seed(0)
        count = batch_size // group.world_size
        batch = Batch(torch.randn(count, 3, *recipe.model.image), torch.arange(count), torch.arange(count))
        step = own_train_step(recipe, batch, group)
        for _ in sys.stdin:
            start = time.perf_counter()
            step()
            print(json.dumps(time.perf_counter() - start), flush=True)  # noqa: T201


def _benchmark_recipe(model: str, batch_size: int, parallel: Parallel) -> Recipe:
    config = variant(model)
    plain = replace(
        get_recipe("demo", RecipeContext()),
        model=config,
        preprocess=vit_preprocess(config.image),
        batch_size=batch_size,
        ema_decay=None,
    )
    return replace(plain, optim=Optim(weight_decay=WEIGHT_DECAY, grad_clip=1.0), parallel=parallel)


if __name__ == "__main__":
    name, size, strategy = sys.argv[1:]
    _run_process(name, int(size), "fsdp" if strategy == "fsdp" else "ddp")
