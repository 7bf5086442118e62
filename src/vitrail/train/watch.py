"""What a run tells while it runs; the command line draws it."""

from typing import TYPE_CHECKING, Protocol

from vitrail.data.sources.source import Data, Progress
from vitrail.train.recipe import Recipe

if TYPE_CHECKING:
    from vitrail.models.settings import ModelConfig
    from vitrail.train.state import State


class Watcher(Protocol):
    progress: Progress | None
    curious: bool  # whether it wants to know how long the run will take, which costs some seconds

    def planned(self, recipe: Recipe, data: Data, model: "ModelConfig", state: "State", seconds: float | None) -> None: ...

    def stepped(self, step: int, numbers: dict[str, float]) -> None: ...

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None: ...

    def said(self, sentence: str) -> None: ...


class Silent:
    """Where nobody looks."""

    progress: Progress | None = None
    curious: bool = False

    def planned(self, recipe: Recipe, data: Data, model: "ModelConfig", state: "State", seconds: float | None) -> None: ...

    def stepped(self, step: int, numbers: dict[str, float]) -> None: ...

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None: ...

    def said(self, sentence: str) -> None: ...


class Several:
    """Passes everything on to each of them; the first that shows progress does so."""

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
