"""Fits an experiment to a time budget: the steps of all its training runs are scaled by one factor, which is fair to each.

The factor is saved with the results and reused for the same budget, so that a second call finds the same runs.
"""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data.loader import build_eval_loader, build_train_loader
from vitrail.data.sources.dataset import Progress, Subset
from vitrail.errors import VitrailError
from vitrail.io import atomic_write, file_lock
from vitrail.lab.trials import TrainingJob, with_prerequisites
from vitrail.models.build import get_encoder
from vitrail.recipes.recipe import Recipe
from vitrail.system import select_device
from vitrail.training.autotune import StepTiming
from vitrail.training.build import build_model, recipe_task
from vitrail.training.dataset import load_training_data
from vitrail.training.monitors import knn_seconds
from vitrail.training.state import create_state
from vitrail.training.step import train_step
from vitrail.training.trainer import Hardware

WARMUP_STEPS, TIMED_STEPS = 2, 4
TIMED_IMAGES = 128  # images on which evaluation is timed
BUDGET_FRACTION = 0.9  # of the budget; the rest is for writing
MIN_STEPS = 50  # of a training run


def fit_to_budget(
    folder: Path,
    jobs: Sequence[TrainingJob],
    minutes: float,
    machine: Hardware | None = None,
    progress: Progress | None = None,
    measured_images: int = 0,
) -> list[TrainingJob]:
    """Scale the steps of the jobs such that all together take these minutes of one process on this machine.
    ``measured_images``: images on which each finished run is measured."""
    plan_key = f"{minutes:g} minutes, {_digest(jobs)}"
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / ".plan.lock"):  # or a second process would find another factor
        path = folder / "plan.json"
        factors = _read_plan(path)
        if plan_key not in factors:
            all_jobs, hardware = with_prerequisites(jobs), machine or Hardware()
            factors[plan_key] = _step_factor(all_jobs, minutes, hardware, progress, measured_images)
            atomic_write(path, json.dumps(factors, indent=1) + "\n", locked=True)
    return [job.with_scaled_steps(factors[plan_key]) for job in jobs]


def _digest(jobs: Sequence[TrainingJob]) -> str:
    """Return a hash of the jobs, in any order."""
    return hashlib.sha256(" ".join(sorted(job.key for job in jobs)).encode()).hexdigest()[:16]


def _read_plan(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    try:
        content: Any = json.loads(path.read_text())
        return {str(plan_key): float(factor) for plan_key, factor in content.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise VitrailError(f"{path} is damaged ({error}); delete it, and the time budget is planned again") from None


def _step_factor(
    jobs: Sequence[TrainingJob], minutes: float, machine: Hardware, progress: Progress | None, measured_images: int
) -> float:
    """Return the factor. The number of evaluations does not depend on the steps, so their time is subtracted first."""
    timings: dict[str, tuple[float, float]] = {}
    total = overhead = 0.0
    for number, job in enumerate(jobs):
        speed_key = _speed_key(job.recipe)
        if speed_key not in timings:
            timings[speed_key] = measure_seconds(job.recipe, machine, measured_images)
        total += timings[speed_key][0] * job.recipe.steps
        overhead += timings[speed_key][1]
        if progress:
            progress("measuring step time", number + 1, len(jobs))
    factor = (BUDGET_FRACTION * 60 * minutes - overhead) / total
    shortest = min(job.recipe.steps for job in jobs)
    if shortest * factor < MIN_STEPS:
        min_minutes = (MIN_STEPS * total / shortest + overhead) / (BUDGET_FRACTION * 60)
        steps_allowed = max(int(shortest * factor), 0)
        raise VitrailError(
            f"{minutes:g} minutes allow {steps_allowed} steps of the shortest of {len(jobs)} training runs here; "
            f"try --minutes {math.ceil(min_minutes)}, or --quick for a quick test"
        )
    return float(f"{factor:.3g}")


def measure_seconds(recipe: Recipe, machine: Hardware, measured_images: int = 0) -> tuple[float, float]:
    """Measure the seconds per step, and the overhead of a whole run: set-up, evaluations and measurements."""
    if machine.threads:
        torch.set_num_threads(machine.threads)
    start = time.perf_counter()
    data = load_training_data(recipe)
    task = recipe_task(recipe, data)
    model = build_model(recipe, task, resumed=False).to(select_device(machine.device))
    state = create_state(model.train(), recipe)
    loader = build_train_loader(data.train, recipe.preprocess, recipe.batch_size, recipe.augment, recipe.seed)
    setup, step_start = time.perf_counter() - start, 0.0
    for number, batch in enumerate(loader.batches(0, WARMUP_STEPS + TIMED_STEPS, machine.workers)):
        if number == WARMUP_STEPS:
            step_start = time.perf_counter()
        train_step(state, task, batch, recipe)
    step = (time.perf_counter() - step_start) / TIMED_STEPS
    validation = data.validation if len(data.validation) else data.train
    subset = Subset(validation, np.arange(min(len(validation), TIMED_IMAGES)))
    workers = 0 if machine.workers is None else machine.workers
    for _ in range(2):  # the first is a warm-up
        step_start = time.perf_counter()
        task.evaluate(state.eval_model, build_eval_loader(subset, recipe.preprocess, recipe.batch_size), workers)
    per_image = (time.perf_counter() - step_start) / len(subset)
    knn = knn_seconds(get_encoder(model), data.train, validation, workers) if "knn" in task.monitors else 0.0
    evaluations = -(-recipe.steps // recipe.eval_every)
    return step, setup + StepTiming(step, per_image, knn).eval_duration(
        evaluations, len(validation), len(data.test) + measured_images
    )


def _speed_key(recipe: Recipe) -> str:
    """Return a key that is equal for recipes of equal speed."""
    evaluations = recipe.steps / recipe.eval_every
    return repr(
        (
            recipe.model,
            recipe.batch_size,
            recipe.task,
            recipe.optim.name,
            recipe.augment,
            recipe.precision,
            recipe.data,
            evaluations,
        )
    )
