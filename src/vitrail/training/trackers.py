"""Experiment trackers as callbacks: TensorBoard, Weights & Biases, MLflow. Each needs the extra of its name.

``log.jsonl`` stays the reference. Nothing is sent anywhere unless one of them is asked for.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from vitrail.config import to_dict
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.errors import VitrailError, first_line
from vitrail.recipes.recipe import Recipe
from vitrail.training.callbacks import Callback
from vitrail.training.state import TrainState
from vitrail.training.tensorboard import TensorBoardCallback

log = logging.getLogger("vitrail")
PROJECT = "vitrail"  # unless the tracker's own environment variable names another
MAX_PARAMS, MAX_PARAM_LENGTH = 100, 500  # of MLflow: parameters per request, characters of a value


class WandbCallback(Callback):
    """Logs a run to Weights & Biases; a resumed run goes on in the same one. ``folder`` is that of the run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.library = Path(folder), _import("wandb", "Weights & Biases")
        self.session: Any = None

    def __enter__(self) -> "WandbCallback":
        return self

    def __exit__(self, *error: object) -> None:
        if self.session is not None:
            self.session.finish(exit_code=1 if error[0] else 0)

    def on_start(self, recipe: Recipe, data: DatasetSplits, state: TrainState, eta_seconds: float | None) -> None:
        id_file = self.folder / "wandb_run_id"
        saved_id = id_file.read_text().strip() if id_file.is_file() else None
        self.session = self.library.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self.folder.name,
            dir=str(self.folder),
            id=saved_id,
            resume="allow",
            config=to_dict(recipe),
        )
        id_file.write_text(f"{self.session.id}\n")

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self.session.log(_named("train", metrics), step=step)

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        self.session.log(_named("validation", metrics), step=step)

    def on_end(self, result: dict[str, Any]) -> None:
        self.session.summary.update(_final_metrics(result))


class MlflowCallback(Callback):
    """Logs a run to the MLflow server or folder that its environment variables name; a resumed run goes on in the same one."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.library = Path(folder), _import("mlflow", "MLflow")
        self.is_started = self.has_failed = False

    def __enter__(self) -> "MlflowCallback":
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_started:
            self.library.end_run("FAILED" if error[0] else "FINISHED")

    def on_start(self, recipe: Recipe, data: DatasetSplits, state: TrainState, eta_seconds: float | None) -> None:
        id_file = self.folder / "mlflow_run_id"
        saved_id = id_file.read_text().strip() if id_file.is_file() else None
        try:
            self.library.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
            run = self.library.start_run(run_id=saved_id, run_name=None if saved_id else self.folder.name)
        except Exception as error:  # of a server or a folder that its environment variables name
            reason = first_line(error)
            raise VitrailError(f"MLflow cannot start a run: {reason}; set MLFLOW_TRACKING_URI, or leave MLflow out") from None
        self.is_started = True
        if saved_id is None:
            id_file.write_text(f"{run.info.run_id}\n")
            params = [(name, str(value)[:MAX_PARAM_LENGTH]) for name, value in _flatten(to_dict(recipe))]
            for start in range(0, len(params), MAX_PARAMS):
                self.library.log_params(dict(params[start : start + MAX_PARAMS]))

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self._log(_named("train", metrics), step)

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        self._log(_named("validation", metrics), step)

    def on_end(self, result: dict[str, Any]) -> None:
        self._log(_final_metrics(result), result["best"]["step"])

    def _log(self, metrics: dict[str, float], step: int) -> None:
        """Log metrics; a server that fails costs the run nothing but its metrics there."""
        try:
            self.library.log_metrics(metrics, step=step)
        except Exception as error:
            if not self.has_failed:
                log.warning("MLflow did not take the metrics of step %d: %s", step, first_line(error))
            self.has_failed = True


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoardCallback, "wandb": WandbCallback, "mlflow": MlflowCallback}


@contextmanager
def open_trackers(names: Sequence[str], folder: Path) -> Iterator[list[Callback]]:
    """Open the trackers of a run by name, and close them however it ends."""
    with ExitStack() as stack:
        yield [stack.enter_context(TRACKERS[name](folder)) for name in names]


def _import(name: str, title: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise VitrailError(f"{title} is not installed; try pip install 'vitrail[{name}]', or read log.jsonl") from None


def _final_metrics(result: dict[str, Any]) -> dict[str, float]:
    return _named(result["reported_on"], result[result["reported_on"]])


def _named(group: str, metrics: dict[str, Any]) -> dict[str, float]:
    return {f"{group}/{name}": value for name, value in metrics.items() if isinstance(value, float)}


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
