"""Contestants that train on the same batches: ours by its recipe, and another library's model with torch's AdamW, eager.

Seconds of a run are its steps times the seconds of one, which are timed interleaved. So other load on the machine during
training changes neither steps nor accuracies.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from vitrail.bench.peers import DECAY
from vitrail.bench.turns import in_turns
from vitrail.data.loader import Batch, evaluation, training
from vitrail.data.sources.source import Data, Progress
from vitrail.data.threads import cores
from vitrail.models.build import Model
from vitrail.tasks.classify import Classify
from vitrail.train.recipe import Recipe, Schedule
from vitrail.train.schedule import rate
from vitrail.train.state import fresh
from vitrail.train.step import train_step


class Rival(Protocol):
    @property
    def shown(self) -> nn.Module: ...

    def step(self, batch: Batch) -> None: ...


class Ours:
    def __init__(self, recipe: Recipe, model: Model) -> None:
        self.recipe = recipe
        self.task = Classify(recipe.model.classes, recipe.loss, recipe.smoothing)
        self.state = fresh(model.train(), recipe)

    @property
    def shown(self) -> nn.Module:
        return self.state.shown

    def step(self, batch: Batch) -> None:
        train_step(self.state, self.task, batch, self.recipe)


class Peer:
    """Reference model trained with cross-entropy, and cosine after the recipe's fraction of warm-up."""

    def __init__(self, recipe: Recipe, model: nn.Module, lr: float, steps: int) -> None:
        self.shown = model.train()
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=DECAY)
        self.schedule = Schedule("cosine", warmup=recipe.schedule.warmup * steps // recipe.steps)
        self.lr, self.steps, self.done = lr, steps, 0

    def step(self, batch: Batch) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * rate(self.schedule, self.done, self.steps)
        self.optimiser.zero_grad()
        F.cross_entropy(self.shown(batch.images), batch.labels).backward()
        self.optimiser.step()
        self.done += 1


def trained(rival: Rival, recipe: Recipe, data: Data, steps: int) -> Iterator[int]:
    """Train step by step, with the recipe's batches and augmentation for every contestant."""
    loader = training(data.train, recipe.preprocess, recipe.batch, recipe.augment, recipe.seed)
    for number, batch in enumerate(loader.batches(0, steps), 1):
        rival.step(batch)
        yield number


def seconds_a_step(
    rivals: Mapping[str, Rival], recipe: Recipe, data: Data, each: int, rounds: int, progress: Progress | None
) -> dict[str, float]:
    """Return the seconds per step of each, including its batches; ``each``: steps per turn."""

    def turn(rival: Rival) -> Callable[[], int]:
        return lambda: sum(1 for _ in trained(rival, recipe, data, each))

    speeds = in_turns({name: turn(rival) for name, rival in rivals.items()}, rounds, progress)
    return {name: 1 / speed for name, speed in speeds.items()}


def accuracy(rival: Rival, recipe: Recipe, data: Data, split: str = "test", batch: int = 256) -> float:
    looking = evaluation(data.splits[split], recipe.preprocess, batch)
    return float(Classify(recipe.model.classes).evaluate(rival.shown, looking, cores())["top1"])
