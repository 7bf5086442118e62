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
from vitrail.evaluation.linear_probe import LinearProbeResult
from vitrail.evaluation.probe import probe
from vitrail.models.build import Model
from vitrail.models.config import ViTConfig
from vitrail.recipes.context import InitWeights, RecipeContext
from vitrail.recipes.finetune import finetune
from vitrail.recipes.recipe import Recipe
from vitrail.weights.convert import timm
from vitrail.weights.convert.tensor_map import export_tensors
from vitrail.weights.init_from import init_model_from, weights_hash
from vitrail.weights.load import load, quiet_loading

PEER_LR = 1e-4
EVALS_PER_RUN = 6  # evaluations per run
STEPS_PER_TURN = 2  # steps per turn


@dataclass(frozen=True)
class CurvePoint:
    """Evaluation after a number of steps; seconds are steps times those of one."""

    step: int
    seconds: float
    validation: float
    test: float


@dataclass(frozen=True)
class FinetuneRun:
    """A run; ``validation`` and ``test`` are those of the evaluation that is best on validation, the first of equals."""

    seed: int
    validation: float
    test: float
    curve: list[CurvePoint]


@dataclass(frozen=True)
class FinetuneSpeed:
    """``ours_seconds``: until the mean of our runs reaches the peer's selected weights on test; None: never."""

    accuracy: float  # on test, the mean of the seeds
    peer_accuracy: float
    linear_probe_accuracy: float  # the linear probe's
    ours_seconds: float | None
    peer_seconds: float
    ratio: float | None
    ours: list[FinetuneRun]
    peer: list[FinetuneRun]
    seconds_per_step: dict[str, float]


def benchmark_finetune(
    weights: str | Path,
    source: str | Path,
    seeds: int = 3,
    steps: int | None = None,
    rounds: int = 5,
    progress: Progress | None = None,
) -> FinetuneSpeed:
    """Run the benchmark. ``steps``: instead of the recipe's own; ``rounds``: timed rounds of a step."""
    data = open_dataset(source, progress=progress)
    missing = [split for split in ("train", "validation", "test") if not len(data.splits[split])]
    if missing:
        raise VitrailError(f"{data.name} has no {missing[0]} images; bench finetune needs train, validation and test")
    recipe = _recipe(str(weights), data)
    recipe = recipe if steps is None else recipe.with_steps(steps)
    cost = seconds_per_step(
        {"ours": _ours(recipe), "peer": _peer(recipe, recipe.steps)}, recipe, data, STEPS_PER_TURN, rounds, progress
    )
    budget = recipe.steps * cost["ours"]
    peer_steps = max(round(budget / cost["peer"]), 1)
    ours, peer = [], []
    for seed in range(seeds):
        seeded = replace(recipe, seed=seed)
        ours.append(_run_contestant("ours", _ours(seeded), seeded, data, recipe.steps, cost["ours"], progress))
        peer.append(_run_contestant("timm", _peer(seeded, peer_steps), seeded, data, peer_steps, cost["peer"], progress))
    bar = mean(run.test for run in peer)
    needed = seconds_to_reach(bar, ours)
    with quiet_loading():
        probed = probe(load(weights), data, ("linear",), progress=progress).linear
    assert isinstance(probed, LinearProbeResult)
    return FinetuneSpeed(
        mean(run.test for run in ours), bar, probed.accuracy, needed, budget, None if needed is None else needed / budget,
        ours, peer, cost,
    )  # fmt: skip


def seconds_to_reach(bar: float, runs: list[FinetuneRun]) -> float | None:
    """Return the seconds after which the mean of the runs first reaches the bar on test."""
    for points in zip(*(run.curve for run in runs), strict=True):
        if mean(point.test for point in points) >= bar:
            return points[0].seconds
    return None


def best_on_validation(curve: list[CurvePoint]) -> CurvePoint:
    return max(curve, key=lambda point: point.validation)


def _recipe(weights: str, data: DatasetSplits) -> Recipe:
    """Return the recipe of ``vitrail finetune``."""
    with quiet_loading():
        model = load(weights)
    if not isinstance(model.config, ViTConfig) or model.config.stem:
        raise VitrailError("bench finetune compares plain Vision Transformers; name weights of one, such as a Ti/16's")
    assert model.preprocess is not None
    init_weights = InitWeights(weights, weights_hash(weights), model.config, model.preprocess, model.class_names)
    names = tuple(data.class_names)
    context = RecipeContext(data.name, len(data.train), len(names), None, 3, class_names=names, init_weights=init_weights)
    return finetune(context)


def _init_model(recipe: Recipe) -> Model:
    assert recipe.init_from is not None
    torch.manual_seed(recipe.seed)
    return init_model_from(recipe.init_from, recipe.model, keep_head=recipe.keep_head)


def _ours(recipe: Recipe) -> VitrailTraining:
    return VitrailTraining(recipe, _init_model(recipe))


def _peer(recipe: Recipe, steps: int) -> ReferenceTraining:
    return ReferenceTraining(recipe, to_timm(_init_model(recipe)), PEER_LR, steps)


def to_timm(model: Model) -> nn.Module:
    """Return timm's own model with the same weights."""
    timm.check_supported(model.config)
    assert isinstance(model.config, ViTConfig)
    try:
        timm_model = timm_vit(model.config)
    except ImportError:
        raise VitrailError("bench finetune compares with timm; try pip install -c constraints.txt timm") from None
    timm_model.load_state_dict(export_tensors(timm.tensor_maps(model.config), model.state_dict()))
    return timm_model


def _run_contestant(
    name: str, contestant: Contestant, recipe: Recipe, data: DatasetSplits, steps: int, cost: float, progress: Progress | None
) -> FinetuneRun:
    curve = []
    for step in train_steps(contestant, recipe, data, steps):
        if progress:
            progress(f"{name}, seed {recipe.seed}", step, steps)
        if step in {round(steps * part / EVALS_PER_RUN) for part in range(1, EVALS_PER_RUN + 1)}:
            scores = (evaluate_accuracy(contestant, recipe, data, split, 64) for split in ("validation", "test"))
            curve.append(CurvePoint(step, step * cost, *scores))
    best = best_on_validation(curve)
    return FinetuneRun(recipe.seed, best.validation, best.test, curve)
