"""Measure the peak memory of a training step, by tracking every tensor's storage from allocation to release.

``torchrun -m tests.train.weighing`` measures the ranks of DDP and FSDP2, and prints it.
"""

import json
import sys
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitrail.augment.policy import policy
from vitrail.data.loader import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.tasks.classify import Classify
from vitrail.train.distributed import local
from vitrail.train.recipe import Optim, Recipe, Schedule
from vitrail.train.state import State, fresh
from vitrail.train.step import train_step
from vitrail.train.team import ALONE, Team, joined

NARROW = ViTConfig(width=96, depth=5, mlp=384, heads=3, patch=(7, 7), image=(28, 42), channels=1, classes=10, pool="gap")
WIDE = ViTConfig(width=192, depth=3, mlp=640, heads=6, patch=(8, 8), image=(64, 48), classes=18)

CASES = [(NARROW, "ddp", None), (NARROW, "ddp", 2), (NARROW, "fsdp", None), (NARROW, "fsdp", 2), (WIDE, "fsdp", 2)]


def recipe(model: ModelConfig, images: int, **changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "name": "weighed", "model": model, "steps": 9, "batch": images, "augment": policy("none"),
        "preprocess": Preprocess(model.image, mean=(0.5,) * model.channels, std=(0.5,) * model.channels),
        "optim": Optim(clip=1.0), "schedule": Schedule("constant"),
    }  # fmt: skip
    return Recipe(**{**fields, **changes})


def started(settings: Recipe, team: Team = ALONE) -> State:
    """The state after two steps, so that optimiser state and buckets are allocated."""
    torch.manual_seed(0)
    model = build(settings.model).train()
    model.checkpointing = settings.recompute
    state = fresh(model, settings, team)
    for _ in range(2):
        train_step(state, Classify(settings.model.classes), pictures(settings, team), settings)
    return state


def pictures(settings: Recipe, team: Team = ALONE) -> Batch:
    count, model = settings.batch // team.ranks, settings.model
    images = torch.randn(count, model.channels, *model.image)
    return Batch(images, torch.arange(count) % model.classes, torch.arange(count))


def standing(state: State) -> dict[str, int]:
    """Bytes that persist between steps; Adam's step counters, one number per tensor, are not counted."""
    moments = [value for optimiser in state.optimisers for each in optimiser.state.values() for value in each.values()]
    gradients = [weight.grad for weight in state.model.parameters() if weight.grad is not None]
    ema: list[Tensor] = [] if state.average is None else list(state.average.model.parameters())
    by_purpose: dict[str, list[Tensor]] = {
        "weights": list(state.model.parameters()), "gradients": gradients,
        "moments": [each for each in moments if each.ndim], "average": ema,
    }  # fmt: skip
    return {name: sum(each.nbytes for each in local(tensors)) for name, tensors in by_purpose.items()}


def most_beside(state: State, settings: Recipe, team: Team = ALONE) -> int:
    """Peak bytes of a step beyond weights, optimiser state and EMA weights, its images included."""
    batch, task = pictures(settings, team), Classify(settings.model.classes)
    for weight in state.model.parameters():
        weight.grad = None
    with Alive() as alive:
        train_step(state, task, batch, settings)
    return alive.most + batch.images.nbytes


class Alive(TorchDispatchMode):
    """Tracks the storages that are allocated in its context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: set[int] = set()
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in self.known and storage._cdata not in before:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.gone, storage._cdata, storage.nbytes())
        return out

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def main() -> None:
    """Print the bytes of every rank, for each case."""
    measured = []
    with joined() as team:
        for model, parallel, micro in CASES:
            settings = recipe(model, 8, parallel=parallel, micro=micro, ema=0.9)
            state = started(settings, team)
            persistent = standing(state)
            peak = most_beside(state, settings, team)
            ranks = [json.loads(text) for text in team.texts(json.dumps({**persistent, "peak": peak}))]
            measured.append({"width": model.width, "parallel": parallel, "micro": micro, "ranks": ranks})
        if team.first:
            sys.stdout.write(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
