"""Minutes into steps: every training of an experiment becomes longer or shorter by the same factor, so none is favoured.

What was found out is noted beside the results and taken again for the same minutes, so that a second look asks for the very
trainings that are there already.
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
SOME = 128  # pictures that an evaluation is timed on
KEPT = 0.9  # of the minutes; the rest is for writing
LEAST = 50  # steps of a training worth the name


def within(
    folder: Path,
    trials: Sequence[Trial],
    minutes: float,
    machine: Machine | None = None,
    progress: Progress | None = None,
    looks: int = 0,
) -> list[Trial]:
    """The same trainings in as many steps as fit, all of them together, into the minutes of one process on this machine.
    ``looks``: pictures that are looked at of each when it is finished."""
    which = f"{minutes:g} minutes, {_digest(trials)}"
    with _alone(folder):  # or a second process would find another factor, and so other trainings
        path = folder / "plan.json"
        known = _read(path)
        if which not in known:
            known[which] = _factor(with_starts(trials), minutes, machine or Machine(), progress, looks)
            write_whole(path, (json.dumps(known, indent=1) + "\n").encode())
    return [trial.lasting(known[which]) for trial in trials]


def _digest(trials: Sequence[Trial]) -> str:
    """Of what is asked for, in whatever order."""
    return hashlib.sha256(" ".join(sorted(trial.key for trial in trials)).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    try:
        found: Any = json.loads(path.read_text())
        return {str(which): float(factor) for which, factor in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise VitrailError(f"{path} is damaged ({error}); take it away, and the minutes are planned anew") from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".plan.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _factor(trials: Sequence[Trial], minutes: float, machine: Machine, progress: Progress | None, looks: int) -> float:
    """Evaluations are as many in a long training as in a short one, so they are taken off first."""
    paces: dict[str, tuple[float, float]] = {}
    total = beside = 0.0
    for number, trial in enumerate(trials):
        same = _same(trial.recipe)
        if same not in paces:
            paces[same] = seconds(trial.recipe, machine, looks)
        total += paces[same][0] * trial.recipe.steps
        beside += paces[same][1]
        if progress:
            progress("how long a step takes", number + 1, len(trials))
    factor = (KEPT * 60 * minutes - beside) / total
    shortest = min(trial.recipe.steps for trial in trials)
    if shortest * factor < LEAST:
        least, room = (LEAST * total / shortest + beside) / (KEPT * 60), max(int(shortest * factor), 0)
        raise VitrailError(
            f"{minutes:g} minutes are room for {room} steps of the shortest of {len(trials)} trainings here; "
            f"try --minutes {math.ceil(least)}, or --quick to see that it works"
        )
    return float(f"{factor:.3g}")


def seconds(recipe: Recipe, machine: Machine, more: int = 0) -> tuple[float, float]:
    """Of a step, and of all that a training does beside its steps and is done with it, on weights that are thrown away."""
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
    for _ in range(2):  # the first one warms up
        began = time.perf_counter()
        task.evaluate(state.shown, evaluation(some, recipe.preprocess, recipe.batch), workers)
    picture = (time.perf_counter() - began) / len(some)
    alike = neighbours(model, data.train, chosen, workers) if isinstance(model, Masked) else 0.0
    looks = -(-recipe.steps // recipe.evaluate)
    return step, ready + Pace(step, picture, alike).looks(looks, len(chosen), len(data.test) + more)


def _same(recipe: Recipe) -> str:
    """Takes as long."""
    often = recipe.steps / recipe.evaluate
    return repr(
        (recipe.model, recipe.batch, recipe.masking, recipe.optim.kind, recipe.augment, recipe.precision, recipe.data, often)
    )
