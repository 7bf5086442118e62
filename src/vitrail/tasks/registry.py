"""Build a task from its settings: one of the package's own, or any that is defined elsewhere."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config import parse_value
from vitrail.data.preprocess import Preprocess, vit_preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig
from vitrail.recipes.task_config import Classification, TaskConfig
from vitrail.tasks.classification import ClassificationTask
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.masked_image import MaskedImageTask
from vitrail.tasks.multi_label import MultiLabelTask
from vitrail.tasks.regression import RegressionTask
from vitrail.tasks.segmentation import SegmentationTask
from vitrail.tasks.task import TASKS, Task

BUILT_IN = (ClassificationTask, MultiLabelTask, RegressionTask, SegmentationTask, DetectionTask, MaskedImageTask)


def build_task(
    config: TaskConfig, model: ModelConfig, preprocess: Preprocess, class_names: tuple[str, ...] = (), seed: int = 0
) -> Task:
    """Build the task of these settings, for a model with this preprocessing."""
    if type(config) not in TASKS:
        raise VitrailError(f"the task {config.name!r} has settings but no subclass of Task; import the module that defines it")
    return TASKS[type(config)](config, model, preprocess, class_names, seed)


def model_task(model: nn.Module) -> Task:
    """Return the task that a model was trained for, which knows what its outputs mean."""
    described: Any = model  # an encoder, or what a task has built around one
    return recorded_task(described.config, described.preprocess, described.class_names, described.metadata)


def recorded_task(
    model: ModelConfig, preprocess: Preprocess | None, class_names: tuple[str, ...] | None, metadata: dict[str, Any]
) -> Task:
    """Return the task that metadata record; classification if they record none. Classes without names have their indices."""
    recipe = metadata.get("recipe")
    recorded = recipe.get("task") if isinstance(recipe, dict) else None
    config = Classification() if recorded is None else parse_value(recorded, TaskConfig, "task")
    names = class_names or tuple(str(index) for index in range(model.classes))
    task = build_task(config, model, preprocess or vit_preprocess(model.image, model.channels), names)
    return task.with_state(metadata.get("task_state", {}))


def class_probabilities(model: nn.Module, logits: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """Return the probability of each class, as in ``vitrail.predict``; of a model without a head, those of no class."""
    return model_task(model).probabilities(logits.double()) if logits.shape[-1] else logits.double()
