"""Summaries of results: table cells, plots, and differences between arms with their significance."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from vitrail.lab.experiment import scores, shown, spread
from vitrail.lab.trial import Row
from vitrail.report.chart import chart
from vitrail.report.drawing import Drawing


@dataclass(frozen=True)
class Gap:
    """Mean difference of two arms, paired by seed, with the half-width of Student's 95 % interval."""

    mean: float
    half: float | None

    @property
    def clear(self) -> bool:
        return self.half is not None and abs(self.mean) > self.half

    @property
    def words(self) -> str:
        more = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{round(100 * self.mean, 1) + 0.0:+.1f}{more} points"  # + 0.0: no minus before a zero


def gap(ours: Iterable[Row], theirs: Iterable[Row]) -> Gap | None:
    """Return the difference over the seeds that both arms have, or None if they share none."""
    found = _leads(ours, theirs).values()
    return Gap(*spread(found)) if found else None


def gain(before: tuple[Iterable[Row], Iterable[Row]], after: tuple[Iterable[Row], Iterable[Row]]) -> Gap | None:
    """Return by how much the difference of two arms has changed, paired by seed."""
    first, last = _leads(*before), _leads(*after)
    found = [last[seed] - first[seed] for seed in first if seed in last]
    return Gap(*spread(found)) if found else None


def _leads(ours: Iterable[Row], theirs: Iterable[Row]) -> dict[Any, float]:
    own, other = (
        {row.of.get("seed"): row.scores["test"]["top1"] for row in rows if "test" in row.scores} for rows in (ours, theirs)
    )
    return {seed: float(own[seed]) - float(other[seed]) for seed in own if seed in other}


def middle(rows: Iterable[Row], name: str = "top1", split: str = "test") -> float:
    """Return the mean score of the finished runs, or NaN."""
    found = scores(rows, name, split)
    return mean(found) if found else math.nan


def cell(rows: Sequence[Row], name: str = "top1", split: str = "test") -> str:
    """Format the mean score in percent, with the number of diverged runs."""
    gone = sum(row.failed is not None for row in rows)
    if gone == len(rows):
        return '<span class="bad">diverged</span>'
    return shown(scores(rows, name, split)) + (f' <span class="bad">{gone} of {len(rows)} diverged</span>' if gone else "")


def over(
    title: str,
    across: str,
    lines: Mapping[str, Mapping[float, Sequence[Row]]],
    form: Callable[[float], str],
    dashed: Sequence[str] = (),
    upward: str = "test accuracy",
) -> Drawing:
    """Plot mean scores over a logarithmic axis, with intervals on hover."""
    places = sorted({place for line in lines.values() for place in line})
    drawn = {name: [(math.log10(x), middle(rows)) for x, rows in sorted(line.items())] for name, line in lines.items()}
    finite = {name: [point for point in line if math.isfinite(point[1])] for name, line in drawn.items()}
    finite = {name: line for name, line in finite.items() if line}  # of what has diverged everywhere the table tells
    said = {
        name: [("", f"{name}, {form(x)}: {_said(rows)}") for x, rows in sorted(line.items()) if scores(rows)]
        for name, line in lines.items()
    }
    marks = {math.log10(place): form(place) for place in _apart(places)}
    return chart(title, upward, across, finite, percent=True, captions=said, marks=marks, dashed=dashed)


def each(arms: Mapping[str, Sequence[Row]]) -> Drawing:
    """Plot every score, by the row of a table numbered from 0."""
    dots = [
        (float(place), row.scores["test"]["top1"], f"{name}, seed {row.of['seed']}: {row.scores['test']['top1']:.1%}")
        for place, (name, found) in enumerate(arms.items())
        for row in found
        if "test" in row.scores
    ]
    title = "Test accuracy, one dot per seed"
    return chart(title, "accuracy", "row of the table", percent=True, places=len(arms), dots=dots)


def plain(rows: Sequence[Row], **more: Any) -> dict[str, Any]:
    """Return the scores of each seed, and the failures, as JSON."""
    found = scores(rows)
    return {
        **more,
        "test": found,
        "mean": mean(found) if found else None,
        "validation": scores(rows, split="validation"),
        "failed": [row.failed for row in rows if row.failed],
        "steps": rows[0].steps if rows else 0,
    }


def best(lines: Mapping[Any, Sequence[Row]]) -> Any:
    """Select a setting, such as a learning rate, on validation, of those with the fewest diverged runs; None if all have
    diverged."""
    found = {key: scores(rows, split="validation") for key, rows in lines.items()}
    most = max(map(len, found.values()), default=0)
    return max((key for key in found if len(found[key]) == most), key=lambda key: mean(found[key])) if most else None


def sentence(said: Sequence[str]) -> str:
    told = "; ".join(said)
    return f"{told[0].upper()}{told[1:]}."


def one_of(names: Sequence[str]) -> str:
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def _said(rows: Sequence[Row]) -> str:
    centre, half = spread(scores(rows))
    return f"{centre:.1%}" if half is None else f"{centre:.1%} ± {100 * half:.1f}"


def _apart(places: Sequence[float], least: float = 0.1) -> list[float]:
    """Return the values whose tick labels do not overlap."""
    reach = math.log10(places[-1] / places[0]) if len(places) > 1 else 1.0
    found: list[float] = []
    for place in places:
        if not found or math.log10(place / found[-1]) >= least * reach:
            found.append(place)
    return found
