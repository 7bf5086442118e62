"""A task owns what differs between classification, pre-training and other uses of a model. b images.

The training loop, the report, the predictor and the server know no other fact about it. A new task is a subclass of ``Task``
and one of ``TaskConfig``; defining the two is enough to train, resume, evaluate, predict and serve it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from vitrail.data.decode import ImageSize
from vitrail.data.loader import Batch, Loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.config import ModelConfig
from vitrail.recipes.task_config import TaskConfig
from vitrail.tasks.dense import restored_bands

Gather = Callable[[Tensor], Tensor]  # from the rows of this process to those of all ranks
Loss = Callable[[Tensor, Any], Tensor]  # from outputs and targets to a mean loss
TASKS: dict[type[TaskConfig], type["Task"]] = {}  # by the class of their settings; defining a task adds it


@dataclass(frozen=True)
class Prediction:
    """Prediction for one image. A task adds fields of its own, each with a default; an unusable image has an ``error``."""

    file: str = ""
    error: str | None = None

    def cells(self) -> dict[str, Any]:
        """Return the prediction as plain values by column, in a row for the image."""
        return {name: getattr(self, name) for name in prediction_fields(type(self))}

    def rows(self) -> list[dict[str, Any]]:
        """Return the prediction as rows of a CSV file, plain values by column: one, or one for each of its objects."""
        return [self.cells()]

    def plain(self) -> dict[str, Any]:
        """Return the prediction as plain values by field, for JSON."""
        return asdict(self)

    def text(self) -> list[str]:
        """Return the prediction as text for the columns of a table; what is beyond them is printed where there is space."""
        return [f"{value:.6g}" if isinstance(value, float) else str(value) for value in self.cells().values()]


@dataclass(frozen=True)
class ImageScore:
    """The measure of ``Task.image_scores``."""

    key: str  # in JSON
    title: str
    lower_is_better: bool = False
    is_fraction: bool = True  # from 0 to 1, which is shown as a percentage

    def format(self, value: float) -> str:
        return f"{value:.1%}" if self.is_fraction else f"{value:.4g}"

    def format_difference(self, value: float) -> str:
        """Format a difference of two scores, of fractions in percentage points."""
        return f"{100 * value:+.1f}" if self.is_fraction else f"{value:+.4g}"


def prediction_fields(kind: type[Prediction]) -> list[str]:
    """List the fields that a task has added."""
    return [field.name for field in fields(kind) if field.name not in ("file", "error")]


def no_gather(rows: Tensor) -> Tensor:
    """Return the rows unchanged, in a single process."""
    return rows


@dataclass(frozen=True)
class Task(ABC):
    """A task for a model: its targets, loss and metrics, and what its outputs mean."""

    config: Any  # of the class ``config_class``
    model: ModelConfig
    preprocess: Preprocess
    class_names: tuple[str, ...] = ()
    seed: int = 0

    config_class: ClassVar[type[TaskConfig]]
    primary_metric: ClassVar[str]  # by which weights are selected
    lower_is_better: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False  # whether the outputs are logits of classes
    has_pixel_classes: ClassVar[bool] = False  # whether they are logits of classes for every pixel of the model's input
    fractions: ClassVar[tuple[str, ...]] = ()  # metrics from 0 to 1, which are shown as percentages
    curves: ClassVar[tuple[str, ...] | None] = None  # metrics that the report draws over the training; None: all
    metric_titles: ClassVar[Mapping[str, str]] = {}  # for people, of metrics whose names are abbreviations
    monitors: ClassVar[tuple[str, ...]] = ("attention",)  # what else is computed at every evaluation, see ``training.monitors``
    output_name: ClassVar[str] = "outputs"  # of the model, in an exported file and in saved predictions
    target_name: ClassVar[str] = "targets"  # in saved predictions
    prediction_class: ClassVar[type[Prediction]] = Prediction
    image_score: ClassVar[ImageScore | None] = None  # of ``image_scores``, if the task has them
    agreement_title: ClassVar[str] = "agreement of the outputs"  # of ``agreement``
    fits_validation: ClassVar[bool] = False  # whether ``with_validation`` chooses anything
    keeps_decoder: ClassVar[bool] = True  # whether what ``build_model`` adds to the encoder is used after training too

    def __init_subclass__(cls) -> None:
        if "config_class" in vars(cls):
            TASKS[cls.config_class] = cls

    def with_data(self, data: DatasetSplits) -> "Task":
        """Check the dataset to train on, and return the task with what it needs to know about it."""
        self.require_targets(data.train, data.name)
        return self

    def require_targets(self, dataset: Dataset, name: str) -> None:
        """Raise if the task learns from targets other than classes, and the dataset has none for it."""
        if self.config.labelled or not self.config.has_targets or not len(dataset):
            return
        if (dataset.labels >= 0).any():
            raise VitrailError(
                f"the targets of {name} are classes, which {self.config.name} cannot learn; give numbers as floats"
            )
        first = dataset.target(0)
        if type(first) is int and first == -1:  # what an image without a target has
            raise VitrailError(f"{name} has no targets, which {self.config.name} needs; give pairs of image and target")

    def with_loss(self, loss: Loss) -> "Task":
        """Return the task with a loss of the user's own, from outputs and targets to their mean loss."""
        raise VitrailError(f"{self.config.name} has a loss of its own; leave loss out, or change that of its task")

    def with_validation(self, scores: Mapping[str, Any]) -> "Task":
        """Return the task with what is chosen on validation once the weights are selected, such as thresholds; ``scores`` is
        what ``evaluate`` has returned."""
        return self

    def validation_metrics(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of what ``evaluate`` has returned, with what ``with_validation`` has chosen since."""
        return {name: value for name, value in scores.items() if isinstance(value, float)}

    def state(self) -> dict[str, Any]:
        """Return what was fitted to the data, as plain values; it is saved with the model."""
        return {}

    def with_state(self, state: Mapping[str, Any]) -> "Task":
        """Return the task with what ``state`` has saved."""
        return self

    def build_model(self, encoder: Model) -> nn.Module:
        """Return the model to train: the encoder, or a module around it whose ``encoder`` it is."""
        return encoder

    def targets(self, dataset: Dataset, indices: ndarray) -> Any:
        """Return the targets of images: anything that can be sliced like a tensor."""
        return torch.from_numpy(dataset.labels[indices])

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss over the batch, and other mean metrics to log."""

    def metrics(self, outputs: Tensor, targets: Any) -> dict[str, float]:
        """Return the metrics of a whole split."""
        raise NotImplementedError

    def image_targets(self, dataset: Dataset, indices: ndarray) -> Any:
        """Return the targets of some images for ``image_scores``."""
        return self.targets(dataset, indices)

    def image_scores(self, outputs: Tensor, targets: Any) -> Float[Tensor, " b"]:
        """Return how well each image is predicted, as ``image_score`` describes it, for tests whose images change."""
        raise NotImplementedError

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        """Return the metrics over all images, and their outputs, targets and indices as tensors for the report.

        They are the same on every rank, whichever images its loader has.
        """
        outputs, targets, indices = (gather(column) for column in run_model(model, loader, workers))
        order = indices.argsort()
        outputs, targets, indices = outputs[order], targets[order], indices[order]
        return {
            **self.metrics(outputs, targets),
            self.output_name: outputs,
            self.target_name: targets,
            "indices": indices,
        }

    def result_metrics(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics that a result states, of what ``evaluate`` has returned, as plain values."""
        return {name: value for name, value in scores.items() if isinstance(value, float)}

    def details(self, outputs: Tensor, targets: Any) -> dict[str, Any]:
        """Return what a result says besides its metrics, such as a row per class, as plain values."""
        return {}

    def split_details(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``details`` of a split, of what ``evaluate`` has returned."""
        outputs = scores.get(self.output_name)
        return {} if outputs is None else self.details(outputs, scores[self.target_name])

    def baseline(self, train: Dataset, split: Dataset) -> dict[str, float]:
        """Return what a trivial prediction would score on a split, for the result to be compared with."""
        return {}

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs: the classes, or their indices."""
        return self.class_names if self.has_classes else tuple(map(str, range(self.model.classes)))

    def default_output(self, outputs: Tensor) -> int:
        """Return the index of the output that is explained unless another is named: the largest."""
        return int(outputs.argmax())

    @property
    def description(self) -> str:
        """The purpose of a model for the task, in a few words."""
        return f"a model for {self.config.name}"

    def restore(self, outputs: Tensor) -> Tensor:
        """Return the outputs in the units of the targets, if the model has others."""
        return outputs

    @property
    def has_sigmoid(self) -> bool:
        """Whether the probability of each class is the sigmoid of its logit, so that they need not sum to one."""
        return False

    def threshold_row(self) -> Tensor | None:
        """Return the probability from which on each class is predicted, if an image may have several; None: the largest is."""
        return None

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the class probabilities that the outputs stand for."""
        raise VitrailError(f"a model for {self.config.name} predicts no class probabilities; use a classifier")

    def with_threshold(self, threshold: float) -> "Task":
        """Return the task with another threshold, for every class."""
        raise VitrailError(
            f"a threshold is for boxes or for several labels per image, and not for {self.config.name}; leave it out"
        )

    def predictions(self, outputs: Tensor, top_k: int) -> Sequence[Prediction]:
        """Return what is predicted for each image, of the class ``prediction_class``; ``outputs`` are finite."""
        raise VitrailError(f"a model for {self.config.name} has no predictions for an image; use its features")

    def saved_predictions(self, saved: Mapping[str, Tensor], top_k: int) -> Sequence[Prediction]:
        """Return what is predicted for each image, from the tensors that ``evaluate`` has returned and a run has saved."""
        return self.predictions(saved[self.output_name], top_k)

    def image_prediction(self, outputs: Float[Tensor, "k rows columns"], size: ImageSize) -> Prediction:
        """Return what is predicted for an image of this size, from the finite outputs for the whole of it."""
        return self.dense_prediction(restored_bands(outputs, self.preprocess, size), size)

    def dense_prediction(self, bands: Iterator[tuple[slice, Float[Tensor, "k rows w"]]], size: ImageSize) -> Prediction:
        """Return what is predicted for an image of this size, from finite outputs for its pixels, a band of rows at a time."""
        raise VitrailError(f"a model for {self.config.name} has no outputs for the pixels of an image")

    def columns(self, top_k: int) -> list[str]:
        """List the columns that the cells of a prediction may have."""
        return prediction_fields(self.prediction_class)

    def row_columns(self, top_k: int) -> list[str]:
        """List the columns that the ``rows`` of a prediction may have."""
        return self.columns(top_k)

    def table_columns(self) -> dict[str, int]:
        """Return the columns of a printed table of predictions, with the width of their texts."""
        return dict.fromkeys(self.columns(1), 12)

    def export_outputs(self, outputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs of an exported file by name: the model's own first, then what else follows from them."""
        return {self.output_name: outputs}

    def agreement(self, outputs: Tensor, expected: Tensor) -> float:
        """Return how well outputs agree with the expected ones, at most 1: here, 1 minus their relative error."""
        return 1 - float((outputs.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-12))


@torch.inference_mode()
def run_model(model: nn.Module, loader: Loader, workers: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, targets and indices of every image, in order, on the CPU."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    rows = []
    try:
        for batch in loader.batches(workers=workers):
            rows.append((model(batch.images.to(device)).float().cpu(), batch.targets, batch.indices))
    finally:
        model.train(was_training)
    outputs, targets, indices = (torch.cat(column) for column in zip(*rows, strict=True))
    return outputs, targets, indices
