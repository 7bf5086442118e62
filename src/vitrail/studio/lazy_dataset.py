"""A dataset that is opened on first use, in a background thread, so that other requests do not wait for it."""

from pathlib import PurePosixPath
from threading import Event, Lock, Thread
from typing import Any

from vitrail.data.dataset_check import DatasetReport
from vitrail.data.sources.dataset import DatasetSplits, Progress
from vitrail.data.sources.open import DATASET_NAMES, open_dataset
from vitrail.errors import VitrailError, first_line
from vitrail.recipes.recipe import Recipe
from vitrail.studio.uploads import printable_title
from vitrail.training.dataset import check_training_data, open_training_data

_PythonCode = tuple[str, tuple[str, ...]]  # an expression for the dataset, and the imports that it needs


class DatasetLoading(VitrailError):
    """The dataset is still being opened."""


class LazyDataset:
    """A dataset by name, or by recipe: then split and checked as in its run. A failure to open it is remembered."""

    def __init__(self, name_or_recipe: str | Recipe) -> None:
        self.name_or_recipe = name_or_recipe
        self.name = name_or_recipe if isinstance(name_or_recipe, str) else name_or_recipe.data
        self._lock, self._done = Lock(), Event()
        self._thread: Thread | None = None
        self._dataset: DatasetSplits | None = None
        self._python: _PythonCode | None = None
        self._error = ""
        self._progress = ""

    @property
    def title(self) -> str:
        """Return the name, for a folder or a file only the last part of its path."""
        is_known = self.name.partition(":")[0] in (*DATASET_NAMES, "hf")
        return printable_title(self.name if is_known else PurePosixPath(self.name).name or self.name)

    @property
    def key(self) -> tuple[Any, ...]:
        """Identify the dataset: equal keys give the same images at the same indices."""
        if isinstance(self.name_or_recipe, str):
            return (self.name_or_recipe,)
        recipe = self.name_or_recipe
        splits = recipe.val_fraction, recipe.test_fraction, recipe.fold
        return recipe.data, *splits, recipe.task.labelled, recipe.max_bad_fraction

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._open, name="vitrail-dataset", daemon=True)
                self._thread.start()

    def wait(self, timeout: float | None = None) -> DatasetSplits:
        """Wait for the dataset; raises if it cannot be opened or takes longer than that."""
        self.start()
        if not self._done.wait(timeout):
            raise DatasetLoading(f"{self.title} is still being opened{self._progress}; try again later")
        if self._dataset is None:
            raise VitrailError(self._error)
        return self._dataset

    def python_code(self, split: str, index: int, title: str) -> dict[str, Any]:
        """Return a Python expression for an image, and the imports that it needs; else its title."""
        self.wait()
        if self._python is None:
            return {"python": repr(title), "imports": []}
        expression, imports = self._python
        return {"python": f"{expression}.{split}.read({index})", "imports": list(imports)}

    def _open(self) -> None:
        try:
            if isinstance(self.name_or_recipe, str):
                self._dataset, self._python = _open_by_name(self.name_or_recipe, self._on_progress)
            else:
                recipe = self.name_or_recipe
                report = check_training_data(open_training_data(recipe, self._on_progress), recipe, self._on_progress)
                self._dataset, self._python = report.data, _recipe_code(recipe, report)
        except Exception as error:  # a dataset can raise any exception, which must not stop the studio
            own_error = isinstance(error, VitrailError)
            self._error = str(error) if own_error else f"{self.title} cannot be opened: {first_line(error)}"
        finally:
            self._done.set()

    def _on_progress(self, stage: str, done: int, total: int | None) -> None:
        self._progress = f" ({stage}, {done:,}{'' if total is None else f' of {total:,}'})"


def _open_by_name(name: str, progress: Progress) -> tuple[DatasetSplits, _PythonCode]:
    """Open a dataset with its labels, or without if it has none."""
    try:
        return open_dataset(name, progress=progress), (f"vitrail.open_dataset({name!r})", ())
    except VitrailError as error:
        try:
            expression = f"vitrail.open_dataset({name!r}, labelled=False)"
            return open_dataset(name, labelled=False, progress=progress), (expression, ())
        except VitrailError:
            raise error from None


def _recipe_code(recipe: Recipe, report: DatasetReport) -> _PythonCode | None:
    """Return Python for the same images at the same indices; None if images without a label were left out, or of a fold."""
    if recipe.fold is not None:
        return None
    imports = ["from vitrail.data.sources.content_split import SplitFractions"]
    labelled = "" if recipe.task.labelled else ", labelled=False"
    fractions = f"SplitFractions({recipe.val_fraction}, {recipe.test_fraction})"
    expression = f"vitrail.open_dataset({recipe.data!r}, split_fractions={fractions}{labelled})"
    if report.bad:
        expression = f"check_dataset({expression}).data"
        imports.insert(0, "from vitrail.data.dataset_check import check_dataset")
    num_images = sum(map(len, report.data.splits.values())) + len(report.bad)
    return (expression, tuple(imports)) if num_images == report.num_images else None
