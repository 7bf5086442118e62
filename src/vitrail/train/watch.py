"""Callbacks of a training run; the command line draws its progress with one."""

from typing import TYPE_CHECKING, Protocol

from vitrail.data.sources.source import Data, Progress
from vitrail.train.recipe import Recipe

if TYPE_CHECKING:
    from vitrail.models.settings import ModelConfig
    from vitrail.train.state import State


class Watcher(Protocol):
    """Receives the events of a training run."""

    progress: Progress | None
    curious: bool  # whether to estimate the duration of the run, which takes some seconds

    def planned(self, recipe: Recipe, data: Data, model: "ModelConfig", state: "State", seconds: float | None) -> None: ...

    def stepped(self, step: int, numbers: dict[str, float]) -> None: ...

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None: ...

    def said(self, sentence: str) -> None: ...


class Silent:
    """A callback that ignores every event."""

    progress: Progress | None = None
    curious: bool = False

    def planned(self, recipe: Recipe, data: Data, model: "ModelConfig", state: "State", seconds: float | None) -> None: ...

    def stepped(self, step: int, numbers: dict[str, float]) -> None: ...

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None: ...

    def said(self, sentence: str) -> None: ...


class Several:
    """Passes every event to all callbacks; the first that shows progress does so."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers
        self.progress: Progress | None = next((each.progress for each in watchers if each.progress is not None), None)
        self.curious = any(each.curious for each in watchers)

    def planned(self, recipe: Recipe, data: Data, model: "ModelConfig", state: "State", seconds: float | None) -> None:
        for each in self.watchers:
            each.planned(recipe, data, model, state, seconds)

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        for each in self.watchers:
            each.stepped(step, numbers)

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None:
        for each in self.watchers:
            each.evaluated(step, scores, best)

    def said(self, sentence: str) -> None:
        for each in self.watchers:
            each.said(sentence)
