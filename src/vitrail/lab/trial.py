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
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.cost import cost
from vitrail.report.page import write_whole
from vitrail.train.loop import Diverged, Machine, fit
from vitrail.train.recipe import Recipe
from vitrail.train.run import HOW, Busy, Run
from vitrail.train.watch import Silent
from vitrail.weights.checkpoint import save
from vitrail.weights.folder import is_model
from vitrail.weights.start import begin

NO_NUMBER = "not JSON compliant"  # ``json``'s message for NaN and infinity
WAIT = 2.0  # seconds, while other processes train all remaining jobs
Measure = Callable[[Path, "Trial"], dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    """A training job. ``condition``: its arm, amount of data, seed ... in the experiment."""

    of: dict[str, Any]
    recipe: Recipe
    after: "Trial | None" = None  # whose best weights it starts from
    anew: str | None = None  # parameters with this prefix are reinitialised

    @cached_property
    def key(self) -> str:
        """Hash of all that decides the result, and of nothing else."""
        plain = to_json(replace(self.recipe, name="", **HOW))
        before = "" if self.after is None else f"\n{self.after.key} {self.anew}"
        return hashlib.sha256((plain + before).encode()).hexdigest()[:16]

    def lasting(self, factor: float) -> "Trial":
        after = None if self.after is None else self.after.lasting(factor)
        return replace(self, recipe=self.recipe.lasting(max(round(self.recipe.steps * factor), 1)), after=after)

    def short(self, steps: int) -> "Trial":
        return replace(self, recipe=self.recipe.lasting(steps), after=None if self.after is None else self.after.short(steps))


@dataclass(frozen=True)
class Row:
    """Result of a training job. ``failure``: why there are no scores, such as divergence."""

    of: dict[str, Any]
    key: str
    steps: int
    batch: int
    parameters: int
    macs: int
    seconds: float = 0.0
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # by split
    measured: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None
    made: dict[str, str] = field(default_factory=dict)  # versions, and the dataset's fingerprint

    @property
    def flops(self) -> float:
        """Training compute: two FLOPs per multiply-add, and a backward pass costs two forward passes."""
        return 6.0 * self.macs * self.batch * self.steps


def with_starts(trials: Iterable[Trial]) -> list[Trial]:
    """Return each job once, after the one whose weights it starts from."""
    found: dict[str, Trial] = {}
    for trial in trials:
        for each in with_starts([trial.after]) if trial.after else ():
            found.setdefault(each.key, each)
        found[trial.key] = trial  # the requested one wins over a prerequisite of another
    return list(found.values())


def kept(folder: Path, trial: Trial, data: str | None = None) -> Row | None:
    """Return the saved result of a job, or None. ``fingerprint``: of the dataset today, which must be equal."""
    path = folder / "rows" / f"{trial.key}.json"
    if not path.is_file():
        return None
    try:
        row = Row(**{**json.loads(path.read_text()), "of": trial.of})
    except (ValueError, TypeError) as error:
        raise VitrailError(f"{path} is damaged ({error}); delete it, and the job is run again") from None
    if data is not None and row.made.get("data", data) != data:
        raise VitrailError(
            f"{folder} has results on other images than {trial.recipe.data} has today; "
            "choose another folder with --out, or delete this one"
        )
    return row


def done(
    folder: Path,
    trials: Sequence[Trial],
    measure: Measure | None = None,
    machine: Machine | None = None,
    progress: Progress | None = None,
    data: str | None = None,
) -> list[Row]:
    """Run all jobs and return their results in order; jobs of other processes are waited for."""
    for name in ("rows", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    every = with_starts(trials)
    while left := [trial for trial in every if kept(folder, trial, data) is None]:
        if not any(_tried(folder, trial, every, measure, machine, progress, data) for trial in left):
            if progress:
                progress("waiting for another process", len(every) - len(left), len(every))
            time.sleep(WAIT)
    return [row for trial in trials if (row := kept(folder, trial)) is not None]


def _tried(
    folder: Path,
    trial: Trial,
    trials: Sequence[Trial],
    measure: Measure | None,
    machine: Machine | None,
    progress: Progress | None,
    data: str | None,
) -> bool:
    """Run a job; return False if another process is running it."""
    if kept(folder, trial, data) is not None:
        return True
    run, recipe = folder / "runs" / trial.key, trial.recipe
    config, began = cost(recipe.model), time.monotonic()
    row = Row(trial.of, trial.key, recipe.steps, recipe.batch, config.parameters, config.macs, made=_made(data))
    try:
        result = fit(_recipe(folder, trial, machine), run, machine, _Telling(trial, trials, progress))
    except Busy:
        return False
    except Diverged as error:
        row = replace(row, seconds=time.monotonic() - began, failed=str(error).split("; the last good weights")[0])
    except ValueError as error:
        if NO_NUMBER not in str(error):
            raise
        row = replace(row, seconds=time.monotonic() - began, failed="its scores are not finite (NaN/Inf)")
    else:
        scores = {split: values for split, values in result.items() if split in ("train", "validation", "test")}
        scores.setdefault("validation", {name: value for name, value in result["best"].items() if name != "step"})
        row = replace(row, seconds=result["seconds"], scores=scores, measured=measure(run, trial) if measure else {})
    write_whole(folder / "rows" / f"{trial.key}.json", (json.dumps(asdict(row), indent=1, allow_nan=False) + "\n").encode())
    return True


def _made(data: str | None) -> dict[str, str]:
    return {"vitrail": version("vitrail"), "torch": torch.__version__, **({"data": data} if data else {})}


def _recipe(folder: Path, trial: Trial, machine: Machine | None) -> Recipe:
    recipe = replace(trial.recipe, name="lab")
    return replace(recipe, start=str(_begun(folder, trial, trial.after, machine).resolve())) if trial.after else recipe


def _begun(folder: Path, trial: Trial, before: Trial, machine: Machine | None) -> Path:
    """Return the weights that a job starts from."""
    row = kept(folder, before)
    if row is None:
        raise Busy("another process is training its initial weights")
    if row.failed:
        raise Diverged("the run of its initial weights diverged")
    run = folder / "runs" / before.key
    if Run(run).result() is None:  # the run of a saved result may be deleted, or be in progress
        fit(_recipe(folder, before, machine), run, machine)
    return run / "best" if trial.anew is None else _anew(run / "best", trial, folder / "initial_weights" / trial.key)


def _anew(weights: Path, trial: Trial, folder: Path) -> Path:
    """Save a copy of the weights with some parameters reinitialised."""
    if is_model(folder):  # written by another process
        return folder
    recipe, names = trial.recipe, trial.anew
    assert names is not None
    torch.manual_seed(recipe.seed)
    drawn = build(recipe.model).state_dict()
    model = begin(str(weights), recipe.model, keep_head=recipe.keep_head)
    model.load_state_dict({name: drawn[name] if name.startswith(names) else old for name, old in model.state_dict().items()})
    model.preprocess = recipe.preprocess
    save(model, folder)
    return folder


class _Telling(Silent):
    """Reports the progress of all jobs while one is training."""

    def __init__(self, trial: Trial, trials: Sequence[Trial], progress: Progress | None) -> None:
        self.before = sum(other.recipe.steps for other in trials[: trials.index(trial)])
        self.all, self.tell = sum(other.recipe.steps for other in trials), progress
        self.count = len(trials)

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        if self.tell:
            self.tell(f"steps of {self.count} training runs", self.before + step, self.all)
