"""A finished run, as ``vitrail.fit`` returns it: folder, metrics, history and model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrail.data.sources.dataset import DatasetSplits
from vitrail.models.build import Model
from vitrail.training.run import Run
from vitrail.weights.load import load


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: ``result`` is the content of ``result.json``, ``data`` the dataset without what was left out."""

    run: Run
    result: dict[str, Any]
    data: DatasetSplits | None = None  # None: the run was finished before

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def report(self) -> Path:
        """The page that shows the run: ``report.html``."""
        return self.folder / "report.html"

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the best weights, on test, or on validation without a test split; ``result`` has those of classes."""
        values = self.result[self.result["reported_on"]]
        return {name: float(value) for name, value in values.items() if not isinstance(value, dict)}  # NaN is text in JSON

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The rows of the log: one per step, and one per evaluation with its ``validation`` metrics."""
        return self.run.log_rows()

    @cached_property
    def model(self) -> Model:
        """The model with the best weights; of a self-supervised run, the encoder."""
        return load(self.folder)
