"""The trainings of an experiment, each a run of its own: known by its recipe's hash, so that it is never done twice.

``rows/HASH.json`` is what is left of a training when it is done, small enough to be kept for good; ``runs/HASH/`` is the run,
from which it goes on when it was stopped. Several processes may share the folder: each takes what nobody is at work on. A
training may begin with the weights that another one came to (``Trial.after``), which is then done first.
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

NO_NUMBER = "not JSON compliant"  # as ``json`` says of a result that is infinite or none
WAIT = 2.0  # seconds, where others are at work on all that is left
Measure = Callable[[Path, "Trial"], dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    """``of`` says what it stands for in the experiment: the arm, the amount of data, the seed ..."""

    of: dict[str, Any]
    recipe: Recipe
    after: "Trial | None" = None  # whose best weights it begins with
    anew: str | None = None  # but for those whose names begin so, which are drawn anew

    @cached_property
    def key(self) -> str:
        """Of all that decides the result, and of nothing else."""
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
    """What came of a trial. ``failed``: why there are no scores, as where a training has diverged."""

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
    made: dict[str, str] = field(default_factory=dict)  # by which versions, and of which data: its fingerprint

    @property
    def flops(self) -> float:
        """Of the training: two a multiply-add, and the way back costs twice the way there."""
        return 6.0 * self.macs * self.batch * self.steps


def with_starts(trials: Iterable[Trial]) -> list[Trial]:
    """Each once, behind the one whose weights it begins with."""
    found: dict[str, Trial] = {}
    for trial in trials:
        for each in with_starts([trial.after]) if trial.after else ():
            found.setdefault(each.key, each)
        found[trial.key] = trial  # as it is asked for, where another begins with it
    return list(found.values())


def kept(folder: Path, trial: Trial, data: str | None = None) -> Row | None:
    """What is known of a trial, whatever it stands for here; with the fingerprint of today's data it must be of the same."""
    path = folder / "rows" / f"{trial.key}.json"
    if not path.is_file():
        return None
    try:
        row = Row(**{**json.loads(path.read_text()), "of": trial.of})
    except (ValueError, TypeError) as error:
        raise VitrailError(f"{path} is damaged ({error}); take it away, and it is done anew") from None
    if data is not None and row.made.get("data", data) != data:
        raise VitrailError(
            f"{folder} has trainings on other pictures than {trial.recipe.data} holds today; "
            "name another folder with --out, or take this one away"
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
    """All of them, in their order; what another process is at work on is waited for. ``data``: the fingerprint."""
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
    """Whether it is done now; not where somebody else is at work on it."""
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
        row = replace(row, seconds=time.monotonic() - began, failed="its scores are no numbers")
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
    """The weights that it begins with."""
    row = kept(folder, before)
    if row is None:
        raise Busy("another process is at work on what it begins with")
    if row.failed:
        raise Diverged("what it begins with has diverged")
    run = folder / "runs" / before.key
    if Run(run).result() is None:  # of a kept row the run may be gone, or be done anew just now
        fit(_recipe(folder, before, machine), run, machine)
    return run / "best" if trial.anew is None else _anew(run / "best", trial, folder / "starts" / trial.key)


def _anew(weights: Path, trial: Trial, folder: Path) -> Path:
    """The same with some of them as they are drawn for a fresh model."""
    if is_model(folder):  # of another process, which may be at work with it
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
    """How far all of them are, while one of them learns."""

    def __init__(self, trial: Trial, trials: Sequence[Trial], progress: Progress | None) -> None:
        self.before = sum(other.recipe.steps for other in trials[: trials.index(trial)])
        self.all, self.tell = sum(other.recipe.steps for other in trials), progress
        self.count = len(trials)

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        if self.tell:
            self.tell(f"steps of {self.count} trainings", self.before + step, self.all)
