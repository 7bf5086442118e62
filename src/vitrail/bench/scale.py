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

from vitrail.bench.peers import DECAY
from vitrail.bench.turns import in_turns
from vitrail.data.loader import Batch
from vitrail.data.preprocess import vit
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.variants import variant
from vitrail.recipes.book import recipe
from vitrail.recipes.given import Given
from vitrail.tasks.classify import Classify
from vitrail.train.recipe import Optim, Recipe
from vitrail.train.state import fresh
from vitrail.train.step import train_step
from vitrail.train.team import joined

RANKS = 2
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Scale:
    """Efficiency: speed of two processes relative to one of two threads, on the same steps."""

    ddp_efficiency: float
    fsdp_efficiency: float
    images_per_second: dict[str, float]  # single, ddp, fsdp
    model: str
    batch: int
    rounds: int


def scale_speed(model: str = "Ti/16", batch: int = 32, rounds: int = 5, progress: Progress | None = None) -> Scale:
    if batch % RANKS:
        raise VitrailError(f"batch must be a multiple of the {RANKS} processes, got {batch}; try {batch + 1}")
    variant(model)  # fails here if the name is unknown
    with ExitStack() as stack:
        turns = {
            name: stack.enter_context(_crew(model, batch, ranks, parallel))
            for name, ranks, parallel in (("single", 1, "ddp"), ("ddp", RANKS, "ddp"), ("fsdp", RANKS, "fsdp"))
        }
        rates = in_turns(turns, rounds, progress)
    share = {name: round(rates[name] / rates["single"], 3) for name in ("ddp", "fsdp")}
    return Scale(share["ddp"], share["fsdp"], {name: round(rate, 2) for name, rate in rates.items()}, model, batch, rounds)


@contextmanager
def _crew(model: str, batch: int, ranks: int, parallel: str) -> Iterator[Callable[[], int]]:
    """Start processes that run a step on request, and end when their input closes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = str(RANKS // ranks)
    others = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": threads}
    line = [sys.executable, "-m", "vitrail.bench.scale", model, str(batch), parallel]
    with ExitStack() as stack:
        crew = [
            stack.enter_context(
                subprocess.Popen(
                    line,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **others, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )
            for rank in range(ranks)
        ]

        def turn() -> int:
            for each in crew:
                assert each.stdin is not None
                print(file=each.stdin, flush=True)
            for each in crew:
                assert each.stdout is not None
                if not each.stdout.readline():
                    raise VitrailError(f"a process of {model} by {parallel} has exited; it may be out of memory")
            return batch

        turn()  # warm-up
        turn()
        yield turn
        for each in crew:
            each.communicate()


def _serve(model: str, batch: int, parallel: Parallel) -> None:
    """Run one of the processes: a line in, a step, a line out."""
    settings = _settings(model, batch, parallel)
    with joined() as team:
        torch.manual_seed(0)
        state, task = fresh(build(settings.model), settings, team), Classify(settings.model.classes)
        state.model.train()
        count = batch // team.ranks
        images = torch.randn(count, 3, *settings.model.image)
        mine = Batch(images, torch.arange(count), torch.arange(count))
        for _ in sys.stdin:
            state.step = settings.schedule.warmup  # where the learning rate is not zero
            began = time.perf_counter()
            train_step(state, task, mine, settings)
            print(json.dumps(time.perf_counter() - began), flush=True)  # noqa: T201


def _settings(model: str, batch: int, parallel: Parallel) -> Recipe:
    config = variant(model)
    plain = replace(recipe("demo", Given()), model=config, preprocess=vit(config.image), batch=batch, ema=None)
    return replace(plain, optim=Optim(weight_decay=DECAY, clip=1.0), parallel=parallel)


if __name__ == "__main__":
    name, size, way = sys.argv[1:]
    _serve(name, int(size), "fsdp" if way == "fsdp" else "ddp")
