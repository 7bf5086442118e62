"""Measure the peak memory of a training step, by tracking every tensor's storage from allocation to release.

``torchrun -m tests.planning.measure_memory`` measures the ranks of DDP and FSDP2, and prints their memory.
"""

import json
import sys
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.small_models import classification_task
from vitrail.augment.policy import get_policy
from vitrail.data.loader import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.recipes.recipe import Optim, Recipe, Schedule
from vitrail.training.parallel import to_local
from vitrail.training.process_group import SINGLE_PROCESS, ProcessGroup, process_group
from vitrail.training.state import TrainState, create_state
from vitrail.training.step import train_step

NARROW = ViTConfig(width=96, depth=5, mlp=384, heads=3, patch=(7, 7), image=(28, 42), channels=1, classes=10, pool="gap")
WIDE = ViTConfig(width=192, depth=3, mlp=640, heads=6, patch=(8, 8), image=(64, 48), classes=18)

CASES = [(NARROW, "ddp", None), (NARROW, "ddp", 2), (NARROW, "fsdp", None), (NARROW, "fsdp", 2), (WIDE, "fsdp", 2)]


def recipe(model: ModelConfig, images: int, **changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "name": "measured", "model": model, "steps": 9, "batch_size": images, "augment": get_policy("none"),
        "preprocess": Preprocess(model.image, mean=(0.5,) * model.channels, std=(0.5,) * model.channels),
        "optim": Optim(grad_clip=1.0), "schedule": Schedule("constant"),
    }  # fmt: skip
    return Recipe(**{**fields, **changes})


def warmed_up_state(settings: Recipe, group: ProcessGroup = SINGLE_PROCESS) -> TrainState:
    """The state after two steps, so that optimiser state and buckets are allocated."""
    torch.manual_seed(0)
    model = build(settings.model).train()
    model.activation_checkpointing = settings.activation_checkpointing
    state = create_state(model, settings, group)
    for _ in range(2):
        train_step(state, classification_task(settings.model.classes), random_batch(settings, group), settings)
    return state


def random_batch(settings: Recipe, group: ProcessGroup = SINGLE_PROCESS) -> Batch:
    count, model = settings.batch_size // group.world_size, settings.model
    images = torch.randn(count, model.channels, *model.image)
    return Batch(images, torch.arange(count) % model.classes, torch.arange(count))


def persistent_bytes(state: TrainState) -> dict[str, int]:
    """Bytes that persist between steps; Adam's step counters, one number per tensor, are not counted."""
    moments = [value for optimiser in state.optimisers for each in optimiser.state.values() for value in each.values()]
    gradients = [weight.grad for weight in state.model.parameters() if weight.grad is not None]
    ema: list[Tensor] = [] if state.ema is None else list(state.ema.model.parameters())
    by_purpose: dict[str, list[Tensor]] = {
        "weights": list(state.model.parameters()), "gradients": gradients,
        "optimizer_state": [each for each in moments if each.ndim], "ema": ema,
    }  # fmt: skip
    return {name: sum(each.nbytes for each in to_local(tensors)) for name, tensors in by_purpose.items()}


def peak_bytes(state: TrainState, settings: Recipe, group: ProcessGroup = SINGLE_PROCESS) -> int:
    """Peak bytes of a step beyond weights, optimiser state and EMA weights, its images included."""
    batch, task = random_batch(settings, group), classification_task(settings.model.classes)
    for weight in state.model.parameters():
        weight.grad = None
    with MemoryTracker() as alive:
        train_step(state, task, batch, settings)
    return alive.peak + batch.images.nbytes


class MemoryTracker(TorchDispatchMode):
    """Tracks the storages that are allocated in its context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()
        self.current = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in self.storages and storage._cdata not in before:
                self.storages.add(storage._cdata)
                self.current += storage.nbytes()
                self.peak = max(self.peak, self.current)
                weakref.finalize(storage, self.release, storage._cdata, storage.nbytes())
        return out

    def release(self, key: int, size: int) -> None:
        self.storages.discard(key)
        self.current -= size


def main() -> None:
    """Print the bytes of every rank, for each case."""
    measured = []
    with process_group() as group:
        for model, parallel, micro in CASES:
            settings = recipe(model, 8, parallel=parallel, micro_batch_size=micro, ema_decay=0.9)
            state = warmed_up_state(settings, group)
            persistent = persistent_bytes(state)
            peak = peak_bytes(state, settings, group)
            ranks = [json.loads(text) for text in group.gather_str(json.dumps({**persistent, "peak": peak}))]
            measured.append({"width": model.width, "parallel": parallel, "micro": micro, "ranks": ranks})
        if group.is_main:
            sys.stdout.write(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
