"""A data set that is opened when it is first asked for, aside, so that nobody has to wait for it who wants something else."""

from pathlib import PurePosixPath
from threading import Event, Lock, Thread
from typing import Any

from vitrail.data.check import Checked
from vitrail.data.sources.open import NAMES, pictures
from vitrail.data.sources.source import Data, Progress
from vitrail.errors import VitrailError
from vitrail.studio.uploads import shortened
from vitrail.train.data import opened
from vitrail.train.recipe import Recipe

_Python = tuple[str, tuple[str, ...]]  # an expression for the data, and the imports that it needs


class StillOpening(VitrailError):
    """In a while it will be there."""


class Opening:
    """Of a name, or of a recipe: then split and checked as its run saw it. One that cannot be opened goes on saying why."""

    def __init__(self, what: str | Recipe) -> None:
        self.what = what
        self.name = what if isinstance(what, str) else what.data
        self._lock, self._over = Lock(), Event()
        self._thread: Thread | None = None
        self._found: Data | None = None
        self._python: _Python | None = None
        self._problem = ""
        self._progress = ""

    @property
    def title(self) -> str:
        """Of a folder or a file the last part of its path."""
        named = self.name.partition(":")[0] in (*NAMES, "hf")
        return shortened(self.name if named else PurePosixPath(self.name).name or self.name)

    @property
    def way(self) -> tuple[Any, ...]:
        """What is opened the same way has the same pictures under the same numbers."""
        if isinstance(self.what, str):
            return (self.what,)
        recipe = self.what
        return recipe.data, recipe.validation, recipe.test, recipe.masking is None, recipe.tolerated

    def begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._open, name="vitrail-opening", daemon=True)
                self._thread.start()

    def data(self, seconds: float | None = None) -> Data:
        """When it is open, or a sentence where it cannot be or takes longer than that."""
        self.begin()
        if not self._over.wait(seconds):
            raise StillOpening(f"{self.title} is still being opened{self._progress}; wait a while, and ask again")
        if self._found is None:
            raise VitrailError(self._problem)
        return self._found

    def python(self, split: str, index: int, title: str) -> dict[str, Any]:
        """How to have a picture in Python, as an expression, and the imports that it needs; else what it is called."""
        self.data()
        if self._python is None:
            return {"python": repr(title), "imports": []}
        expression, imports = self._python
        return {"python": f"{expression}.{split}.content({index})", "imports": list(imports)}

    def _open(self) -> None:
        try:
            if isinstance(self.what, str):
                self._found, self._python = _any(self.what, self._told)
            else:
                checked = opened(self.what, self._told)
                self._found, self._python = checked.data, _again(self.what, checked)
        except Exception as error:  # a data set from anybody can fail in any way, and the rest of the studio goes on
            self._problem = str(error) if isinstance(error, VitrailError) else f"{self.title} cannot be opened: {_first(error)}"
        finally:
            self._over.set()

    def _told(self, what: str, done: int, total: int | None) -> None:
        self._progress = f" ({what}, {done:,}{'' if total is None else f' of {total:,}'})"


def _any(name: str, progress: Progress) -> tuple[Data, _Python]:
    """With its labels where it has some; to look at pictures needs none."""
    try:
        return pictures(name, progress=progress), (f"vitrail.pictures({name!r})", ())
    except VitrailError as error:
        try:
            return pictures(name, labelled=False, progress=progress), (f"vitrail.pictures({name!r}, labelled=False)", ())
        except VitrailError:
            raise error from None


def _again(recipe: Recipe, checked: Checked) -> _Python | None:
    """What gives the same pictures under the same numbers; nothing where those without a label were left out."""
    imports = ["from vitrail.data.sources.split import Shares"]
    labelled = "" if recipe.masking is None else ", labelled=False"
    made = f"vitrail.pictures({recipe.data!r}, shares=Shares({recipe.validation}, {recipe.test}){labelled})"
    if checked.bad:
        made, imports = f"check({made}).data", ["from vitrail.data.check import check", *imports]
    whole = sum(map(len, checked.data.splits.values())) + len(checked.bad)
    return (made, tuple(imports)) if whole == checked.pictures else None


def _first(error: Exception) -> str:
    """Its first line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
