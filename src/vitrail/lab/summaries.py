"""Summaries of results: table cells, plots, and differences between arms with their significance."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from vitrail.lab.experiment import format_percent, get_scores, group_by, mean_and_ci
from vitrail.lab.trials import JobResult
from vitrail.plot.canvas import Figure
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape


@dataclass(frozen=True)
class SeedDifference:
    """Mean difference of two arms, paired by seed, with the half-width of Student's 95 % interval."""

    mean: float
    ci_half_width: float | None

    @property
    def significant(self) -> bool:
        return self.ci_half_width is not None and abs(self.mean) > self.ci_half_width

    @property
    def text(self) -> str:
        interval = "" if self.ci_half_width is None else f" ± {100 * self.ci_half_width:.1f}"
        return f"{round(100 * self.mean, 1) + 0.0:+.1f}{interval} points"  # + 0.0: no minus before a zero


def paired_difference(ours: Iterable[JobResult], theirs: Iterable[JobResult]) -> SeedDifference | None:
    """Return the difference over the seeds that both arms have, or None if they share none."""
    differences = _differences_by_seed(ours, theirs).values()
    return SeedDifference(*mean_and_ci(differences)) if differences else None


def difference_of_differences(
    before: tuple[Iterable[JobResult], Iterable[JobResult]], after: tuple[Iterable[JobResult], Iterable[JobResult]]
) -> SeedDifference | None:
    """Return by how much the difference of two arms has changed, paired by seed."""
    first, last = _differences_by_seed(*before), _differences_by_seed(*after)
    changes = [last[seed] - first[seed] for seed in first if seed in last]
    return SeedDifference(*mean_and_ci(changes)) if changes else None


def _differences_by_seed(ours: Iterable[JobResult], theirs: Iterable[JobResult]) -> dict[Any, float]:
    own, other = (
        {row.condition.get("seed"): row.scores["test"]["top1"] for row in rows if "test" in row.scores}
        for rows in (ours, theirs)
    )
    return {seed: float(own[seed]) - float(other[seed]) for seed in own if seed in other}


def difference_cell(ours: Sequence[JobResult], theirs: Sequence[JobResult]) -> str:
    """Format the difference of two arms, as a table cell; empty for an arm and itself, or if they share no seed."""
    difference = None if ours is theirs else paired_difference(ours, theirs)
    return "" if difference is None else escape(difference.text)


def significant_arms(arms: Mapping[str, Sequence[JobResult]], baseline: Sequence[JobResult], sign: int = 1) -> list[str]:
    """Return the names of the arms that are significantly better than the baseline; with ``sign`` -1, those that are worse."""
    differences = {name: paired_difference(rows, baseline) for name, rows in arms.items()}
    return [name for name, change in differences.items() if change and change.significant and sign * change.mean > 0]


def mean_score(rows: Iterable[JobResult], split: str = "test") -> float:
    """Return the mean score of the finished runs, or NaN."""
    values = get_scores(rows, split=split)
    return mean(values) if values else math.nan


def score_cell(rows: Sequence[JobResult]) -> str:
    """Format the mean score in percent, with the number of diverged runs."""
    diverged = sum(row.failure is not None for row in rows)
    if diverged == len(rows):
        return '<span class="bad">diverged</span>'
    note = f' <span class="bad">{diverged} of {len(rows)} diverged</span>' if diverged else ""
    return f"{format_percent(get_scores(rows))}{note}"


def line_plot(
    title: str, x_label: str, lines: Mapping[str, Mapping[float, Sequence[JobResult]]], format_x: Callable[[float], str]
) -> Figure:
    """Plot mean scores over a logarithmic axis, with intervals on hover."""
    x_values = sorted({x_value for line in lines.values() for x_value in line})
    points = {name: [(math.log10(x), mean_score(rows)) for x, rows in sorted(line.items())] for name, line in lines.items()}
    finite = {name: [point for point in line if math.isfinite(point[1])] for name, line in points.items()}
    finite = {name: line for name, line in finite.items() if line}  # the table lists those that diverged everywhere
    captions = {
        name: [("", f"{name}, {format_x(x)}: {_mean_text(rows)}") for x, rows in sorted(line.items()) if get_scores(rows)]
        for name, line in lines.items()
    }
    x_ticks = {math.log10(x_value): format_x(x_value) for x_value in _spaced_ticks(x_values)}
    return line_chart(title, "test accuracy", x_label, finite, percent=True, captions=captions, x_ticks=x_ticks)


