"""What a run tells while it runs; the command line draws it."""

from typing import TYPE_CHECKING, Protocol

from vitrail.data.sources.source import Data, Progress
from vitrail.train.recipe import Recipe

if TYPE_CHECKING:
    from vitrail.models.build import Model
    from vitrail.train.state import State


class Watcher(Protocol):
    progress: Progress | None

    def planned(self, recipe: Recipe, data: Data, model: "Model", state: "State") -> None: ...

    def stepped(self, step: int, numbers: dict[str, float]) -> None: ...

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None: ...

    def said(self, sentence: str) -> None: ...


class Silent:
    """Where nobody looks."""

    progress: Progress | None = None

    def planned(self, recipe: Recipe, data: Data, model: "Model", state: "State") -> None: ...

    def stepped(self, step: int, numbers: dict[str, float]) -> None: ...

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None: ...

    def said(self, sentence: str) -> None: ...
