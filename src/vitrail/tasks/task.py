"""What the training loop knows of a task: a loss to go down, and numbers to report. b pictures."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from vitrail.data.loader import Batch, Loader

Gather = Callable[[Tensor], Tensor]  # from the rows of this process to those of all that share the work


def own(rows: Tensor) -> Tensor:
    """Of a process that shares its work with none."""
    return rows


@runtime_checkable
class Task(Protocol):
    """classify, masked ...: the loop knows no other fact about them."""

    @property
    def main(self) -> str:
        """The number by which weights are chosen."""

    @property
    def smaller(self) -> bool:
        """Whether less of it is better."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean over the batch, and what else is worth a line in the log, as means too."""

    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = own) -> dict[str, Any]:
        """The same on every process, whatever part of the pictures its loader has."""
