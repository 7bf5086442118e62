"""The training jobs of an experiment, each a run identified by the hash of its recipe, so that none is trained twice.

``rows/HASH.json`` is the result of a finished job, small enough to be kept; ``runs/HASH/`` is the run, from which a stopped job
is resumed. Several processes may share the folder: each takes a job that no other process is training. A job may start from the
weights of another (``TrainingJob.init_from``), which is then trained first.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from vitrail.config import to_json
from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.io import atomic_write
from vitrail.models.build import build
from vitrail.models.cost import cost
from vitrail.recipes.recipe import Recipe
from vitrail.training.callbacks import Callback
from vitrail.training.run import EXECUTION_FIELDS, Run, RunLocked
from vitrail.training.trainer import Hardware, TrainingDiverged, fit
from vitrail.weights.init_from import init_model_from
from vitrail.weights.model_folder import is_model_folder
from vitrail.weights.save import save

NOT_FINITE_MESSAGE = "not JSON compliant"  # ``json``'s message for NaN and infinity
POLL_SECONDS = 2.0  # seconds, while other processes train all remaining jobs
Measure = Callable[[Path, "TrainingJob"], dict[str, Any]]


@dataclass(frozen=True)
class TrainingJob:
    """A training job. ``condition``: its arm, amount of data, seed ... in the experiment."""

    condition: dict[str, Any]
    recipe: Recipe
    init_from: "TrainingJob | None" = None  # whose best weights it starts from
    reinit_prefix: str | None = None  # parameters with this prefix are reinitialised

    @cached_property
    def key(self) -> str:
        """Hash of all that decides the result, and of nothing else."""
        recipe_json = to_json(replace(self.recipe, name="", **EXECUTION_FIELDS))
        prerequisite = "" if self.init_from is None else f"\n{self.init_from.key} {self.reinit_prefix}"
        return hashlib.sha256((recipe_json + prerequisite).encode()).hexdigest()[:16]

    def with_scaled_steps(self, factor: float) -> "TrainingJob":
        init_from = None if self.init_from is None else self.init_from.with_scaled_steps(factor)
        return replace(self, recipe=self.recipe.with_steps(max(round(self.recipe.steps * factor), 1)), init_from=init_from)

    def with_steps(self, steps: int) -> "TrainingJob":
        return replace(
            self,
            recipe=self.recipe.with_steps(steps),
            init_from=None if self.init_from is None else self.init_from.with_steps(steps),
        )


@dataclass(frozen=True)
class JobResult:
    """Result of a training job. ``failure``: why there are no scores, such as divergence."""

    condition: dict[str, Any]
    key: str
    steps: int
    batch_size: int
    parameters: int
    macs: int
    seconds: float = 0.0
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # by split
    measurements: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    provenance: dict[str, str] = field(default_factory=dict)  # versions, and the dataset's fingerprint

    @property
    def flops(self) -> float:
        """Training compute: two FLOPs per multiply-add, and a backward pass costs two forward passes."""
        return 6.0 * self.macs * self.batch_size * self.steps


def with_prerequisites(jobs: Iterable[TrainingJob]) -> list[TrainingJob]:
    """Return each job once, after the one whose weights it starts from."""
    ordered: dict[str, TrainingJob] = {}
    for job in jobs:
        for prerequisite in with_prerequisites([job.init_from]) if job.init_from else ():
            ordered.setdefault(prerequisite.key, prerequisite)
        ordered[job.key] = job  # the requested one wins over a prerequisite of another
    return list(ordered.values())


def cached_result(folder: Path, job: TrainingJob, fingerprint: str | None = None) -> JobResult | None:
    """Return the saved result of a job, or None. ``fingerprint``: of the dataset today, which must be equal."""
    path = folder / "rows" / f"{job.key}.json"
    if not path.is_file():
        return None
    try:
        row = JobResult(**{**json.loads(path.read_text()), "condition": job.condition})
    except (ValueError, TypeError) as error:
        raise VitrailError(f"{path} is damaged ({error}); delete it, and the job is run again") from None
    if fingerprint is not None and row.provenance.get("data", fingerprint) != fingerprint:
        raise VitrailError(
            f"{folder} has results on other images than {job.recipe.data} has today; "
            "choose another folder with --out, or delete this one"
        )
    return row


def run_jobs(
    folder: Path,
    jobs: Sequence[TrainingJob],
    measure: Measure | None = None,
    machine: Hardware | None = None,
    progress: Progress | None = None,
    fingerprint: str | None = None,
) -> list[JobResult]:
    """Run all jobs and return their results in order; jobs of other processes are waited for."""
    for name in ("rows", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    all_jobs = with_prerequisites(jobs)
    while remaining := [job for job in all_jobs if cached_result(folder, job, fingerprint) is None]:
        if not any(_run_job(folder, job, all_jobs, measure, machine, progress, fingerprint) for job in remaining):
            if progress:
                progress("waiting for another process", len(all_jobs) - len(remaining), len(all_jobs))
            time.sleep(POLL_SECONDS)
    return [row for job in jobs if (row := cached_result(folder, job)) is not None]


def _run_job(
    folder: Path,
    job: TrainingJob,
    jobs: Sequence[TrainingJob],
    measure: Measure | None,
    machine: Hardware | None,
    progress: Progress | None,
    fingerprint: str | None,
) -> bool:
    """Run a job; return False if another process is running it."""
    if cached_result(folder, job, fingerprint) is not None:
        return True
    run, recipe = folder / "runs" / job.key, job.recipe
    costs, start = cost(recipe.model), time.monotonic()
    provenance = _provenance(fingerprint)
    row = JobResult(
        job.condition, job.key, recipe.steps, recipe.batch_size, costs.parameters, costs.macs, provenance=provenance
    )
    try:
        callbacks = [_JobProgress(job, jobs, progress)]
        result = fit(_job_recipe(folder, job, machine), run, hardware=machine, callbacks=callbacks).result
    except RunLocked:
        return False
    except TrainingDiverged as error:
        row = replace(row, seconds=time.monotonic() - start, failure=str(error).split("; the last good weights")[0])
    except ValueError as error:
        if NOT_FINITE_MESSAGE not in str(error):
            raise
        row = replace(row, seconds=time.monotonic() - start, failure="its scores are not finite (NaN/Inf)")
    else:
        scores = {split: values for split, values in result.items() if split in ("train", "validation", "test")}
        scores.setdefault("validation", {name: value for name, value in result["best"].items() if name != "step"})
        row = replace(row, seconds=result["seconds"], scores=scores, measurements=measure(run, job) if measure else {})
    atomic_write(folder / "rows" / f"{job.key}.json", json.dumps(asdict(row), indent=1, allow_nan=False) + "\n")
    return True


def _provenance(fingerprint: str | None) -> dict[str, str]:
    return {"vitrail": version("vitrail"), "torch": torch.__version__, **({"data": fingerprint} if fingerprint else {})}


def _job_recipe(folder: Path, job: TrainingJob, machine: Hardware | None) -> Recipe:
    recipe = replace(job.recipe, name="lab")
    if job.init_from is None:
        return recipe
    return replace(recipe, init_from=str(_initial_weights(folder, job, job.init_from, machine).resolve()))


def _initial_weights(folder: Path, job: TrainingJob, prerequisite: TrainingJob, machine: Hardware | None) -> Path:
    """Return the weights that a job starts from."""
    row = cached_result(folder, prerequisite)
    if row is None:
        raise RunLocked("another process is training its initial weights")
    if row.failure:
        raise TrainingDiverged("the run of its initial weights diverged")
    run = folder / "runs" / prerequisite.key
    if Run(run).result() is None:  # the run of a saved result may be deleted, or be in progress
        fit(_job_recipe(folder, prerequisite, machine), run, hardware=machine)
    if job.reinit_prefix is None:
        return run / "best"
    return _reinitialised(run / "best", job, folder / "initial_weights" / job.key)


def _reinitialised(weights: Path, job: TrainingJob, folder: Path) -> Path:
    """Save a copy of the weights with some parameters reinitialised."""
    if is_model_folder(folder):  # written by another process
        return folder
    recipe, prefix = job.recipe, job.reinit_prefix
    assert prefix is not None
    torch.manual_seed(recipe.seed)
    random_weights = build(recipe.model).state_dict()
    model = init_model_from(str(weights), recipe.model, keep_head=recipe.keep_head)
    model.load_state_dict(
        {name: random_weights[name] if name.startswith(prefix) else old for name, old in model.state_dict().items()}
    )
    model.preprocess = recipe.preprocess
    save(model, folder)
    return folder


class _JobProgress(Callback):
    """Reports the progress of all jobs while one is training."""

    def __init__(self, job: TrainingJob, jobs: Sequence[TrainingJob], progress: Progress | None) -> None:
        self.steps_before = sum(other.recipe.steps for other in jobs[: jobs.index(job)])
        self.total_steps, self.progress = sum(other.recipe.steps for other in jobs), progress
        self.num_jobs = len(jobs)

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        if self.progress:
            self.progress(f"steps of {self.num_jobs} training runs", self.steps_before + step, self.total_steps)
