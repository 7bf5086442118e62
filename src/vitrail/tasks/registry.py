"""Build a task from its settings: one of the package's own, or any that is defined elsewhere."""

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig
from vitrail.recipes.task_config import TaskConfig
from vitrail.tasks.classification import ClassificationTask
from vitrail.tasks.masked_image import MaskedImageTask
from vitrail.tasks.task import TASKS, Task

BUILT_IN = (ClassificationTask, MaskedImageTask)


def build_task(
    config: TaskConfig, model: ModelConfig, preprocess: Preprocess, class_names: tuple[str, ...] = (), seed: int = 0
) -> Task:
    """Build the task of these settings, for a model with this preprocessing."""
    if type(config) not in TASKS:
        raise VitrailError(f"the task {config.name!r} has settings but no subclass of Task; import the module that defines it")
    return TASKS[type(config)](config, model, preprocess, class_names, seed)
