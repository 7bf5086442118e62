"""An experiment of the paper: its training jobs, what is measured on each run, and the page with the results.

One short file per experiment; ``registry`` lists them. Scores of several seeds are reported with Student's 95 % interval.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.plot.canvas import Figure

T_QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # of Student's t, two-sided 95 %, by number of seeds
QUICK_SEEDS, SEEDS = 1, 3


@dataclass(frozen=True)
class ExperimentOptions:
    """Options of an experiment. ``quick``: a few steps, a test that it works; its numbers mean nothing."""

    data: str
    quick: bool = False
    weights: str | None = None  # a checkpoint to compare with, where the experiment can

    @property
    def seeds(self) -> range:
        return range(QUICK_SEEDS if self.quick else SEEDS)


@dataclass(frozen=True)
class ExperimentResult:
    """Result of an experiment: a summary sentence, tables and figures, and numbers for programs."""

    summary: str
    parts: Sequence["str | Figure"]  # HTML, and figures, which are also written as files
    numbers: dict[str, Any]


def _no_jobs(options: ExperimentOptions) -> Sequence[TrainingJob]:
    """Return no jobs: the experiment only counts or computes."""
    return ()


@dataclass(frozen=True)
class Experiment:
    """An experiment. ``jobs`` have complete recipes; a time budget scales the steps of all by one factor."""

    name: str
    title: str
    paper: str  # the table or figure, and the paper's claim
    scaled: str  # what was scaled down
    limits: str  # limitations of the result
    build_result: Callable[[ExperimentOptions, Sequence[JobResult]], ExperimentResult]
    jobs: Callable[[ExperimentOptions], Sequence[TrainingJob]] = _no_jobs
    measure: Callable[[Path, TrainingJob], dict[str, Any]] | None = None  # on a finished run, besides its scores
    measured_images: int = 0  # images that ``measure`` runs through a model, about
    data: str = "fashion"
    minutes: float = 20.0  # default time budget
    takes_weights: bool = False

    @property
    def trains(self) -> bool:
        return self.jobs is not _no_jobs


def mean_and_ci(values: Iterable[float]) -> tuple[float, float | None]:
    """Return the mean, and the half-width of its 95 % interval if there are two to five values."""
    numbers = list(values)
    half_width = T_QUANTILES[len(numbers)] * stdev(numbers) / len(numbers) ** 0.5 if len(numbers) in T_QUANTILES else None
    return mean(numbers), half_width


def format_percent(values: Iterable[float]) -> str:
    """Format mean and interval in percent, as a table cell."""
    numbers = [value for value in values if value == value]
    if not numbers:
        return '<span class="soft">none</span>'
    centre, half_width = mean_and_ci(numbers)
    return f"{centre:.1%}" if half_width is None else f'{centre:.1%} <span class="soft">± {100 * half_width:.1f}</span>'


def group_by(rows: Iterable[JobResult], *names: str) -> dict[tuple[Any, ...], list[JobResult]]:
    """Group results by these entries of their condition, in order."""
    groups: dict[tuple[Any, ...], list[JobResult]] = {}
    for row in rows:
        groups.setdefault(tuple(row.condition.get(name) for name in names), []).append(row)
    return groups


def get_scores(rows: Iterable[JobResult], name: str = "top1", split: str = "test") -> list[float]:
    """Return the scores of the runs that finished; a failed run has none."""
    return [float(row.scores[split][name]) for row in rows if name in row.scores.get(split, {})]
