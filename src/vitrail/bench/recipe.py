"""``vitrail bench time-to-accuracy``: time to accuracy on ``fashion``, against timm's ViT of the same size, usual recipe.

The peer trains for as long as the demo does, with AdamW, cosine and the same crops and flips, at three learning rates of
which the best on the test images counts. The question to our recipe: what fraction of that time does a shorter run of it need
to reach the same accuracy?
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch

from vitrail.bench.peers import timm_vit
from vitrail.bench.rivals import Ours, Peer, Rival, accuracy, seconds_a_step, trained
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Data, Progress
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.settings import ViTConfig
from vitrail.recipes.demo import demo
from vitrail.recipes.given import Given
from vitrail.train.recipe import Recipe

RATES = (5e-4, 1e-3, 2e-3)
SHARES = tuple(Fraction(share) for share in ("1/4", "1/3", "1/2", "2/3", "1"))  # of the demo's steps
SLICE = 20  # steps per turn


@dataclass(frozen=True)
class Ended:
    """A run: its learning rate, its steps, their seconds, and its final accuracy on the test images."""

    lr: float
    steps: int
    seconds: float
    accuracy: float


@dataclass(frozen=True)
class RecipeSpeed:
    """``ratio``: our seconds to the peer's accuracy over the peer's; both None if the whole demo stays below it."""

    accuracy: float  # of the peer's best run
    ours_seconds: float | None
    peer_seconds: float
    ratio: float | None
    ours: list[Ended]
    peer: list[Ended]
    seconds_a_step: dict[str, float]


def recipe_speed(steps: int | None = None, rounds: int = 10, progress: Progress | None = None) -> RecipeSpeed:
    """Run the benchmark. ``steps``: of the demo, instead of its own; ``rounds``: timed rounds of a step."""
    whole = demo(Given())
    whole = whole if steps is None else whole.lasting(steps)
    data = pictures(whole.data, progress=progress)
    cost = _seconds_a_step(whole, data, rounds, progress)
    budget = whole.steps * cost["ours"]
    peer = [_peer_run(whole, data, lr, budget, cost["peer"], progress) for lr in RATES]
    bar = max(run.accuracy for run in peer)
    ours = list(_until(bar, whole, data, cost["ours"], progress))
    needed = ours[-1].seconds if ours[-1].accuracy >= bar else None
    ratio = None if needed is None else needed / budget
    return RecipeSpeed(bar, needed, budget, ratio, ours, peer, cost)


def _ours(recipe: Recipe) -> Ours:
    torch.manual_seed(recipe.seed)
    return Ours(recipe, build(recipe.model))


def _peer(recipe: Recipe, lr: float, steps: int) -> Peer:
    """Return the peer, with our crops and flips: the usual shift by 4 of 28 pixels would handicap it, see docs/log.md."""
    assert isinstance(recipe.model, ViTConfig)
    torch.manual_seed(recipe.seed)
    try:
        return Peer(recipe, timm_vit(recipe.model), lr, steps)
    except ImportError:
        raise VitrailError("bench time-to-accuracy compares with timm: pip install -c constraints.txt timm") from None


def _seconds_a_step(recipe: Recipe, data: Data, rounds: int, progress: Progress | None) -> dict[str, float]:
    steps = rounds * SLICE
    rivals: dict[str, Rival] = {"ours": _ours(recipe.lasting(steps)), "peer": _peer(recipe, RATES[0], steps)}
    return seconds_a_step(rivals, recipe, data, SLICE, rounds, progress)


def _peer_run(recipe: Recipe, data: Data, lr: float, budget: float, cost: float, progress: Progress | None) -> Ended:
    steps = max(round(budget / cost), 1)
    rival = _peer(recipe, lr, steps)
    _train(rival, recipe, data, steps, f"timm, lr {lr:g}", progress)
    return Ended(lr, steps, steps * cost, accuracy(rival, recipe, data))


def _until(bar: float, recipe: Recipe, data: Data, cost: float, progress: Progress | None) -> Iterator[Ended]:
    """Yield longer and longer runs of our recipe, until one reaches the bar."""
    for steps in sorted({max(int(recipe.steps * share), 1) for share in SHARES}):
        rival = _ours(recipe.lasting(steps))
        _train(rival, recipe, data, steps, f"ours, {steps:,} steps", progress)
        run = Ended(recipe.optim.lr, steps, steps * cost, accuracy(rival, recipe, data))
        yield run
        if run.accuracy >= bar:
            return


def _train(rival: Rival, recipe: Recipe, data: Data, steps: int, what: str, progress: Progress | None) -> None:
    for step in trained(rival, recipe, data, steps):
        if progress:
            progress(what, step, steps)
