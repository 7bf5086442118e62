"""A run on disk: one folder, one process at a time, a log that continues from the last checkpoint."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from vitrail.config import parse_value, to_dict, to_json
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.errors import VitrailError
from vitrail.io import atomic_path, atomic_write, file_lock
from vitrail.recipes.recipe import Recipe
from vitrail.training.run_log import LOG_FILE, LogTail, finite_or_text, is_evaluation, parse_rows
from vitrail.weights.model_folder import FOLDS_FILE, read_json

if TYPE_CHECKING:  # it needs torch, and a recipe is read without
    from vitrail.training.process_group import ProcessGroup

# fields of a recipe that may change when resuming
EXECUTION_FIELDS: dict[str, Any] = {"parallel": "auto", "activation_checkpointing": False, "micro_batch_size": None}
ORIGIN_FILE = "continued_from.json"
LOCKED_MESSAGE = "another process is training in"


@dataclass(frozen=True)
class FoldPlan:
    """Options that a cross-validation was started with, besides its recipe; ``minutes`` are for all folds."""

    folds: int
    minutes: float | None = None
    find_lr: bool = False


@dataclass(frozen=True)
class Run:
    """``recipe.json``, ``log.jsonl``, ``checkpoints/``, ``best/``, ``last/``, ``result.json`` (when it is finished),
    ``lr_range_test.json`` if the learning rate was searched for, and ``reconstructions/`` of a self-supervised run.

    The folder of a cross-validation has ``folds.json``, ``recipe.json``, ``result.json`` and the run ``fold-N/`` of each fold.
    """

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def result(self) -> dict[str, Any] | None:
        path = self.folder / "result.json"
        return read_json(path) if path.is_file() else None

    def save_result(self, result: dict[str, Any]) -> None:
        _write_json(self.folder / "result.json", result)

    def save_predictions(self, arrays: dict[str, ndarray]) -> None:
        """Save logits, labels and indices of the images that the result is reported on."""
        _write_arrays(self.folder / "predictions.npz", arrays)

    def load_predictions(self) -> dict[str, ndarray]:
        """Load what ``save_predictions`` has saved; empty if there is nothing."""
        return _load_arrays(path) if (path := self.folder / "predictions.npz").is_file() else {}

    def save_reconstructions(self, step: int, arrays: dict[str, ndarray]) -> None:
        """Save the model's reconstructions of masked patches at a step."""
        (self.folder / "reconstructions").mkdir(exist_ok=True)
        _write_arrays(self.folder / "reconstructions" / f"step-{step}.npz", arrays)

    def load_reconstructions(self) -> dict[int, dict[str, ndarray]]:
        """Load the reconstructions by step, in ascending order."""
        by_step: dict[int, dict[str, ndarray]] = {}
        for path in sorted(self.folder.glob("reconstructions/step-*.npz"), key=lambda path: int(path.stem[5:])):
            by_step[int(path.stem[5:])] = _load_arrays(path)
        return by_step

    def fold_plan(self) -> FoldPlan | None:
        """The plan of a cross-validation; None of a single run."""
        path = self.folder / FOLDS_FILE
        return parse_value(read_json(path), FoldPlan, "") if path.is_file() else None

    def save_fold_plan(self, plan: FoldPlan) -> None:
        _write_json(self.folder / FOLDS_FILE, to_dict(plan))

    def saved_recipe(self) -> Recipe | None:
        """The recipe that the run was started with; None if it was not started."""
        path = self.folder / "recipe.json"
        return read_recipe(path) if path.is_file() else None

    def record_recipe(self, recipe: Recipe) -> None:
        """Write the recipe, or compare it with the one that the run was started with."""
        saved = self.saved_recipe()
        if saved is None:
            atomic_write(self.folder / "recipe.json", to_json(recipe) + "\n", locked=True)
            return
        differences = recipe_differences(saved, recipe)
        if differences:
            raise VitrailError(
                f"{self.folder} was started with another recipe: {'; '.join(differences[:3])}; use another folder for this one"
            )

    def recipe(self) -> Recipe:
        saved = self.saved_recipe()
        if saved is None:
            raise VitrailError(f"{self.folder} is not a run: it has no recipe.json")
        return saved

    def origin(self) -> dict[str, Any]:
        """``continued_from``: the run and step that this run continues, and what was changed; empty if it is a new one."""
        path = self.folder / ORIGIN_FILE
        return {"continued_from": read_json(path)} if path.is_file() else {}

    def save_lr_test(self, lr_test: dict[str, Any]) -> None:
        """Save the learning-rate range test."""
        _write_json(self.folder / "lr_range_test.json", lr_test)

    def lr_test(self) -> dict[str, Any] | None:
        path = self.folder / "lr_range_test.json"
        return json.loads(path.read_text()) if path.is_file() else None

    @property
    def log_path(self) -> Path:
        return self.folder / LOG_FILE

    def log(self, row: dict[str, Any]) -> None:
        with open(self.log_path, "a") as file:
            file.write(json.dumps(finite_or_text(row), allow_nan=False) + "\n")

    def truncate_log(self, step: int) -> None:
        """Drop what was logged after the checkpoint that the run is resumed from; it will be logged again."""
        if self.log_path.is_file():
            rows = [row for row in self.log_rows() if row["step"] <= step]
            atomic_write(self.log_path, "".join(f"{json.dumps(finite_or_text(row))}\n" for row in rows), locked=True)

    def log_rows(self) -> list[dict[str, Any]]:
        return parse_rows(LogTail(self.log_path).read_new_lines())

    def logged_validation(self, step: int) -> dict[str, float]:
        """Return the logged validation metrics of a step, those that are finite."""
        evaluations = parse_rows(line for line in LogTail(self.log_path).read_new_lines() if is_evaluation(line))
        return next((_finite_floats(row["validation"]) for row in evaluations if row["step"] == step), {})


