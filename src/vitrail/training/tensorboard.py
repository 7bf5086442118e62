"""TensorBoard events in ``RUN/tensorboard``: the numbers of the log, to compare several runs in one page.

``log.jsonl`` stays the reference. Events are flushed at every step, before its checkpoint can be written, and a resumed run
purges what came after the checkpoint: no step is missing, none is there twice.
"""

from pathlib import Path
from types import TracebackType
from typing import Any

from vitrail.config import to_json
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe
from vitrail.training.callbacks import Callback
from vitrail.training.state import TrainState


class TensorBoardCallback(Callback):
    """A callback that writes TensorBoard events; a context manager, so that its file is closed however the run ends."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / "tensorboard"
        self.make_writer: Any = _summary_writer()
        self.writer: Any = None

    def __enter__(self) -> "TensorBoardCallback":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.writer is not None:
            self.writer.close()

    def on_start(self, recipe: Recipe, data: DatasetSplits, state: TrainState, eta_seconds: float | None) -> None:
        is_new = not self.folder.exists()
        self.writer = self.make_writer(self.folder, purge_step=state.step + 1)  # hides what was written after the checkpoint
        if is_new:
            self.writer.add_text("recipe", f"```json\n{to_json(recipe)}\n```", 0)
            self.writer.flush()

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self._write("train", step, metrics)

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        self._write("validation", step, {name: value for name, value in metrics.items() if isinstance(value, float)})

    def _write(self, group: str, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(f"{group}/{name}", value, step)
        self.writer.flush()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise VitrailError("TensorBoard is not installed; try pip install 'vitrail[tensorboard]', or read log.jsonl") from None
    return SummaryWriter
