"""Vitrail: the Vision Transformer, end to end and transparent.

Public names are imported on first use, so that ``import vitrail`` and ``vitrail --help`` are fast.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail import explain as explain
    from vitrail.data.sources.open import open_dataset as open_dataset
    from vitrail.errors import VitrailError as VitrailError
    from vitrail.evaluation.evaluate import evaluate as evaluate
    from vitrail.evaluation.robustness import evaluate_robustness as evaluate_robustness
    from vitrail.exporters.export import export as export
    from vitrail.inference.features import embed as embed
    from vitrail.inference.load import load_predictor as load_predictor
    from vitrail.inference.predict import predict as predict
    from vitrail.inference.preprocess_images import preprocess as preprocess
    from vitrail.layers.tap import record_activations as record_activations
    from vitrail.models.build import build as build
    from vitrail.models.cost import cost as cost
    from vitrail.models.speedups import speed_up as speed_up
    from vitrail.models.variants import variant as variant
    from vitrail.recipes.task_config import TaskConfig as TaskConfig
    from vitrail.runs import finetune as finetune
    from vitrail.runs import pretrain as pretrain
    from vitrail.runs import train as train
    from vitrail.tasks.task import Prediction as Prediction
    from vitrail.tasks.task import Task as Task
    from vitrail.training.callbacks import Callback as Callback
    from vitrail.training.load_checkpoint import load_checkpoint as load_checkpoint
    from vitrail.training.trainer import fit as fit
    from vitrail.weights.load import load as load
    from vitrail.weights.load_masked import load_masked as load_masked
    from vitrail.weights.save import save as save

_modules = {
    "Callback": "training.callbacks",
    "Prediction": "tasks.task",
    "Task": "tasks.task",
    "TaskConfig": "recipes.task_config",
    "finetune": "runs",
    "pretrain": "runs",
    "train": "runs",
    "VitrailError": "errors",
    "build": "models.build",
    "cost": "models.cost",
    "embed": "inference.features",
    "evaluate": "evaluation.evaluate",
    "evaluate_robustness": "evaluation.robustness",
    "export": "exporters.export",
    "fit": "training.trainer",
    "load": "weights.load",
    "load_checkpoint": "training.load_checkpoint",
    "load_masked": "weights.load_masked",
    "load_predictor": "inference.load",
    "open_dataset": "data.sources.open",
    "predict": "inference.predict",
    "preprocess": "inference.preprocess_images",
    "record_activations": "layers.tap",
    "save": "weights.save",
    "speed_up": "models.speedups",
    "variant": "models.variants",
}
_packages = ["explain"]

__version__ = metadata.version("vitrail")
__all__ = sorted([*_modules, *_packages])


def __getattr__(name: str) -> Any:
    if name in _packages:
        return import_module(f"vitrail.{name}")
    if name in _modules:
        return getattr(import_module(f"vitrail.{_modules[name]}"), name)
    raise AttributeError(f"module 'vitrail' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
