"""``vitrail bench time-to-accuracy``: time to accuracy on ``fashion``, against timm's ViT of the same size, usual recipe.

The peer trains for as long as the demo does, with AdamW, cosine and the same crops and flips, at three learning rates of
which the best on the test images counts. The question to our recipe: what fraction of that time does a shorter run of it need
to reach the same accuracy?
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch

from vitrail.bench.reference_models import timm_vit
from vitrail.bench.reference_training import (
    Contestant,
    ReferenceTraining,
    VitrailTraining,
    evaluate_accuracy,
    seconds_per_step,
    train_steps,
)
from vitrail.data.sources.dataset import DatasetSplits, Progress
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.config import ViTConfig
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.demo import demo
from vitrail.recipes.recipe import Recipe

PEER_LRS = (5e-4, 1e-3, 2e-3)
STEP_FRACTIONS = tuple(Fraction(fraction) for fraction in ("1/4", "1/3", "1/2", "2/3", "1"))  # of the demo's steps
STEPS_PER_TURN = 20  # steps per turn


@dataclass(frozen=True)
class RunResult:
    """A run: its learning rate, its steps, their seconds, and its final accuracy on the test images."""

    lr: float
    steps: int
    seconds: float
    accuracy: float


@dataclass(frozen=True)
class TimeToAccuracy:
    """``ratio``: our seconds to the peer's accuracy over the peer's; both None if the whole demo stays below it."""

    accuracy: float  # of the peer's best run
    ours_seconds: float | None
    peer_seconds: float
    ratio: float | None
    ours: list[RunResult]
    peer: list[RunResult]
    seconds_per_step: dict[str, float]


def benchmark_time_to_accuracy(steps: int | None = None, rounds: int = 10, progress: Progress | None = None) -> TimeToAccuracy:
    """Run the benchmark. ``steps``: of the demo, instead of its own; ``rounds``: timed rounds of a step."""
    full_recipe = demo(RecipeContext())
    full_recipe = full_recipe if steps is None else full_recipe.with_steps(steps)
    data = open_dataset(full_recipe.data, progress=progress)
    cost = _seconds_per_step(full_recipe, data, rounds, progress)
    budget = full_recipe.steps * cost["ours"]
    peer = [_peer_run(full_recipe, data, lr, budget, cost["peer"], progress) for lr in PEER_LRS]
    bar = max(run.accuracy for run in peer)
    ours = list(_runs_until(bar, full_recipe, data, cost["ours"], progress))
    needed = ours[-1].seconds if ours[-1].accuracy >= bar else None
    ratio = None if needed is None else needed / budget
    return TimeToAccuracy(bar, needed, budget, ratio, ours, peer, cost)


def _ours(recipe: Recipe) -> VitrailTraining:
    torch.manual_seed(recipe.seed)
    return VitrailTraining(recipe, build(recipe.model))


def _peer(recipe: Recipe, lr: float, steps: int) -> ReferenceTraining:
    """Return the peer, with our crops and flips: the usual shift by 4 of 28 pixels would handicap it, see docs/log.md."""
    assert isinstance(recipe.model, ViTConfig)
    torch.manual_seed(recipe.seed)
    try:
        return ReferenceTraining(recipe, timm_vit(recipe.model), lr, steps)
    except ImportError:
        raise VitrailError("bench time-to-accuracy compares with timm; try pip install -c constraints.txt timm") from None


def _seconds_per_step(recipe: Recipe, data: DatasetSplits, rounds: int, progress: Progress | None) -> dict[str, float]:
    steps = rounds * STEPS_PER_TURN
    contestants: dict[str, Contestant] = {"ours": _ours(recipe.with_steps(steps)), "peer": _peer(recipe, PEER_LRS[0], steps)}
    return seconds_per_step(contestants, recipe, data, STEPS_PER_TURN, rounds, progress)


def _peer_run(
    recipe: Recipe, data: DatasetSplits, lr: float, budget: float, cost: float, progress: Progress | None
) -> RunResult:
    steps = max(round(budget / cost), 1)
    contestant = _peer(recipe, lr, steps)
    _train(contestant, recipe, data, steps, f"timm, lr {lr:g}", progress)
    return RunResult(lr, steps, steps * cost, evaluate_accuracy(contestant, recipe, data))


def _runs_until(bar: float, recipe: Recipe, data: DatasetSplits, cost: float, progress: Progress | None) -> Iterator[RunResult]:
    """Yield longer and longer runs of our recipe, until one reaches the bar."""
    for steps in sorted({max(int(recipe.steps * fraction), 1) for fraction in STEP_FRACTIONS}):
        contestant = _ours(recipe.with_steps(steps))
        _train(contestant, recipe, data, steps, f"ours, {steps:,} steps", progress)
        run = RunResult(recipe.optim.lr, steps, steps * cost, evaluate_accuracy(contestant, recipe, data))
        yield run
        if run.accuracy >= bar:
            return


def _train(
    contestant: Contestant, recipe: Recipe, data: DatasetSplits, steps: int, what: str, progress: Progress | None
) -> None:
    for step in train_steps(contestant, recipe, data, steps):
        if progress:
            progress(what, step, steps)
