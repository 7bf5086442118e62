"""Automatic tuning before a run: the steps that fit into a time budget, the learning rate, the estimated duration.

All is measured on weights that are discarded, before the first step, and then written to the run's recipe: the run itself
stays reproducible. The learning-rate range test is Smith's (2017).
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

WARM, LONG, MOST = 2, 3.0, 30  # warm-up steps, then at most so many timed seconds and steps
LEAST = 20  # steps of the shortest run
KEPT = 0.95  # fraction of the time budget that is planned
TESTED, DECADES, BELOW = 100, 5, 3  # steps of a range test, the decades it covers, and how many are below the recipe's lr
BURST = 4.0  # times the lowest loss: the range test has diverged
SMOOTH = 0.9


@dataclass(frozen=True)
class Wishes:
    """Options of automatic tuning: the steps that fit into ``minutes``, the learning rate."""

    minutes: float | None = None
    find_lr: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise VitrailError(f"minutes must be above 0 and finite, got {self.minutes:g}; try 5")

    def adopt(self, recipe: Recipe, noted: Recipe) -> Recipe:
        """Apply the values that were tuned when the run was started, to resume it."""
        if self.minutes is not None:
            recipe = recipe.lasting(noted.steps)
        if self.find_lr:
            recipe = with_lr(recipe, noted.optim.lr)
        return recipe


@dataclass(frozen=True)
class Pace:
    """Seconds per training step, per evaluated image, and of the fixed overhead per evaluation."""

    step: float
    picture: float
    beside: float = 0.0

    def lasts(self, recipe: Recipe, steps: int, validation: int, test: int) -> float:
        """Seconds of so many steps, with their evaluations and the final one."""
        return steps * self.step + self.looks(-(-steps // recipe.evaluate), validation, test)

    def looks(self, times: int, validation: int, test: int) -> float:
        """Seconds of so many evaluations and of the final one."""
        return times * (self.picture * validation + self.beside) + self.picture * test


@dataclass(frozen=True)
class Tried:
    """A learning-rate range test: the rates, the smoothed loss at each, and the suggested rate."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    lr: float


Trial = Callable[[], State]  # creates a state that is discarded
Shown = Callable[[State], nn.Module]  # returns the model to evaluate


def pace(
    recipe: Recipe, trial: Trial, task: Task, training: Loader, evaluation: Loader, workers: int, shown: Shown | None = None
) -> Pace:
    """Time a few steps and one evaluated batch. All ranks stop together."""
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
    task.evaluate(model, evaluation, workers, state.team.rows)  # a warm-up
    began = time.perf_counter()
    task.evaluate(model, evaluation, workers, state.team.rows)
    return Pace(step, (time.perf_counter() - began) / max(len(evaluation.source), 1))


def steps_in(minutes: float, recipe: Recipe, pace: Pace, validation: int, test: int) -> int:
    """Return the largest number of steps that fits, with as many evaluations as the recipe has."""
    times = -(-recipe.steps // recipe.evaluate)
    looks = pace.looks(times, validation, test)
    steps = int((KEPT * 60 * minutes - looks) / pace.step)
    if steps < LEAST:
        least = (LEAST * pace.step + looks) / (60 * KEPT)
        raise VitrailError(
            f"only {max(steps, 0)} steps of this recipe fit into {minutes:g} minutes here; "
            f"try --time-budget {math.ceil(10 * least) / 10:g}, or a smaller --model or --image"
        )
    return steps


def range_test(
    recipe: Recipe, trial: Trial, task: Task, training: Loader, workers: int, progress: Progress | None = None
) -> Tried:
    """Raise the learning rate with every step until the loss diverges; suggest a tenth of the best one (Smith 2017)."""
    state = trial()
    state.model.train()
    rates: list[float] = []
    losses: list[float] = []
    flat = replace(recipe, schedule=Schedule("constant"), steps=max(recipe.steps, TESTED))
    running = 0.0
    for number, batch in enumerate(training.batches(0, TESTED, workers)):
        rate = recipe.optim.lr * 10 ** (DECADES * number / (TESTED - 1) - BELOW)
        numbers = train_step(state, task, batch, with_lr(flat, rate))
        if not numbers:  # none of its images could be read
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
        raise VitrailError("the loss is not finite (NaN/Inf) from the first step on, so no lr can be found; check the dataset")
    return Tried(tuple(rates), tuple(losses), float(f"{rates[losses.index(min(losses))] / 10:.1e}"))


def with_lr(recipe: Recipe, lr: float) -> Recipe:
    """Return the recipe with another learning rate; Muon's is scaled in proportion."""
    times = lr / recipe.optim.lr
    return replace(recipe, optim=replace(recipe.optim, lr=lr, matrix_lr=recipe.optim.matrix_lr * times))
