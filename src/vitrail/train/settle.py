"""What a user may leave to the machine: how many steps fit into some minutes, which learning rate, how long it will take.

All is found out on weights that are thrown away, before the first step, and then stands in the run's recipe like any other
number: the run itself stays reproducible. The learning rate's range test is Smith's (2017).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from vitrail.data.loader import Loader
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.tasks.task import Task
from vitrail.train.recipe import Recipe, Schedule
from vitrail.train.state import State
from vitrail.train.step import train_step

WARM, LONG, MOST = 2, 3.0, 30  # steps before the clock starts, seconds and steps that it runs
LEAST = 20  # steps of a run worth the name
KEPT = 0.95  # of the minutes are planned with
TESTED, DECADES, BELOW = 100, 5, 3  # steps of a range test, and how far it goes, beginning so many below the recipe's lr
BURST = 4.0  # times the lowest loss: there is nothing to be learnt beyond
SMOOTH = 0.9


@dataclass(frozen=True)
class Wishes:
    """What is to be found out: steps that fit into ``minutes``, the learning rate."""

    minutes: float | None = None
    find_lr: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise VitrailError(f"minutes must be above 0 and have an end, got {self.minutes:g}; try 5")

    def adopt(self, recipe: Recipe, noted: Recipe) -> Recipe:
        """For a run that goes on: what was found out when it was begun."""
        if self.minutes is not None:
            recipe = recipe.lasting(noted.steps)
        if self.find_lr:
            recipe = with_lr(recipe, noted.optim.lr)
        return recipe


@dataclass(frozen=True)
class Pace:
    """Seconds of a step, of an evaluation of one picture, and of what else every evaluation does."""

    step: float
    picture: float
    beside: float = 0.0

    def lasts(self, recipe: Recipe, steps: int, validation: int, test: int) -> float:
        """Seconds that so many steps take, with their evaluations and the last one."""
        return steps * self.step + self.looks(-(-steps // recipe.evaluate), validation, test)

    def looks(self, times: int, validation: int, test: int) -> float:
        """Seconds of so many evaluations and of the last one."""
        return times * (self.picture * validation + self.beside) + self.picture * test


@dataclass(frozen=True)
class Tried:
    """A range test: learning rates, the smoothed loss at each, and the one to take."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    lr: float


Trial = Callable[[], State]  # makes fresh weights with their optimisers, to be thrown away
Shown = Callable[[State], nn.Module]  # the model to look at


def pace(
    recipe: Recipe, trial: Trial, task: Task, training: Loader, evaluation: Loader, workers: int, shown: Shown | None = None
) -> Pace:
    """From a few steps and one batch to evaluate. Ranks that share the work stop together."""
    state = trial()
    state.model.train()
    began, done = 0.0, 0
    for number, batch in enumerate(training.batches(0, WARM + MOST, workers)):
        if number == WARM:
            began = time.perf_counter()
        train_step(state, task, batch, recipe)
        done = number + 1 - WARM
        if done > 0 and state.team.any(time.perf_counter() - began > LONG):
            break
    step = (time.perf_counter() - began) / max(done, 1)
    model = state.shown if shown is None else shown(state)
    task.evaluate(model, evaluation, workers, state.team.rows)  # the first one warms up, too
    began = time.perf_counter()
    task.evaluate(model, evaluation, workers, state.team.rows)
    return Pace(step, (time.perf_counter() - began) / max(len(evaluation.source), 1))


def steps_in(minutes: float, recipe: Recipe, pace: Pace, validation: int, test: int) -> int:
    """The most that fit, with as many evaluations as the recipe has."""
    times = -(-recipe.steps // recipe.evaluate)
    looks = pace.looks(times, validation, test)
    steps = int((KEPT * 60 * minutes - looks) / pace.step)
    if steps < LEAST:
        least = (LEAST * pace.step + looks) / (60 * KEPT)
        raise VitrailError(
            f"{minutes:g} minutes are room for {max(steps, 0)} steps of this recipe here; "
            f"try --minutes {math.ceil(10 * least) / 10:g}, or a smaller --model or --image"
        )
    return steps


def range_test(
    recipe: Recipe, trial: Trial, task: Task, training: Loader, workers: int, progress: Progress | None = None
) -> Tried:
    """Raise the learning rate with every step until the loss bursts; take a tenth of where it is lowest (Smith 2017)."""
    state = trial()
    state.model.train()
    rates: list[float] = []
    losses: list[float] = []
    flat = replace(recipe, schedule=Schedule("constant"), steps=max(recipe.steps, TESTED))
    running = 0.0
    for number, batch in enumerate(training.batches(0, TESTED, workers)):
        rate = recipe.optim.lr * 10 ** (DECADES * number / (TESTED - 1) - BELOW)
        numbers = train_step(state, task, batch, with_lr(flat, rate))
        if not numbers:  # no picture of it could be read
            continue
        loss = numbers["loss"]
        running = SMOOTH * running + (1 - SMOOTH) * loss
        smooth = running / (1 - SMOOTH ** (len(losses) + 1))
        if not math.isfinite(smooth) or (losses and smooth > BURST * min(losses)):
            break
        rates.append(rate)
        losses.append(smooth)
        if progress:
            progress("finding the learning rate", number + 1, TESTED)
    if not losses:
        raise VitrailError("the loss is no number from the first step on, so no learning rate can be found; look at the data")
    return Tried(tuple(rates), tuple(losses), float(f"{rates[losses.index(min(losses))] / 10:.1e}"))


def with_lr(recipe: Recipe, lr: float) -> Recipe:
    """Muon's learning rate of matrices keeps its proportion to that of the rest."""
    times = lr / recipe.optim.lr
    return replace(recipe, optim=replace(recipe.optim, lr=lr, matrix_lr=recipe.optim.matrix_lr * times))
