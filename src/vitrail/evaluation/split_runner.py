"""Run a predictor on the images of a split, and what every evaluation has in common. b images."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.data.loader import Loader, build_pixel_loader
from vitrail.data.sources.dataset import Dataset, Progress
from vitrail.errors import VitrailError
from vitrail.inference.predictor import Predictor
from vitrail.inference.run import OutputBatch, iter_outputs, join_outputs
from vitrail.tasks.task import Task


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a model on a split. A task may add more, such as the intervals of ``ClassificationEvaluation``."""

    dataset: str
    split: str
    num_images: int
    unreadable_images: int
    metrics: dict[str, float]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SplitRunner:
    """A predictor with the settings to run it on a split."""

    predictor: Predictor
    batch_size: int
    workers: int | None = None
    progress: Progress | None = None

    def run(self, source: Dataset, split: str) -> tuple[Float[Tensor, "b ..."], Int[Tensor, " b"], int]:
        """Return the outputs of the readable images, their indices in the split, and how many are unreadable."""
        loader = self.loader(source)
        outputs, indices = join_outputs(list(self.batches(loader, split)))
        return torch.from_numpy(outputs), torch.from_numpy(indices), len(loader.read_errors)

    def loader(self, source: Dataset) -> Loader:
        """Return the loader of a split, which knows afterwards what could not be read."""
        return build_pixel_loader(source, self.predictor.preprocess, self.batch_size)

    def batches(self, loader: Loader, split: str) -> Iterator[OutputBatch]:
        """Yield outputs batch by batch, for a task whose outputs are too large to keep."""
        done, total = 0, len(loader.dataset)
        for batch in iter_outputs(self.predictor.outputs, loader, self.workers):
            yield batch
            done += len(batch.indices)
            if self.progress is not None:
                self.progress(f"evaluating {split}", done, total)


def check_outputs(task: Task, outputs: Float[Tensor, "b ..."], indices: Int[Tensor, " b"], source: Dataset, data: str) -> None:
    """Raise unless there are outputs and all are finite."""
    if not len(indices):
        raise VitrailError(f"no image of {data} can be read; `vitrail data check {data}` gives the reasons")
    non_finite = (~outputs.isfinite().flatten(1).all(1)).nonzero()[:, 0]
    if len(non_finite):
        where = source.describe(int(indices[non_finite[0]]))
        raise VitrailError(
            f"the model's {task.output_name} are not finite for {len(non_finite)} of {len(indices)} images, first {where}; "
            "its weights or that image are damaged"
        )
