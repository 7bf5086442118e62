"""Automatic tuning before a run: the steps that fit into a time budget, the learning rate, the estimated duration.

All is measured on weights that are discarded, before the first step, and then written to the run's recipe: the run itself
stays reproducible. The learning-rate range test is Smith's (2017).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from vitrail.data.loader import Loader
from vitrail.data.sources.dataset import Progress, Subset
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe, Schedule
from vitrail.tasks.task import Task
from vitrail.training.callbacks import Callback
from vitrail.training.evaluator import EVAL_BATCH_SIZE, Evaluator
from vitrail.training.state import TrainState
from vitrail.training.step import train_step

WARMUP_STEPS, TIMED_SECONDS, MAX_TIMED_STEPS = 2, 3.0, 30  # warm-up steps, then at most so many timed seconds and steps
FEW_STEPS = 100  # fewer steps teach a model next to nothing
BUDGET_FRACTION = 0.95  # fraction of the time budget that is planned
EVAL_FRACTION = 0.2  # fraction of the time budget for evaluations during training
RANGE_TEST_STEPS = 100
RANGE_TEST_DECADES, DECADES_BELOW = 5, 3  # decades of learning rates, and how many of them are below the recipe's
DIVERGENCE_FACTOR = 4.0  # times the lowest loss: the range test has diverged
LOSS_SMOOTHING = 0.9


@dataclass(frozen=True)
class AutoTune:
    """Options of automatic tuning: the steps that fit into ``minutes``, the learning rate."""

    minutes: float | None = None
    find_lr: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise VitrailError(f"minutes must be above 0 and finite, got {self.minutes:g}; try minutes=5")

    def apply_saved(self, recipe: Recipe, saved: Recipe) -> Recipe:
        """Apply the values that were tuned when the run was started, to resume it."""
        if self.minutes is not None:
            recipe = replace(recipe.with_steps(saved.steps), eval_every=saved.eval_every)
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


@dataclass(frozen=True)
class AutoTuner:
    """Measures what the options leave open, on weights that are discarded."""

    recipe: Recipe
    task: Task
    evaluator: Evaluator
    callback: Callback
    new_state: "StateFactory"
    train_loader: Callable[[], Loader]

    def tune(self, options: AutoTune, start: float) -> tuple[Recipe, StepTiming | None, float | None]:
        """Return the tuned recipe, the measured timing, and the deadline of training. ``start``: when the run began."""
        recipe, evaluator = self.recipe, self.evaluator
        if options.find_lr:
            lr_test = lr_range_test(
                recipe, self.new_state, self.task, self.train_loader(), evaluator.workers, self.callback.progress
            )
            self.callback.on_message(f"the range test finds lr {lr_test.lr:g}; the recipe has {recipe.optim.lr:g}")
            evaluator.run.save_lr_test(vars(lr_test))
            recipe = with_lr(recipe, lr_test.lr)
        if options.minutes is None and not evaluator.group.any_rank(self.callback.wants_eta):
            return recipe, None, None
        timing = self._measure(recipe)
        if options.minutes is None:
            return recipe, timing, None
        return self._fit_to_minutes(recipe, options.minutes, timing, start)

    def _measure(self, recipe: Recipe) -> StepTiming:
        """Time steps and evaluations; the slowest rank counts."""
        evaluator, state = self.evaluator, self.new_state()
        sample = Subset(evaluator.selection_set, np.arange(min(len(evaluator.selection_set), EVAL_BATCH_SIZE)))
        measured = measure_timing(
            recipe, self.new_state, self.task, self.train_loader(), evaluator.loader(sample, state), evaluator.workers,
            evaluator.eval_model,
        )  # fmt: skip
        overhead = evaluator.overhead_seconds(evaluator.eval_model(state))
        slowest = evaluator.group.gather(measured.step, measured.image, overhead)
        return StepTiming(*map(max, zip(*slowest, strict=True)))

    def _fit_to_minutes(
        self, recipe: Recipe, minutes: float, timing: StepTiming, start: float
    ) -> tuple[Recipe, StepTiming, float]:
        """Set the steps that fit into the budget, and the deadline that leaves time for the final evaluation."""
        num_val, num_test = len(self.evaluator.selection_set), len(self.evaluator.data.test)
        elapsed = self.evaluator.group.all_max(time.monotonic() - start)
        shortened = recipe_for_minutes(minutes, recipe, timing, num_val, num_test, elapsed)
        steps = "1 step fits" if shortened.steps == 1 else f"{shortened.steps:,} steps fit"
        self.callback.on_message(f"time      {steps} into {minutes:g} minutes; the recipe has {recipe.steps:,}")
        if shortened.steps < min(FEW_STEPS, recipe.steps):
            self.callback.on_message("          expect little of so few steps; a smaller model or image size trains faster")
        return shortened, timing, start + 60 * minutes - timing.eval_duration(1, num_val, num_test)


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
    seconds: list[float] = []
    start = time.perf_counter()
    for batch in train_loader.batches(0, WARMUP_STEPS + MAX_TIMED_STEPS, workers):
        train_step(state, task, batch, recipe)
        seconds.append(time.perf_counter() - start - sum(seconds))
        if len(seconds) > 1 and state.group.any_rank(sum(seconds) > TIMED_SECONDS):
            break
    timed = seconds[min(WARMUP_STEPS, len(seconds) - 1) :]
    model = state.eval_model if eval_model is None else eval_model(state)
    eval_seconds = math.inf
    for _ in range(2):  # the first is a warm-up, unless it takes long
        start = time.perf_counter()
        task.evaluate(model, eval_loader, workers, state.group.all_gather_rows)
        eval_seconds = min(eval_seconds, time.perf_counter() - start)
        if state.group.any_rank(eval_seconds > TIMED_SECONDS):
            break
    return StepTiming(sum(timed) / max(len(timed), 1), eval_seconds / max(len(eval_loader.dataset), 1))


def recipe_for_minutes(
    minutes: float, recipe: Recipe, timing: StepTiming, num_val: int, num_test: int, elapsed: float = 0.0
) -> Recipe:
    """Return the recipe with as many steps as fit, at least one, and no more evaluations than the time allows.

    ``elapsed`` seconds of the budget are used up already.
    """
    one_evaluation = timing.eval_duration(1, num_val, 0)
    available = BUDGET_FRACTION * 60 * minutes - elapsed - timing.eval_duration(1, num_val, num_test)
    more_evaluations = -(-recipe.steps // recipe.eval_every) - 1
    if one_evaluation > 0:
        more_evaluations = min(more_evaluations, int(EVAL_FRACTION * max(available, 0.0) / one_evaluation))
    steps = max(int((available - more_evaluations * one_evaluation) / timing.step), 1)
    shortened = recipe.with_steps(steps)
    return replace(shortened, eval_every=max(shortened.eval_every, -(-steps // (more_evaluations + 1))))


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
