"""A dataset that is opened on first use, in a background thread, so that other requests do not wait for it."""

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

_Python = tuple[str, tuple[str, ...]]  # an expression for the dataset, and the imports that it needs


class StillOpening(VitrailError):
    """The dataset is still being opened."""


class Opening:
    """A dataset by name, or by recipe: then split and checked as in its run. A failure to open it is remembered."""

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
        """Return the name, for a folder or a file only the last part of its path."""
        named = self.name.partition(":")[0] in (*NAMES, "hf")
        return shortened(self.name if named else PurePosixPath(self.name).name or self.name)

    @property
    def way(self) -> tuple[Any, ...]:
        """Identify the dataset: equal keys give the same images at the same indices."""
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
        """Wait for the dataset; raises if it cannot be opened or takes longer than that."""
        self.begin()
        if not self._over.wait(seconds):
            raise StillOpening(f"{self.title} is still being opened{self._progress}; try again later")
        if self._found is None:
            raise VitrailError(self._problem)
        return self._found

    def python(self, split: str, index: int, title: str) -> dict[str, Any]:
        """Return a Python expression for an image, and the imports that it needs; else its title."""
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
        except Exception as error:  # a dataset can raise any exception, which must not stop the studio
            self._problem = str(error) if isinstance(error, VitrailError) else f"{self.title} cannot be opened: {_first(error)}"
        finally:
            self._over.set()

    def _told(self, what: str, done: int, total: int | None) -> None:
        self._progress = f" ({what}, {done:,}{'' if total is None else f' of {total:,}'})"


def _any(name: str, progress: Progress) -> tuple[Data, _Python]:
    """Open a dataset with its labels, or without if it has none."""
    try:
        return pictures(name, progress=progress), (f"vitrail.pictures({name!r})", ())
    except VitrailError as error:
        try:
            return pictures(name, labelled=False, progress=progress), (f"vitrail.pictures({name!r}, labelled=False)", ())
        except VitrailError:
            raise error from None


def _again(recipe: Recipe, checked: Checked) -> _Python | None:
    """Return Python for the same images at the same indices, or None if images without a label were left out."""
    imports = ["from vitrail.data.sources.split import Shares"]
    labelled = "" if recipe.masking is None else ", labelled=False"
    made = f"vitrail.pictures({recipe.data!r}, shares=Shares({recipe.validation}, {recipe.test}){labelled})"
    if checked.bad:
        made, imports = f"check({made}).data", ["from vitrail.data.check import check", *imports]
    whole = sum(map(len, checked.data.splits.values())) + len(checked.bad)
    return (made, tuple(imports)) if whole == checked.pictures else None


def _first(error: Exception) -> str:
    """Return the first line of an error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