def seed_plot(arms: Mapping[str, Sequence[JobResult]]) -> Figure:
    """Plot every score, by the row of a table numbered from 0."""
    dots = [
        (float(row_index), score, f"{name}, seed {row.condition['seed']}: {score:.1%}")
        for row_index, (name, group) in enumerate(arms.items())
        for row in group
        for score in get_scores([row])
    ]
    title = "Test accuracy, one dot per seed"
    return line_chart(title, "accuracy", "row of the table", percent=True, columns=len(arms), dots=dots)


def scores_json(rows: Sequence[JobResult], **more: Any) -> dict[str, Any]:
    """Return the scores of each seed, and the failures, as JSON."""
    values = get_scores(rows)
    return {
        **more,
        "test": values,
        "mean": mean(values) if values else None,
        "validation": get_scores(rows, split="validation"),
        "failed": [row.failure for row in rows if row.failure],
        "steps": rows[0].steps if rows else 0,
    }


def select_on_validation(lines: Mapping[Any, Sequence[JobResult]]) -> Any:
    """Select a setting, such as a learning rate, on validation, of those with the fewest diverged runs; None if all have
    diverged."""
    scores = {key: values for key, rows in lines.items() if (values := get_scores(rows, split="validation"))}
    return max(scores, key=lambda key: (len(scores[key]), mean(scores[key])), default=None)


@dataclass(frozen=True)
class LearningRates:
    """Arms that were each trained at several learning rates: their results, and the rate selected on validation."""

    results: dict[str, dict[float, list[JobResult]]]
    best: dict[str, float | None]  # None: all runs of the arm have diverged

    @property
    def figure(self) -> Figure:
        return line_plot("Test accuracy by learning rate", "learning rate", self.results, lambda lr: f"{lr:g}")

    @property
    def numbers(self) -> dict[str, dict[str, Any]]:
        return {arm: {f"{lr:g}": scores_json(rows) for lr, rows in line.items()} for arm, line in self.results.items()}

    def best_cell(self, arm: str) -> str:
        return "" if self.best[arm] is None else f"{self.best[arm]:g}"


def by_learning_rate(rows: Iterable[JobResult], *names: str) -> LearningRates:
    """Group results into arms by these entries of their condition, and each arm by learning rate."""
    results = {
        ", ".join(arm): {lr: group for (lr,), group in group_by(own, "lr").items()}
        for arm, own in group_by(rows, *names).items()
    }
    return LearningRates(results, {arm: select_on_validation(line) for arm, line in results.items()})


def best_two(arms: Mapping[str, Sequence[JobResult]]) -> tuple[str, str, str]:
    """Return the names of the best and the second-best arm, and "significantly" or "not significantly" for the difference."""
    first, second, *_ = sorted(arms, key=lambda arm: -mean_score(arms[arm]))
    difference = paired_difference(arms[first], arms[second])
    return first, second, "significantly" if difference is not None and difference.significant else "not significantly"


def join_clauses(clauses: Sequence[str]) -> str:
    joined = "; ".join(clauses)
    return f"{joined[0].upper()}{joined[1:]}."


def join_names(names: Sequence[str]) -> str:
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def _mean_text(rows: Sequence[JobResult]) -> str:
    centre, half_width = mean_and_ci(get_scores(rows))
    return f"{centre:.1%}" if half_width is None else f"{centre:.1%} ± {100 * half_width:.1f}"


def _spaced_ticks(values: Sequence[float], min_gap: float = 0.1) -> list[float]:
    """Return the values whose tick labels do not overlap."""
    span = math.log10(values[-1] / values[0]) if len(values) > 1 else 1.0
    spaced: list[float] = []
    for value in values:
        if not spaced or math.log10(value / spaced[-1]) >= min_gap * span:
            spaced.append(value)
    return spaced
