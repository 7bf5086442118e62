"""Fits an experiment to a time budget: the steps of all its training runs are scaled by one factor, which is fair to each.

The factor is saved with the results and reused for the same budget, so that a second call finds the same runs.
"""

import fcntl
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data.loader import evaluation, training
from vitrail.data.sources.source import Part, Progress
from vitrail.errors import VitrailError
from vitrail.lab.trial import Trial, with_starts
from vitrail.models.device import device
from vitrail.models.masked import Masked
from vitrail.report.page import write_whole
from vitrail.train.data import opened
from vitrail.train.loop import Machine
from vitrail.train.purpose import model_of, task_of
from vitrail.train.recipe import Recipe
from vitrail.train.settle import Pace
from vitrail.train.state import fresh
from vitrail.train.step import train_step
from vitrail.train.unlabelled import seconds as neighbours

WARM, STEPS = 2, 4
SOME = 128  # images on which evaluation is timed
KEPT = 0.9  # of the budget; the rest is for writing
LEAST = 50  # of a training run


def within(
    folder: Path,
    trials: Sequence[Trial],
    minutes: float,
    machine: Machine | None = None,
    progress: Progress | None = None,
    looks: int = 0,
) -> list[Trial]:
    """Scale the steps of the jobs such that all together take these minutes of one process on this machine.
    ``measured_images``: images on which each finished run is measured."""
    which = f"{minutes:g} minutes, {_digest(trials)}"
    with _alone(folder):  # or a second process would find another factor
        path = folder / "plan.json"
        known = _read(path)
        if which not in known:
            known[which] = _factor(with_starts(trials), minutes, machine or Machine(), progress, looks)
            write_whole(path, (json.dumps(known, indent=1) + "\n").encode())
    return [trial.lasting(known[which]) for trial in trials]


def _digest(trials: Sequence[Trial]) -> str:
    """Return a hash of the jobs, in any order."""
    return hashlib.sha256(" ".join(sorted(trial.key for trial in trials)).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    try:
        found: Any = json.loads(path.read_text())
        return {str(which): float(factor) for which, factor in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise VitrailError(f"{path} is damaged ({error}); delete it, and the time budget is planned again") from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".plan.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _factor(trials: Sequence[Trial], minutes: float, machine: Machine, progress: Progress | None, looks: int) -> float:
    """Return the factor. The number of evaluations does not depend on the steps, so their time is subtracted first."""
    paces: dict[str, tuple[float, float]] = {}
    total = beside = 0.0
    for number, trial in enumerate(trials):
        same = _same(trial.recipe)
        if same not in paces:
            paces[same] = seconds(trial.recipe, machine, looks)
        total += paces[same][0] * trial.recipe.steps
        beside += paces[same][1]
        if progress:
            progress("measuring step time", number + 1, len(trials))
    factor = (KEPT * 60 * minutes - beside) / total
    shortest = min(trial.recipe.steps for trial in trials)
    if shortest * factor < LEAST:
        least, room = (LEAST * total / shortest + beside) / (KEPT * 60), max(int(shortest * factor), 0)
        raise VitrailError(
            f"{minutes:g} minutes allow {room} steps of the shortest of {len(trials)} training runs here; "
            f"try --minutes {math.ceil(least)}, or --quick for a quick test"
        )
    return float(f"{factor:.3g}")


def seconds(recipe: Recipe, machine: Machine, more: int = 0) -> tuple[float, float]:
    """Measure the seconds per step, and the overhead of a whole run: set-up, evaluations and measurements."""
    if machine.threads:
        torch.set_num_threads(machine.threads)
    entered = time.perf_counter()
    data = opened(recipe).data
    model = model_of(recipe, data, resumed=False).to(device(machine.device))
    state = fresh(model.train(), recipe)
    task = task_of(recipe, data)
    loader = training(data.train, recipe.preprocess, recipe.batch, recipe.augment, recipe.seed)
    ready, began = time.perf_counter() - entered, 0.0
    for number, batch in enumerate(loader.batches(0, WARM + STEPS, machine.workers)):
        if number == WARM:
            began = time.perf_counter()
        train_step(state, task, batch, recipe)
    step = (time.perf_counter() - began) / STEPS
    chosen = data.validation if len(data.validation) else data.train
    some = Part(chosen, np.arange(min(len(chosen), SOME)))
    workers = 0 if machine.workers is None else machine.workers
    for _ in range(2):  # the first is a warm-up
        began = time.perf_counter()
        task.evaluate(state.shown, evaluation(some, recipe.preprocess, recipe.batch), workers)
    picture = (time.perf_counter() - began) / len(some)
    alike = neighbours(model, data.train, chosen, workers) if isinstance(model, Masked) else 0.0
    looks = -(-recipe.steps // recipe.evaluate)
    return step, ready + Pace(step, picture, alike).looks(looks, len(chosen), len(data.test) + more)


def _same(recipe: Recipe) -> str:
    """Return a key that is equal for recipes of equal speed."""
    often = recipe.steps / recipe.evaluate
    return repr(
        (recipe.model, recipe.batch, recipe.masking, recipe.optim.kind, recipe.augment, recipe.precision, recipe.data, often)
    )
