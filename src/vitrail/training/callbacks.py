"""Callbacks of a training run; the command line draws its progress with one."""

from typing import TYPE_CHECKING, Protocol

from vitrail.data.sources.dataset import DatasetSplits, Progress
from vitrail.training.recipe import Recipe

if TYPE_CHECKING:
    from vitrail.models.config import ModelConfig
    from vitrail.training.state import TrainState


class Callback(Protocol):
    """Receives the events of a training run."""

    progress: Progress | None
    wants_eta: bool  # whether to estimate the duration of the run, which takes some seconds

    def on_start(
        self, recipe: Recipe, data: DatasetSplits, model: "ModelConfig", state: "TrainState", eta_seconds: float | None
    ) -> None: ...

    def on_step(self, step: int, metrics: dict[str, float]) -> None: ...

    def on_evaluate(self, step: int, scores: dict[str, float], is_best: bool) -> None: ...

    def on_message(self, message: str) -> None: ...


class NullCallback:
    """A callback that ignores every event."""

    progress: Progress | None = None
    wants_eta: bool = False

    def on_start(
        self, recipe: Recipe, data: DatasetSplits, model: "ModelConfig", state: "TrainState", eta_seconds: float | None
    ) -> None: ...

    def on_step(self, step: int, metrics: dict[str, float]) -> None: ...

    def on_evaluate(self, step: int, scores: dict[str, float], is_best: bool) -> None: ...

    def on_message(self, message: str) -> None: ...


class CallbackList:
    """Passes every event to all callbacks; the first that shows progress does so."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks
        self.progress: Progress | None = next(
            (callback.progress for callback in callbacks if callback.progress is not None), None
        )
        self.wants_eta = any(callback.wants_eta for callback in callbacks)

    def on_start(
        self, recipe: Recipe, data: DatasetSplits, model: "ModelConfig", state: "TrainState", eta_seconds: float | None
    ) -> None:
        for callback in self.callbacks:
            callback.on_start(recipe, data, model, state, eta_seconds)

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_step(step, metrics)

    def on_evaluate(self, step: int, scores: dict[str, float], is_best: bool) -> None:
        for callback in self.callbacks:
            callback.on_evaluate(step, scores, is_best)

    def on_message(self, message: str) -> None:
        for callback in self.callbacks:
            callback.on_message(message)
