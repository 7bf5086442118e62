"""A run on disk: one folder, one process at a time, a log that continues from the last checkpoint."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.config import parse_value, to_dict, to_json
from vitrail.errors import VitrailError
from vitrail.training.recipe import Recipe
from vitrail.weights.model_folder import read_json

# fields of a recipe that may change when resuming
EXECUTION_FIELDS: dict[str, Any] = {"parallel": "auto", "activation_checkpointing": False, "micro_batch_size": None}
LOCKED_MESSAGE = "another process is training in"


@dataclass(frozen=True)
class Run:
    """``recipe.json``, ``log.jsonl``, ``checkpoints/``, ``best/``, ``last/``, ``result.json`` (when it is finished),
    ``lr_range_test.json`` if the learning rate was searched for, and ``reconstructions/`` of a self-supervised run."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def result(self) -> dict[str, Any] | None:
        path = self.folder / "result.json"
        return read_json(path) if path.is_file() else None

    def save_result(self, result: dict[str, Any]) -> None:
        _atomic_write(self.folder / "result.json", json.dumps(result, indent=2, allow_nan=False) + "\n")

    def save_predictions(self, arrays: dict[str, ndarray]) -> None:
        """Save logits, labels and indices of the images that the result is reported on."""
        _atomic_savez(self.folder / "predictions.npz", arrays)

    def save_reconstructions(self, step: int, arrays: dict[str, ndarray]) -> None:
        """Save the model's reconstructions of masked patches at a step."""
        (self.folder / "reconstructions").mkdir(exist_ok=True)
        _atomic_savez(self.folder / "reconstructions" / f"step-{step}.npz", arrays)

    def load_reconstructions(self) -> dict[int, dict[str, ndarray]]:
        """Load the reconstructions by step, in ascending order."""
        by_step: dict[int, dict[str, ndarray]] = {}
        for path in sorted(self.folder.glob("reconstructions/step-*.npz"), key=lambda path: int(path.stem[5:])):
            with np.load(path, allow_pickle=False) as file:
                by_step[int(path.stem[5:])] = {name: file[name] for name in file.files}
        return by_step

    def saved_recipe(self) -> Recipe | None:
        """The recipe that the run was started with; None if it was not started."""
        path = self.folder / "recipe.json"
        return read_recipe(path) if path.is_file() else None

    def record_recipe(self, recipe: Recipe) -> None:
        """Write the recipe, or compare it with the one that the run was started with."""
        saved = self.saved_recipe()
        if saved is None:
            _atomic_write(self.folder / "recipe.json", to_json(recipe) + "\n")
            return
        differences = list(
            _differences(to_dict(replace(saved, **EXECUTION_FIELDS)), to_dict(replace(recipe, **EXECUTION_FIELDS)))
        )
        if differences:
            raise VitrailError(
                f"{self.folder} was started with another recipe: {'; '.join(differences[:3])}; use another folder for this one"
            )

    def recipe(self) -> Recipe:
        saved = self.saved_recipe()
        if saved is None:
            raise VitrailError(f"{self.folder} is not a run: it has no recipe.json")
        return saved

    def save_lr_test(self, lr_test: dict[str, Any]) -> None:
        """Save the learning-rate range test."""
        _atomic_write(self.folder / "lr_range_test.json", json.dumps(lr_test, indent=2, allow_nan=False) + "\n")

    def lr_test(self) -> dict[str, Any] | None:
        path = self.folder / "lr_range_test.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def log(self, row: dict[str, Any]) -> None:
        with open(self.folder / "log.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")

    def truncate_log(self, step: int) -> None:
        """Drop what was logged after the checkpoint that the run is resumed from; it will be logged again."""
        path = self.folder / "log.jsonl"
        if path.is_file():
            lines = [line for line in path.read_text().splitlines() if (at := _step(line)) is not None and at <= step]
            _atomic_write(path, "".join(f"{line}\n" for line in lines))

    def log_rows(self) -> list[dict[str, Any]]:
        path = self.folder / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


class RunLocked(VitrailError):
    """Another process holds the lock of the run."""


class ReadOnlyRun(Run):
    """The run on ranks other than 0, which write nothing."""

    def save_result(self, result: dict[str, Any]) -> None: ...

    def save_predictions(self, arrays: dict[str, ndarray]) -> None: ...

    def save_reconstructions(self, step: int, arrays: dict[str, ndarray]) -> None: ...

    def record_recipe(self, recipe: Recipe) -> None: ...

    def save_lr_test(self, lr_test: dict[str, Any]) -> None: ...

    def log(self, row: dict[str, Any]) -> None: ...

    def truncate_log(self, step: int) -> None: ...


def read_recipe(path: Path) -> Recipe:
    fields = read_json(path)
    try:
        return parse_value(fields, Recipe, "")
    except VitrailError as error:
        raise VitrailError(f"{path} is not a recipe: {error}") from None


@contextmanager
def lock_run(run: Run) -> Iterator[None]:
    """Lock a run for one process; the lock ends with the process. A run that was never started leaves no folder."""
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        file = open(run.folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise VitrailError(f"{run.folder} cannot be written ({error.strerror}); name another folder for the run") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunLocked(f"{LOCKED_MESSAGE} {run.folder}; wait for it, or name another folder") from None
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


def _step(line: str) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None  # a line that was cut off when the process ended


def _atomic_write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.part")
    with open(partial, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _atomic_savez(path: Path, arrays: dict[str, ndarray]) -> None:
    partial = path.with_name(f".{path.name}.part")
    with open(partial, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    partial.replace(path)


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif old != new:
        yield f"{path} was {old!r}, is {new!r}"
