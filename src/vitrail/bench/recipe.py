"""``vitrail bench recipe``: time to accuracy on ``fashion``, against timm's ViT of the same size with the usual recipe.

The peer trains for as long as the demo does, with AdamW, cosine and the same shifts and flips, at three learning rates of
which the best on the test pictures counts. What our recipe is asked: how much of that time does a shorter run of it need to end
as high?

Seconds are steps times the seconds of one, and those are taken in turns. So what else the machine does while the models train
changes neither their steps nor their accuracies.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from vitrail.augment.policy import Policy
from vitrail.bench.peers import DECAY, timm_vit
from vitrail.bench.turns import in_turns
from vitrail.data.loader import Batch, evaluation, training
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Data, Progress
from vitrail.data.threads import cores
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.settings import ViTConfig
from vitrail.recipes.demo import demo
from vitrail.recipes.given import Given
from vitrail.tasks.classify import Classify
from vitrail.train.recipe import Recipe, Schedule
from vitrail.train.schedule import rate
from vitrail.train.state import fresh
from vitrail.train.step import train_step

RATES = (5e-4, 1e-3, 2e-3)
SHARES = tuple(Fraction(share) for share in ("1/4", "1/3", "1/2", "2/3", "1"))  # of the demo's steps
SLICE = 20  # steps of a turn


@dataclass(frozen=True)
class Ended:
    """A run: its learning rate, its steps, what they take, and the share of the test pictures that it knows in the end."""

    lr: float
    steps: int
    seconds: float
    accuracy: float


@dataclass(frozen=True)
class RecipeSpeed:
    """``ratio``: our seconds to the peer's accuracy by the peer's; none, as our seconds, where the whole demo ends below it."""

    accuracy: float  # of the peer's best run
    ours_seconds: float | None
    peer_seconds: float
    ratio: float | None
    ours: list[Ended]
    peer: list[Ended]
    seconds_a_step: dict[str, float]


def recipe_speed(steps: int | None = None, rounds: int = 10, progress: Progress | None = None) -> RecipeSpeed:
    """``steps``: of the demo, instead of its own; ``rounds``: turns in which a step is timed."""
    whole = demo(Given())
    whole = whole if steps is None else whole.lasting(steps)
    data = pictures(whole.data, progress=progress)
    cost = _seconds_a_step(whole, data, rounds, progress)
    budget = whole.steps * cost["ours"]
    peer = [_peer_run(whole, data, lr, budget, cost["peer"], progress) for lr in RATES]
    accuracy = max(run.accuracy for run in peer)
    ours = list(_until(accuracy, whole, data, cost["ours"], progress))
    needed = ours[-1].seconds if ours[-1].accuracy >= accuracy else None
    ratio = None if needed is None else needed / budget
    return RecipeSpeed(accuracy, needed, budget, ratio, ours, peer, cost)


class _Rival(Protocol):
    augment: Policy

    @property
    def shown(self) -> nn.Module: ...

    def step(self, batch: Batch) -> None: ...


class _Ours:
    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.augment = recipe, recipe.augment
        self.task = Classify(recipe.model.classes, recipe.loss, recipe.smoothing)
        self.state = fresh(build(recipe.model).train(), recipe)

    @property
    def shown(self) -> nn.Module:
        return self.state.shown

    def step(self, batch: Batch) -> None:
        train_step(self.state, self.task, batch, self.recipe)


class _Peer:
    """timm's model, eager: torch's AdamW, cosine after the demo's share of warm-up, its shifts and flips, cross entropy."""

    def __init__(self, recipe: Recipe, lr: float, steps: int) -> None:
        assert isinstance(recipe.model, ViTConfig)
        torch.manual_seed(recipe.seed)
        try:
            self.shown = timm_vit(recipe.model).train()
        except ImportError:
            raise VitrailError("bench recipe compares with timm: pip install -c constraints.txt timm") from None
        self.augment = recipe.augment  # the usual shift by 4 pixels of 28 would hold it down: see docs/log.md
        self.optimiser = torch.optim.AdamW(self.shown.parameters(), lr=lr, weight_decay=DECAY)
        self.schedule = Schedule("cosine", warmup=recipe.schedule.warmup * steps // recipe.steps)
        self.lr, self.steps, self.done = lr, steps, 0

    def step(self, batch: Batch) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * rate(self.schedule, self.done, self.steps)
        self.optimiser.zero_grad()
        F.cross_entropy(self.shown(batch.images), batch.labels).backward()
        self.optimiser.step()
        self.done += 1


def _seconds_a_step(recipe: Recipe, data: Data, rounds: int, progress: Progress | None) -> dict[str, float]:
    """Of each, its batches included."""
    steps = rounds * SLICE
    rivals: dict[str, _Rival] = {"ours": _Ours(recipe.lasting(steps)), "peer": _Peer(recipe, RATES[0], steps)}

    def turn(rival: _Rival) -> Callable[[], int]:
        def work() -> int:
            _train(rival, recipe, data, SLICE)
            return SLICE

        return work

    speeds = in_turns({name: turn(rival) for name, rival in rivals.items()}, rounds, progress)
    return {name: 1 / speed for name, speed in speeds.items()}


def _peer_run(recipe: Recipe, data: Data, lr: float, budget: float, cost: float, progress: Progress | None) -> Ended:
    steps = max(round(budget / cost), 1)
    rival = _Peer(recipe, lr, steps)
    _train(rival, recipe, data, steps, _telling(progress, f"timm, lr {lr:g}", steps))
    return Ended(lr, steps, steps * cost, _accuracy(rival, recipe, data))


def _until(accuracy: float, recipe: Recipe, data: Data, cost: float, progress: Progress | None) -> Iterator[Ended]:
    """Runs of our recipe, longer and longer, the last of them as good as asked for, if any is."""
    for steps in sorted({max(int(recipe.steps * share), 1) for share in SHARES}):
        rival = _Ours(recipe.lasting(steps))
        _train(rival, recipe, data, steps, _telling(progress, f"ours, {steps:,} steps", steps))
        run = Ended(recipe.optim.lr, steps, steps * cost, _accuracy(rival, recipe, data))
        yield run
        if run.accuracy >= accuracy:
            return


def _train(rival: _Rival, recipe: Recipe, data: Data, steps: int, tell: Callable[[int], None] | None = None) -> None:
    loader = training(data.train, recipe.preprocess, recipe.batch, rival.augment, recipe.seed)
    for number, batch in enumerate(loader.batches(0, steps), 1):
        rival.step(batch)
        if tell:
            tell(number)


def _telling(progress: Progress | None, what: str, steps: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda step: progress(what, step, steps)


def _accuracy(rival: _Rival, recipe: Recipe, data: Data) -> float:
    looking = evaluation(data.test, recipe.preprocess, 256)
    return float(Classify(recipe.model.classes).evaluate(rival.shown, looking, cores())["top1"])
