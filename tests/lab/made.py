"""Results of training jobs, without training."""

from collections.abc import Callable, Sequence
from typing import Any

from vitrail.lab.trial import Row, Trial
from vitrail.models.cost import cost

Score = Callable[[dict[str, Any]], float | None]


def made(trials: Sequence[Trial], score: Score, **measured: Any) -> list[Row]:
    """Return a result per job. ``score``: of its condition, None if it diverged."""
    found = []
    for trial in trials:
        price, value = cost(trial.recipe.model), score(trial.of)
        scores = {} if value is None else {split: {"top1": value} for split in ("validation", "test")}
        failed = "10 consecutive steps were skipped" if value is None else None
        row = Row(
            trial.of, trial.key, trial.recipe.steps, trial.recipe.batch, price.parameters, price.macs, 1.0, scores,
            {} if value is None else measured, failed,
        )  # fmt: skip
        found.append(row)
    return found
