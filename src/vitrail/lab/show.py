"""How experiments tell what came of trainings: cells of a table, lines over powers, and whether one is ahead of another."""

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
    """By how much one is ahead of another, in the mean over seeds, with the half of Student's 95 % interval."""

    mean: float
    half: float | None

    @property
    def clear(self) -> bool:
        return self.half is not None and abs(self.mean) > self.half

    @property
    def words(self) -> str:
        more = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{round(100 * self.mean, 1) + 0.0:+.1f}{more} points"  # plus nothing: no minus before a zero


def gap(ours: Iterable[Row], theirs: Iterable[Row]) -> Gap | None:
    """Of the seeds that both have; none where there are none."""
    found = _leads(ours, theirs).values()
    return Gap(*spread(found)) if found else None


def gain(before: tuple[Iterable[Row], Iterable[Row]], after: tuple[Iterable[Row], Iterable[Row]]) -> Gap | None:
    """By how much the lead of one over the other has grown, seed by seed."""
    first, last = _leads(*before), _leads(*after)
    found = [last[seed] - first[seed] for seed in first if seed in last]
    return Gap(*spread(found)) if found else None


def _leads(ours: Iterable[Row], theirs: Iterable[Row]) -> dict[Any, float]:
    own, other = (
        {row.of.get("seed"): row.scores["test"]["top1"] for row in rows if "test" in row.scores} for rows in (ours, theirs)
    )
    return {seed: float(own[seed]) - float(other[seed]) for seed in own if seed in other}


def middle(rows: Iterable[Row], name: str = "top1", split: str = "test") -> float:
    """The mean over what was finished, or no number."""
    found = scores(rows, name, split)
    return mean(found) if found else math.nan


def cell(rows: Sequence[Row], name: str = "top1", split: str = "test") -> str:
    """In percent, with how many have diverged."""
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
    upward: str = "accuracy on test",
) -> Drawing:
    """Means over a scale of powers, each with its spread when pointed at."""
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
    """All there is, by the rows of a table that is numbered from 0."""
    dots = [
        (float(place), row.scores["test"]["top1"], f"{name}, seed {row.of['seed']}: {row.scores['test']['top1']:.1%}")
        for place, (name, found) in enumerate(arms.items())
        for row in found
        if "test" in row.scores
    ]
    title = "Accuracy on test, a dot a seed"
    return chart(title, "accuracy", "rows of the table", percent=True, places=len(arms), dots=dots)


def plain(rows: Sequence[Row], **more: Any) -> dict[str, Any]:
    """For a program: the scores of each seed, and why there are none."""
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
    """The one to take by validation, such as a learning rate, of those of which the fewest have diverged; none where all
    have."""
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
    """Those that can stand side by side below an axis."""
    reach = math.log10(places[-1] / places[0]) if len(places) > 1 else 1.0
    found: list[float] = []
    for place in places:
        if not found or math.log10(place / found[-1]) >= least * reach:
            found.append(place)
    return found
