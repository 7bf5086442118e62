"""Results of training jobs, without training."""

from collections.abc import Callable, Sequence
from typing import Any

from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.models.cost import cost

Score = Callable[[dict[str, Any]], float | None]


def fake_results(jobs: Sequence[TrainingJob], score: Score, **measured: Any) -> list[JobResult]:
    """Return a result per job. ``score``: of its condition, None if it diverged."""
    results = []
    for job in jobs:
        costs, value = cost(job.recipe.model), score(job.condition)
        scores = {} if value is None else {split: {"top1": value} for split in ("validation", "test")}
        failed = "10 consecutive steps were skipped" if value is None else None
        row = JobResult(
            job.condition, job.key, job.recipe.steps, job.recipe.batch_size, costs.parameters, costs.macs, 1.0, scores,
            {} if value is None else measured, failed,
        )  # fmt: skip
        results.append(row)
    return results
