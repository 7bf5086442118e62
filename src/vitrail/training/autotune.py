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
from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.tasks.task import Task
from vitrail.training.recipe import Recipe, Schedule
from vitrail.training.state import TrainState
from vitrail.training.step import train_step

WARMUP_STEPS, TIMED_SECONDS, MAX_TIMED_STEPS = 2, 3.0, 30  # warm-up steps, then at most so many timed seconds and steps
MIN_STEPS = 20  # steps of the shortest run
BUDGET_FRACTION = 0.95  # fraction of the time budget that is planned
RANGE_TEST_STEPS, RANGE_TEST_DECADES, DECADES_BELOW = (
    100,
    5,
    3,
)  # steps of a range test, the decades it covers, and how many are below the recipe's lr
DIVERGENCE_FACTOR = 4.0  # times the lowest loss: the range test has diverged
LOSS_SMOOTHING = 0.9


@dataclass(frozen=True)
class AutoTune:
    """Options of automatic tuning: the steps that fit into ``minutes``, the learning rate."""

    minutes: float | None = None
    find_lr: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise VitrailError(f"minutes must be above 0 and finite, got {self.minutes:g}; try 5")

    def apply_saved(self, recipe: Recipe, saved: Recipe) -> Recipe:
        """Apply the values that were tuned when the run was started, to resume it."""
        if self.minutes is not None:
            recipe = recipe.with_steps(saved.steps)
        if self.find_lr:
            recipe = with_lr(recipe, saved.optim.lr)
        return recipe


@dataclass(frozen=True)
class StepTiming:
    """Seconds per training step, per evaluated image, and of the fixed overhead per evaluation."""

    step: float
    image: float
    overhead: float = 0.0

    def duration(self, recipe: Recipe, steps: int, num_val: int, num_test: int) -> float:
        """Seconds of so many steps, with their evaluations and the final one."""
        return steps * self.step + self.eval_duration(-(-steps // recipe.eval_every), num_val, num_test)

    def eval_duration(self, evaluations: int, num_val: int, num_test: int) -> float:
        """Seconds of so many evaluations and of the final one."""
        return evaluations * (self.image * num_val + self.overhead) + self.image * num_test


@dataclass(frozen=True)
class LRRangeTest:
    """A learning-rate range test: the rates, the smoothed loss at each, and the suggested rate."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    lr: float


StateFactory = Callable[[], TrainState]  # creates a state that is discarded
EvalModel = Callable[[TrainState], nn.Module]  # returns the model to evaluate


def measure_timing(
    recipe: Recipe,
    new_state: StateFactory,
    task: Task,
    train_loader: Loader,
    eval_loader: Loader,
    workers: int,
    eval_model: EvalModel | None = None,
) -> StepTiming:
    """Time a few steps and one evaluated batch. All ranks stop together."""
    state = new_state()
    state.model.train()
    start, timed_steps = 0.0, 0
    for index, batch in enumerate(train_loader.batches(0, WARMUP_STEPS + MAX_TIMED_STEPS, workers)):
        if index == WARMUP_STEPS:
            start = time.perf_counter()
        train_step(state, task, batch, recipe)
        timed_steps = index + 1 - WARMUP_STEPS
        if timed_steps > 0 and state.group.any_rank(time.perf_counter() - start > TIMED_SECONDS):
            break
    step = (time.perf_counter() - start) / max(timed_steps, 1)
    model = state.eval_model if eval_model is None else eval_model(state)
    task.evaluate(model, eval_loader, workers, state.group.all_gather_rows)  # a warm-up
    start = time.perf_counter()
    task.evaluate(model, eval_loader, workers, state.group.all_gather_rows)
    return StepTiming(step, (time.perf_counter() - start) / max(len(eval_loader.dataset), 1))


def steps_for_minutes(minutes: float, recipe: Recipe, timing: StepTiming, num_val: int, num_test: int) -> int:
    """Return the largest number of steps that fits, with as many evaluations as the recipe has."""
    evaluations = -(-recipe.steps // recipe.eval_every)
    eval_seconds = timing.eval_duration(evaluations, num_val, num_test)
    steps = int((BUDGET_FRACTION * 60 * minutes - eval_seconds) / timing.step)
    if steps < MIN_STEPS:
        min_minutes = (MIN_STEPS * timing.step + eval_seconds) / (60 * BUDGET_FRACTION)
        raise VitrailError(
            f"only {max(steps, 0)} steps of this recipe fit into {minutes:g} minutes here; "
            f"try --time-budget {math.ceil(10 * min_minutes) / 10:g}, or a smaller --model or --image"
        )
    return steps


def lr_range_test(
    recipe: Recipe, new_state: StateFactory, task: Task, train_loader: Loader, workers: int, progress: Progress | None = None
) -> LRRangeTest:
    """Raise the learning rate with every step until the loss diverges; suggest a tenth of the best one (Smith 2017)."""
    state = new_state()
    state.model.train()
    rates: list[float] = []
    losses: list[float] = []
    flat_recipe = replace(recipe, schedule=Schedule("constant"), steps=max(recipe.steps, RANGE_TEST_STEPS))
    running = 0.0
    for index, batch in enumerate(train_loader.batches(0, RANGE_TEST_STEPS, workers)):
        lr = recipe.optim.lr * 10 ** (RANGE_TEST_DECADES * index / (RANGE_TEST_STEPS - 1) - DECADES_BELOW)
        metrics = train_step(state, task, batch, with_lr(flat_recipe, lr))
        if not metrics:  # none of its images could be read
            continue
        loss = metrics["loss"]
        running = LOSS_SMOOTHING * running + (1 - LOSS_SMOOTHING) * loss
        smoothed = running / (1 - LOSS_SMOOTHING ** (len(losses) + 1))
        if not math.isfinite(smoothed) or (losses and smoothed > DIVERGENCE_FACTOR * min(losses)):
            break
        rates.append(lr)
        losses.append(smoothed)
        if progress:
            progress("finding the learning rate", index + 1, RANGE_TEST_STEPS)
    if not losses:
        raise VitrailError("the loss is not finite (NaN/Inf) from the first step on, so no lr can be found; check the dataset")
    return LRRangeTest(tuple(rates), tuple(losses), float(f"{rates[losses.index(min(losses))] / 10:.1e}"))


def with_lr(recipe: Recipe, lr: float) -> Recipe:
    """Return the recipe with another learning rate; Muon's is scaled in proportion."""
    ratio = lr / recipe.optim.lr
    return replace(recipe, optim=replace(recipe.optim, lr=lr, muon_lr=recipe.optim.muon_lr * ratio))