class RunLocked(VitrailError):
    """Another process holds the lock of the run."""


class ReadOnlyRun(Run):
    """The run on ranks other than 0, which write nothing."""

    def save_result(self, result: dict[str, Any]) -> None: ...

    def save_fold_plan(self, plan: FoldPlan) -> None: ...

    def save_predictions(self, arrays: dict[str, ndarray]) -> None: ...

    def save_reconstructions(self, step: int, arrays: dict[str, ndarray]) -> None: ...

    def record_recipe(self, recipe: Recipe) -> None: ...

    def save_lr_test(self, lr_test: dict[str, Any]) -> None: ...

    def log(self, row: dict[str, Any]) -> None: ...

    def truncate_log(self, step: int) -> None: ...


def choose_folder(folder: str | Path | None, name: str, group: "ProcessGroup") -> Path:
    """Return the folder of a run, the same on all ranks: the one that is named, else the next free one of its recipe's name."""
    if folder is None:
        return Path(group.broadcast_str(lambda: str(next_free_folder(name))))
    return check_folder(folder, "folder").expanduser()


def check_folder(folder: Any, option: str) -> Path:
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise VitrailError(f"{option} must be the path of a run folder, got {folder!r}; try {option}='runs/mine'")
    return Path(os.fsdecode(folder))


def next_free_folder(name: str, parent: Path = Path("runs")) -> Path:
    """Return runs/demo, else runs/demo-2 ...: an earlier run is never overwritten."""
    number, folder = 1, parent / name
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder


def find_recipe(path: str | Path) -> Recipe:
    """Read the recipe of a run folder, or a ``recipe.json``."""
    given = check_folder(path, "recipe_from").expanduser()
    file = given / "recipe.json" if given.is_dir() else given
    if not file.is_file():
        raise VitrailError(f"recipe_from must be a run or its recipe.json, got {given}; vitrail train writes one")
    return read_recipe(file)


def read_recipe(path: Path) -> Recipe:
    fields = read_json(path)
    try:
        return parse_value(fields, Recipe, "")
    except VitrailError as error:
        raise VitrailError(f"{path} is not a recipe: {error}") from None


@contextmanager
def lock_run(run: Run) -> Iterator[None]:
    """Lock a run for one process; the lock ends with the process. A run that was never started leaves no folder."""
    locked = RunLocked(f"{LOCKED_MESSAGE} {run.folder}; wait for it, or name another folder")
    with ExitStack() as stack:
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(run.folder / ".lock", locked))
        except OSError as error:
            raise VitrailError(f"{run.folder} cannot be written ({error.strerror}); name another folder for the run") from None
        try:
            yield
        except (FileNotFoundError, VitrailError):
            if run.folder.is_dir():
                raise
            raise OSError(f"{run.folder} was deleted during its run; its contents are lost") from None
        finally:
            if [path.name for path in run.folder.glob("*")] == [".lock"]:
                (run.folder / ".lock").unlink()
                run.folder.rmdir()


def run_metadata(
    recipe: Recipe, data: DatasetSplits, image_size: Sequence[int], task_state: dict[str, Any], step: int,
    **scores: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the metadata for ``vitrail.save``; metrics by split. Without validation, the weights were selected on train.

    ``image_size``: median height and width of the training images.
    """
    by_split = {split if len(data.splits[split]) else "train": _finite_floats(metrics) for split, metrics in scores.items()}
    return {
        "recipe": to_dict(recipe),
        "dataset": {"name": data.name, "fingerprint": data.fingerprint, "image_size": list(image_size)},
        "metrics": {"step": step, **by_split},
        **({"task_state": task_state} if task_state else {}),
    }


def _finite_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Keep the finite floats, as JSON has no others."""
    return {name: value for name, value in metrics.items() if isinstance(value, float) and math.isfinite(value)}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    atomic_write(path, json.dumps(value, indent=2, allow_nan=False) + "\n", locked=True)


def _write_arrays(path: Path, arrays: dict[str, ndarray]) -> None:
    with atomic_path(path, locked=True) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


def _load_arrays(path: Path) -> dict[str, ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def recipe_differences(old: Recipe, new: Recipe) -> list[str]:
    """Describe the fields that differ, apart from those that only say how the run is executed."""
    return list(_differences(*(to_dict(replace(recipe, **EXECUTION_FIELDS)) for recipe in (old, new))))


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif old != new:
        yield f"{path} was {old!r}, is {new!r}"
