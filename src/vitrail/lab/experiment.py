"""What an experiment of the paper is: the trainings it needs, what is measured of each, and a page that tells what came of it.

One short file an experiment; ``book`` has their list. Scores of several seeds are told with Student's 95 % interval.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitrail.lab.trial import Row, Trial
from vitrail.report.drawing import Drawing

QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # of Student's t, two-sided 95 %, by the number of seeds
QUICK_SEEDS, SEEDS = 1, 3


@dataclass(frozen=True)
class Asked:
    """What somebody wants of an experiment. ``quick``: a few steps, to prove that it works; its numbers mean nothing."""

    data: str
    quick: bool = False
    weights: str | None = None  # a checkpoint to look at beside, where the experiment can

    @property
    def seeds(self) -> range:
        return range(QUICK_SEEDS if self.quick else SEEDS)


@dataclass(frozen=True)
class Told:
    """What came of an experiment: a sentence, tables and drawings, and numbers for a program."""

    answer: str
    parts: Sequence["str | Drawing"]  # HTML, and drawings, which are kept as files too
    numbers: dict[str, Any]


def _nothing(asked: Asked) -> Sequence[Trial]:
    """What is counted or computed needs no training."""
    return ()


@dataclass(frozen=True)
class Experiment:
    """``trials`` are complete recipes; a budget makes all of them longer or shorter by one factor, which is fair to each."""

    name: str
    title: str
    paper: str  # the table or figure, and what the paper says of it
    scaled: str  # what is smaller here
    limits: str  # what the result does not show
    tell: Callable[[Asked, Sequence[Row]], Told]
    trials: Callable[[Asked], Sequence[Trial]] = _nothing
    measure: Callable[[Path, Trial], dict[str, Any]] | None = None  # of a finished run, beside its scores
    looks: int = 0  # pictures that ``measure`` puts through a model, about
    data: str = "fashion"
    minutes: float = 20.0  # where nobody says how many
    takes_weights: bool = False

    @property
    def trains(self) -> bool:
        return self.trials is not _nothing


def spread(values: Iterable[float]) -> tuple[float, float | None]:
    """The mean, and the half of its interval where there are seeds enough."""
    found = list(values)
    half = QUANTILES[len(found)] * stdev(found) / len(found) ** 0.5 if len(found) in QUANTILES else None
    return mean(found), half


def shown(values: Iterable[float]) -> str:
    """In percent, as a cell of a table."""
    found = [value for value in values if value == value]
    if not found:
        return '<span class="soft">none</span>'
    middle, half = spread(found)
    return f"{middle:.1%}" if half is None else f'{middle:.1%} <span class="soft">± {100 * half:.1f}</span>'


def by(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that stand for the same, in the order in which they come."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.of.get(name) for name in names), []).append(row)
    return found


def scores(rows: Iterable[Row], name: str = "top1", split: str = "test") -> list[float]:
    """Of what was finished; a training that has failed has none."""
    return [float(row.scores[split][name]) for row in rows if name in row.scores.get(split, {})]
