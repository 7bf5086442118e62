"""Experiment trackers as callbacks: TensorBoard, Weights & Biases, MLflow. Each needs the extra of its name.

``log.jsonl`` stays the reference. Nothing is sent anywhere unless one of them is asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from vitrail.config import to_dict
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe
from vitrail.training.callbacks import Callback
from vitrail.training.state import TrainState
from vitrail.training.tensorboard import TensorBoardCallback

PROJECT = "vitrail"
MAX_PARAM_LENGTH = 500  # characters of a value in MLflow


class WandbCallback(Callback):
    """Logs a run to Weights & Biases; a resumed run goes on in the same one."""

    def __init__(self, folder: str | Path, project: str = PROJECT) -> None:
        self.folder, self.project, self.library = Path(folder), project, _import("wandb", "Weights & Biases")
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
            project=self.project,
            name=self.folder.name,
            dir=str(self.folder),
            id=saved_id,
            resume="allow",
            config=to_dict(recipe),
        )
        id_file.write_text(f"{self.session.id}\n")

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self._log("train", step, metrics)

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        self._log("validation", step, metrics)

    def on_end(self, result: dict[str, Any]) -> None:
        self.session.summary.update(
            {f"{result['reported_on']}/{name}": value for name, value in _final_metrics(result).items()}
        )

    def _log(self, group: str, step: int, metrics: dict[str, Any]) -> None:
        self.session.log({f"{group}/{name}": value for name, value in metrics.items() if isinstance(value, float)}, step=step)


class MlflowCallback(Callback):
    """Logs a run to the MLflow server or folder that its environment variables name; a resumed run goes on in the same one."""

    def __init__(self, folder: str | Path, experiment: str = PROJECT) -> None:
        self.folder, self.experiment, self.library = Path(folder), experiment, _import("mlflow", "MLflow")
        self.is_started = False

    def __enter__(self) -> "MlflowCallback":
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_started:
            self.library.end_run("FAILED" if error[0] else "FINISHED")

    def on_start(self, recipe: Recipe, data: DatasetSplits, state: TrainState, eta_seconds: float | None) -> None:
        id_file = self.folder / "mlflow_run_id"
        saved_id = id_file.read_text().strip() if id_file.is_file() else None
        self.library.set_experiment(self.experiment)
        run = self.library.start_run(run_id=saved_id, run_name=None if saved_id else self.folder.name)
        self.is_started = True
        if saved_id is None:
            id_file.write_text(f"{run.info.run_id}\n")
            self.library.log_params({name: str(value)[:MAX_PARAM_LENGTH] for name, value in _flatten(to_dict(recipe))})

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self._log("train", step, metrics)

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        self._log("validation", step, metrics)

    def on_end(self, result: dict[str, Any]) -> None:
        self._log(str(result["reported_on"]), int(result["best"]["step"]), _final_metrics(result))

    def _log(self, group: str, step: int, metrics: dict[str, Any]) -> None:
        numbers = {f"{group}/{name}": value for name, value in metrics.items() if isinstance(value, float)}
        self.library.log_metrics(numbers, step=step)


TRACKERS = {"tensorboard": TensorBoardCallback, "wandb": WandbCallback, "mlflow": MlflowCallback}


@contextmanager
def open_trackers(names: Sequence[str], folder: Path) -> Iterator[list[Callback]]:
    """Open the trackers of a run by name, and close them however it ends."""
    with ExitStack() as stack:
        yield [stack.enter_context(TRACKERS[name](folder)) for name in names]


def _import(name: str, title: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise VitrailError(
            f"{title} is not installed; try pip install -c constraints.txt 'vitrail[{name}]', or read log.jsonl"
        ) from None


def _final_metrics(result: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in result[result["reported_on"]].items() if isinstance(value, float)}


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
