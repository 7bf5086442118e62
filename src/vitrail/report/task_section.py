"""Part of a run's report that its task decides: a headline, sections, and what the weights can be used for.

Each task of the package has a file with its section; a task that is defined elsewhere registers its own, or has the default.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from vitrail.data.sources.dataset import DatasetSplits
from vitrail.recipes.recipe import Recipe
from vitrail.tasks.registry import build_task
from vitrail.tasks.task import Task
from vitrail.training.dataset import load_training_data
from vitrail.training.run import Run


@dataclass(frozen=True)
class RunReport:
    """A run to report on; ``result`` is empty while it is training."""

    run: Run
    recipe: Recipe
    result: dict[str, Any]
    dataset: DatasetSplits | None = None  # if it is open already

    @cached_property
    def data(self) -> DatasetSplits:
        """The dataset that the run was trained on."""
        return load_training_data(self.recipe) if self.dataset is None else self.dataset

    @cached_property
    def task(self) -> Task:
        return build_task(self.recipe.task, self.recipe.model, self.recipe.preprocess)

    def format_metric(self, name: str, value: float | str) -> str:
        value = float(value)  # NaN is text in JSON
        return f"{value:.2%}" if name in self.task.fractions else f"{value:.4g}" if name != "loss" else f"{value:.4f}"


class TaskSection:
    """The default: the primary metric, and no sections."""

    def headline(self, report: RunReport) -> tuple[str, str]:
        """Return the most important number, and what it is."""
        split, name = report.result["reported_on"], report.task.primary_metric
        return report.format_metric(name, report.result[split][name]), f"{name.replace('_', ' ')} on {split}"

    def body(self, report: RunReport) -> Iterator[str]:
        """Yield the sections of the page, as HTML."""
        return iter(())

    def out_of_fold(self, report: RunReport, predictions: dict[str, Tensor], class_names: tuple[str, ...]) -> Iterator[str]:
        """Yield sections on the predictions of all folds of a cross-validation, as HTML; outputs and targets have the names
        of the task."""
        return iter(())

    def next_steps(self, report: RunReport) -> Iterator[str]:
        """Yield what the weights can be used for, as HTML."""
        return iter(())


_SECTIONS: dict[type, TaskSection] = {Task: TaskSection()}


def register_task_section(task: type[Task], section: TaskSection) -> None:
    """Let the report of every run of this class of tasks, and of those derived from it, have this section."""
    _SECTIONS[task] = section


def task_section(task: Task) -> TaskSection:
    return next(_SECTIONS[each] for each in type(task).__mro__ if each in _SECTIONS)
