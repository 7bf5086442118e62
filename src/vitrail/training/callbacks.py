"""Callbacks of a training run: subclass ``Callback`` and override the events of interest."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitrail.data.sources.dataset import DatasetSplits, Progress
from vitrail.recipes.recipe import Recipe
from vitrail.training.run import Run
from vitrail.training.state import TrainState


class Callback:
    """Receives the events of a training run, on the main process. Every event does nothing by default."""

    progress: Progress | None = None  # shows the progress of work before the first step
    wants_eta: bool = False  # whether to estimate the duration of the run, which takes some seconds

    def on_start(self, recipe: Recipe, data: DatasetSplits, state: TrainState, eta_seconds: float | None) -> None:
        """The first step follows; ``state.step`` is above 0 if the run is resumed."""

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        """The weights were updated. ``metrics`` has the loss, the learning rate and what the task logs."""

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        """The model was evaluated on validation. ``is_best``: its weights are the best so far, and saved."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """A checkpoint is being written to this path."""

    def on_end(self, result: dict[str, Any]) -> None:
        """The run is finished; ``result`` is the content of ``result.json``."""

    def on_message(self, message: str) -> None:
        """A message for the user."""


class CallbackList(Callback):
    """Passes every event to all callbacks; the first that shows progress does so."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = tuple(callbacks)
        self.progress = next((callback.progress for callback in self.callbacks if callback.progress is not None), None)
        self.wants_eta = any(callback.wants_eta for callback in self.callbacks)

    def on_start(self, recipe: Recipe, data: DatasetSplits, state: TrainState, eta_seconds: float | None) -> None:
        for callback in self.callbacks:
            callback.on_start(recipe, data, state, eta_seconds)

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_step(step, metrics)

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        for callback in self.callbacks:
            callback.on_evaluation(step, metrics, is_best)

    def on_checkpoint(self, step: int, path: Path) -> None:
        for callback in self.callbacks:
            callback.on_checkpoint(step, path)

    def on_end(self, result: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_end(result)

    def on_message(self, message: str) -> None:
        for callback in self.callbacks:
            callback.on_message(message)


class LogCallback(Callback):
    """Appends every step and evaluation to the run's ``log.jsonl``, where NaN and Inf are text."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self.run.log({"step": step, **metrics})

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        scalars = {name: value for name, value in metrics.items() if isinstance(value, float)}
        others = {name: value for name, value in metrics.items() if name not in scalars}
        self.run.log({"step": step, "validation": scalars, **others})
