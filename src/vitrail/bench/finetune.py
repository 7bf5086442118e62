"""``vitrail bench finetune``: real weights on a real task, against timm's model with the usual fine-tuning in the same time.

Ours is the ``finetune`` recipe; the peer starts from the same weights and gets the same batches, with AdamW at 1e-4 and cosine.
Several seeds each; the weights of a run are selected on validation and reported on test. The linear probe is added, as the
accuracy of the unchanged features.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import torch
from torch import nn

from vitrail.bench.peers import timm_vit
from vitrail.bench.rivals import Ours, Peer, Rival, accuracy, seconds_a_step, trained
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Data, Progress
from vitrail.errors import VitrailError
from vitrail.evaluate.probe import probe
from vitrail.models.build import Model
from vitrail.models.settings import ViTConfig
from vitrail.recipes.finetune import finetune
from vitrail.recipes.given import Given, Start
from vitrail.train.recipe import Recipe
from vitrail.weights.convert import timm
from vitrail.weights.convert.link import write
from vitrail.weights.load import load, untold
from vitrail.weights.start import begin, fingerprint

RATE = 1e-4
LOOKS = 6  # evaluations per run
SLICE = 2  # steps per turn


@dataclass(frozen=True)
class Look:
    """Evaluation after a number of steps; seconds are steps times those of one."""

    step: int
    seconds: float
    validation: float
    test: float


@dataclass(frozen=True)
class Ended:
    """A run; ``validation`` and ``test`` are those of the evaluation that is best on validation, the first of equals."""

    seed: int
    validation: float
    test: float
    curve: list[Look]


@dataclass(frozen=True)
class FinetuneSpeed:
    """``ours_seconds``: until the mean of our runs reaches the peer's selected weights on test; None: never."""

    accuracy: float  # on test, the mean of the seeds
    peer_accuracy: float
    linear: float  # the linear probe's
    ours_seconds: float | None
    peer_seconds: float
    ratio: float | None
    ours: list[Ended]
    peer: list[Ended]
    seconds_a_step: dict[str, float]


def finetune_speed(
    weights: str | Path,
    source: str | Path,
    seeds: int = 3,
    steps: int | None = None,
    rounds: int = 5,
    progress: Progress | None = None,
) -> FinetuneSpeed:
    """Run the benchmark. ``steps``: instead of the recipe's own; ``rounds``: timed rounds of a step."""
    data = pictures(source, progress=progress)
    missing = [split for split in ("train", "validation", "test") if not len(data.splits[split])]
    if missing:
        raise VitrailError(f"{data.name} has no {missing[0]} images; bench finetune needs train, validation and test")
    recipe = _recipe(str(weights), data)
    recipe = recipe if steps is None else recipe.lasting(steps)
    cost = seconds_a_step({"ours": _ours(recipe), "peer": _peer(recipe, recipe.steps)}, recipe, data, SLICE, rounds, progress)
    budget = recipe.steps * cost["ours"]
    theirs = max(round(budget / cost["peer"]), 1)
    ours, peer = [], []
    for seed in range(seeds):
        seeded = replace(recipe, seed=seed)
        ours.append(_run("ours", _ours(seeded), seeded, data, recipe.steps, cost["ours"], progress))
        peer.append(_run("timm", _peer(seeded, theirs), seeded, data, theirs, cost["peer"], progress))
    bar = mean(run.test for run in peer)
    needed = reached(bar, ours)
    with untold():
        line = probe(load(weights), data, ("linear",), progress=progress).linear
    assert line is not None
    return FinetuneSpeed(
        mean(run.test for run in ours), bar, line.accuracy, needed, budget, None if needed is None else needed / budget,
        ours, peer, cost,
    )  # fmt: skip


def reached(bar: float, runs: list[Ended]) -> float | None:
    """Return the seconds after which the mean of the runs first reaches the bar on test."""
    for looks in zip(*(run.curve for run in runs), strict=True):
        if mean(look.test for look in looks) >= bar:
            return looks[0].seconds
    return None


def chosen(curve: list[Look]) -> Look:
    return max(curve, key=lambda look: look.validation)


def _recipe(weights: str, data: Data) -> Recipe:
    """Return the recipe of ``vitrail finetune``."""
    with untold():
        model = load(weights)
    if not isinstance(model.config, ViTConfig) or model.config.stem:
        raise VitrailError("bench finetune compares plain Vision Transformers; name weights of one, such as a Ti/16's")
    assert model.preprocess is not None
    start = Start(weights, fingerprint(weights), model.config, model.preprocess, model.labels)
    return finetune(Given(data.name, len(data.train), len(data.names), None, 3, names=tuple(data.names), start=start))


def _begun(recipe: Recipe) -> Model:
    assert recipe.start is not None
    torch.manual_seed(recipe.seed)
    return begin(recipe.start, recipe.model, keep_head=recipe.keep_head)


def _ours(recipe: Recipe) -> Ours:
    return Ours(recipe, _begun(recipe))


def _peer(recipe: Recipe, steps: int) -> Peer:
    return Peer(recipe, timm_of(_begun(recipe)), RATE, steps)


def timm_of(model: Model) -> nn.Module:
    """Return timm's own model with the same weights."""
    timm.check(model.config)
    assert isinstance(model.config, ViTConfig)
    try:
        made = timm_vit(model.config)
    except ImportError:
        raise VitrailError("bench finetune compares with timm: pip install -c constraints.txt timm") from None
    made.load_state_dict(write(timm.links(model.config), model.state_dict()))
    return made


def _run(name: str, rival: Rival, recipe: Recipe, data: Data, steps: int, cost: float, progress: Progress | None) -> Ended:
    curve = []
    for step in trained(rival, recipe, data, steps):
        if progress:
            progress(f"{name}, seed {recipe.seed}", step, steps)
        if step in {round(steps * part / LOOKS) for part in range(1, LOOKS + 1)}:
            scores = (accuracy(rival, recipe, data, split, 64) for split in ("validation", "test"))
            curve.append(Look(step, step * cost, *scores))
    best = chosen(curve)
    return Ended(recipe.seed, best.validation, best.test, curve)
