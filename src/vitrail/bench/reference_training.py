"""Contestants that train on the same batches: ours by its recipe, and another library's model with torch's AdamW, eager.

Seconds of a run are its steps times the seconds of one, which are timed interleaved. So other load on the machine during
training changes neither steps nor accuracies.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from vitrail.bench.interleaved_timing import best_of_interleaved
from vitrail.bench.reference_models import WEIGHT_DECAY
from vitrail.data.loader import Batch, build_eval_loader, build_train_loader
from vitrail.data.sources.dataset import DatasetSplits, Progress
from vitrail.models.build import Model, build
from vitrail.recipes.recipe import Recipe, Schedule
from vitrail.system import available_cores
from vitrail.tasks.registry import build_task
from vitrail.training.process_group import SINGLE_PROCESS, ProcessGroup
from vitrail.training.schedule import lr_multiplier
from vitrail.training.state import create_state
from vitrail.training.step import train_step


class Contestant(Protocol):
    @property
    def eval_model(self) -> nn.Module: ...

    def step(self, batch: Batch) -> None: ...


class VitrailTraining:
    def __init__(self, recipe: Recipe, model: Model) -> None:
        self.recipe = recipe
        self.task = build_task(recipe.task, recipe.model, recipe.preprocess)
        self.state = create_state(model.train(), recipe)

    @property
    def eval_model(self) -> nn.Module:
        return self.state.eval_model

    def step(self, batch: Batch) -> None:
        train_step(self.state, self.task, batch, self.recipe)


class ReferenceTraining:
    """Reference model trained with cross-entropy, and cosine after the recipe's fraction of warm-up."""

    def __init__(self, recipe: Recipe, model: nn.Module, lr: float, steps: int) -> None:
        self.eval_model = model.train()
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=WEIGHT_DECAY)
        self.schedule = Schedule("cosine", warmup_steps=recipe.schedule.warmup_steps * steps // recipe.steps)
        self.lr, self.steps, self.step_count = lr, steps, 0

    def step(self, batch: Batch) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * lr_multiplier(self.schedule, self.step_count, self.steps)
        self.optimiser.zero_grad()
        F.cross_entropy(self.eval_model(batch.images), batch.targets).backward()
        self.optimiser.step()
        self.step_count += 1


def own_train_step(recipe: Recipe, batch: Batch, group: ProcessGroup = SINGLE_PROCESS) -> Callable[[], int]:
    """Return a training step of our own on one batch, at a learning rate that is not zero. It returns the batch size."""
    task = build_task(recipe.task, recipe.model, recipe.preprocess)
    state = create_state(task.build_model(build(recipe.model)), recipe, group)
    state.model.train()
    if recipe.compile:
        state.model.compile()

    def step() -> int:
        state.step = recipe.schedule.warmup_steps
        train_step(state, task, batch, recipe)
        return len(batch.indices)

    return step


def train_steps(contestant: Contestant, recipe: Recipe, data: DatasetSplits, steps: int) -> Iterator[int]:
    """Train step by step, with the recipe's batches and augmentation for every contestant."""
    loader = build_train_loader(data.train, recipe.preprocess, recipe.batch_size, recipe.augment, recipe.seed)
    for number, batch in enumerate(loader.batches(0, steps), 1):
        contestant.step(batch)
        yield number


def seconds_per_step(
    contestants: Mapping[str, Contestant],
    recipe: Recipe,
    data: DatasetSplits,
    steps_per_turn: int,
    rounds: int,
    progress: Progress | None,
) -> dict[str, float]:
    """Return the seconds per step of each, including its batches."""

    def turn(contestant: Contestant) -> Callable[[], int]:
        return lambda: sum(1 for _ in train_steps(contestant, recipe, data, steps_per_turn))

    speeds = best_of_interleaved({name: turn(contestant) for name, contestant in contestants.items()}, rounds, progress)
    return {name: 1 / speed for name, speed in speeds.items()}


def evaluate_accuracy(
    contestant: Contestant, recipe: Recipe, data: DatasetSplits, split: str = "test", batch_size: int = 256
) -> float:
    loader = build_eval_loader(data.splits[split], recipe.preprocess, batch_size)
    task = build_task(recipe.task, recipe.model, recipe.preprocess)
    return float(task.evaluate(contestant.eval_model, loader, available_cores())["top1"])
