"""An experiment of the paper: its training jobs, what is measured on each run, and the page with the results.

One short file per experiment; ``registry`` lists them. Scores of several seeds are reported with Student's 95 % interval.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitrail.lab.trial import Row, Trial
from vitrail.report.drawing import Drawing

QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # of Student's t, two-sided 95 %, by number of seeds
QUICK_SEEDS, SEEDS = 1, 3


@dataclass(frozen=True)
class Asked:
    """Options of an experiment. ``quick``: a few steps, a test that it works; its numbers mean nothing."""

    data: str
    quick: bool = False
    weights: str | None = None  # a checkpoint to compare with, where the experiment can

    @property
    def seeds(self) -> range:
        return range(QUICK_SEEDS if self.quick else SEEDS)


@dataclass(frozen=True)
class Told:
    """Result of an experiment: a summary sentence, tables and figures, and numbers for programs."""

    answer: str
    parts: Sequence["str | Drawing"]  # HTML, and figures, which are also written as files
    numbers: dict[str, Any]


def _nothing(asked: Asked) -> Sequence[Trial]:
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
    tell: Callable[[Asked, Sequence[Row]], Told]
    trials: Callable[[Asked], Sequence[Trial]] = _nothing
    measure: Callable[[Path, Trial], dict[str, Any]] | None = None  # on a finished run, besides its scores
    looks: int = 0  # images that ``measure`` runs through a model, about
    data: str = "fashion"
    minutes: float = 20.0  # default time budget
    takes_weights: bool = False

    @property
    def trains(self) -> bool:
        return self.trials is not _nothing


def spread(values: Iterable[float]) -> tuple[float, float | None]:
    """Return the mean, and the half-width of its 95 % interval if there are two to five values."""
    found = list(values)
    half = QUANTILES[len(found)] * stdev(found) / len(found) ** 0.5 if len(found) in QUANTILES else None
    return mean(found), half


def shown(values: Iterable[float]) -> str:
    """Format mean and interval in percent, as a table cell."""
    found = [value for value in values if value == value]
    if not found:
        return '<span class="soft">none</span>'
    middle, half = spread(found)
    return f"{middle:.1%}" if half is None else f'{middle:.1%} <span class="soft">± {100 * half:.1f}</span>'


def by(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group results by these entries of their condition, in order."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.of.get(name) for name in names), []).append(row)
    return found


def scores(rows: Iterable[Row], name: str = "top1", split: str = "test") -> list[float]:
    """Return the scores of the runs that finished; a failed run has none."""
    return [float(row.scores[split][name]) for row in rows if name in row.scores.get(split, {})]
