"""The interface between the training loop and a task: a loss to minimise, and metrics to report. b images."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from vitrail.data.loader import Batch, Loader

Gather = Callable[[Tensor], Tensor]  # from the rows of this process to those of all ranks


def no_gather(rows: Tensor) -> Tensor:
    """Return the rows unchanged, in a single process."""
    return rows


@runtime_checkable
class Task(Protocol):
    """A training task, such as classification or masked image modelling."""

    @property
    def primary_metric(self) -> str:
        """Name of the metric by which weights are selected."""

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value of the primary metric is better."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss over the batch, and other mean metrics to log."""

    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        """Return the metrics over all images; the same on every rank, whichever images its loader has."""
