"""A training step on the scales: every byte that it holds, by following each tensor's memory from its making to its end.

``torchrun -m tests.train.weighing`` weighs what ranks hold under DDP and FSDP2, and prints it.
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


def recipe(model: ModelConfig, pictures: int, **changes: Any) -> Recipe:
    given: dict[str, Any] = {
        "name": "weighed", "model": model, "steps": 9, "batch": pictures, "augment": policy("none"),
        "preprocess": Preprocess(model.image, mean=(0.5,) * model.channels, std=(0.5,) * model.channels),
        "optim": Optim(clip=1.0), "schedule": Schedule("constant"),
    }  # fmt: skip
    return Recipe(**{**given, **changes})


def started(settings: Recipe, team: Team = ALONE) -> State:
    """Behind two steps, so that moments and buckets are where they stay."""
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
    """Bytes of what stays from step to step; Adam's counters, one number a tensor, are left out."""
    moments = [value for optimiser in state.optimisers for each in optimiser.state.values() for value in each.values()]
    gradients = [weight.grad for weight in state.model.parameters() if weight.grad is not None]
    average: list[Tensor] = [] if state.average is None else list(state.average.model.parameters())
    found: dict[str, list[Tensor]] = {
        "weights": list(state.model.parameters()), "gradients": gradients,
        "moments": [each for each in moments if each.ndim], "average": average,
    }  # fmt: skip
    return {name: sum(each.nbytes for each in local(tensors)) for name, tensors in found.items()}


def most_beside(state: State, settings: Recipe, team: Team = ALONE) -> int:
    """Bytes that a step holds at most beside weights, moments and average, with its pictures."""
    batch, task = pictures(settings, team), Classify(settings.model.classes)
    for weight in state.model.parameters():
        weight.grad = None
    with Alive() as alive:
        train_step(state, task, batch, settings)
    return alive.most + batch.images.nbytes


class Alive(TorchDispatchMode):
    """Follows what is made while it looks on."""

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
    """Every rank's bytes, for each case."""
    found = []
    with joined() as team:
        for model, parallel, micro in CASES:
            settings = recipe(model, 8, parallel=parallel, micro=micro, ema=0.9)
            state = started(settings, team)
            still = standing(state)
            beside = most_beside(state, settings, team)
            ranks = [json.loads(text) for text in team.texts(json.dumps({**still, "beside": beside}))]
            found.append({"width": model.width, "parallel": parallel, "micro": micro, "ranks": ranks})
        if team.first:
            sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
