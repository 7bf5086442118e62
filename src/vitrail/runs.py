"""``vitrail.train``, ``finetune`` and ``pretrain``: from a dataset and a few options to a finished run with its report.

The commands of the same names call the same functions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vitrail.config import parse_value
from vitrail.data.batch_transforms import ImageTransform
from vitrail.errors import VitrailError, did_you_mean
from vitrail.io import atomic_write
from vitrail.models.config import Pair
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.task_config import TaskConfig
from vitrail.report.run_page import run_page
from vitrail.system import is_main_process
from vitrail.tasks.task import Loss
from vitrail.training.autotune import AutoTune
from vitrail.training.callbacks import Callback
from vitrail.training.dataset import check_training_data
from vitrail.training.prepare import (
    PreparedRun,
    RecipeOptions,
    prepare_finetuning,
    prepare_pretraining,
    prepare_training,
    settings_to_overrides,
)
from vitrail.training.process_group import ProcessGroup, process_group
from vitrail.training.trained_run import TrainedRun
from vitrail.training.trainer import Hardware, fit

ImageSize = int | tuple[int, int]


def train(
    data: Any = "fashion",
    *,
    model: str | None = None,
    recipe: str | None = None,
    image_size: ImageSize | None = None,
    task: TaskConfig | None = None,
    **options: Any,
) -> TrainedRun:
    """Train a model from random weights on a dataset: a path, a name, or an object with images and labels by index.

    ``task`` is what to learn; None means classification.

    Further options, the same for ``finetune`` and ``pretrain``: ``epochs``, ``batch_size``, ``lr``, ``weight_decay``,
    ``seed``, ``precision``, ``compile``, ``augment``; ``settings``, a dict of any recipe fields such as
    ``{"optim.grad_clip": 1.0}``; ``out``, the run folder; ``minutes`` and ``find_lr``; ``device``, ``threads`` and
    ``workers``; ``callbacks``; ``transform``, a function of a training image in place of the recipe's augmentation; ``loss``,
    a function of outputs and targets in place of the task's.
    """
    recipe_options, run_options = _split_options(options)
    with process_group() as group:
        prepared = prepare_training(data, recipe, model, _pair(image_size), recipe_options, group=group, task=task)
        return run_prepared(prepared, **run_options, group=group)


def finetune(
    weights: str | Path,
    data: Any,
    *,
    recipe: str = "finetune",
    image_size: ImageSize | None = None,
    trainable: str = "all",
    task: TaskConfig | None = None,
    **options: Any,
) -> TrainedRun:
    """Fine-tune pretrained weights on a dataset: ``finetune("ViT-B_16.npz", "photos/", epochs=5)``.

    ``weights`` is what ``vitrail.load`` reads; ``trainable`` is ``all``, ``head`` or ``last:N`` blocks. The other options are
    those of ``train``.
    """
    recipe_options, run_options = _split_options(options)
    with process_group() as group:
        prepared, _ = prepare_finetuning(
            str(weights), data, recipe, _pair(image_size), trainable, recipe_options, group=group, task=task
        )
        return run_prepared(prepared, **run_options, group=group)


def pretrain(
    data: Any, *, method: str = "mae", model: str | None = None, image_size: ImageSize | None = None, **options: Any
) -> TrainedRun:
    """Pre-train a model without labels by ``mae``, ``simmim`` or ``masked-patch``. The other options are those of ``train``."""
    if options.get("loss") is not None:
        raise VitrailError(f"pretrain has the loss of its method, {method}; loss is an option of train and finetune")
    recipe_options, run_options = _split_options(options)
    with process_group() as group:
        prepared = prepare_pretraining(data, method, model, _pair(image_size), recipe_options, group=group)
        return run_prepared(prepared, **run_options, group=group)


def run_prepared(
    prepared: PreparedRun,
    folder: str | Path | None = None,
    *,
    hardware: Hardware | None = None,
    callbacks: Iterable[Callback] = (),
    autotune: AutoTune | None = None,
    transform: ImageTransform | None = None,
    loss: Loss | None = None,
    group: ProcessGroup | None = None,
) -> TrainedRun:
    """Train a prepared run, and write its report; a run that was finished before keeps the one it has."""
    how: dict[str, Any] = {"hardware": hardware, "callbacks": callbacks, "autotune": autotune, "group": group}
    trained = fit(prepared.recipe, prepared.folder or folder, prepared.data, transform=transform, loss=loss, **how)
    is_finished_before = trained.data is None
    if is_main_process() and not (is_finished_before and trained.report.is_file()):
        data = trained.data or check_training_data(prepared.data, prepared.recipe).data
        atomic_write(trained.report, run_page(trained.run, data))
    return trained


RECIPE_OPTIONS = ("epochs", "batch_size", "lr", "weight_decay", "seed", "precision", "compile", "augment")
RUN_OPTIONS = ("out", "minutes", "find_lr", "device", "threads", "workers", "callbacks", "transform", "loss", "settings")


def _split_options(options: Mapping[str, Any]) -> tuple[RecipeOptions, dict[str, Any]]:
    """Divide options into those of the recipe and those of its run."""
    known, recipe_fields = (*RECIPE_OPTIONS, *RUN_OPTIONS), [field.name for field in fields(Recipe)]
    for name in options.keys() - set(known):
        in_settings = f"; try settings={{{name!r}: ...}}" if name in recipe_fields else ""
        raise VitrailError(f"no option is named {name!r}{in_settings or did_you_mean(name, known)}")
    for name in ("transform", "loss"):
        if options.get(name) is not None and not callable(options[name]):
            raise VitrailError(f"{name} must be a function, got {options[name]!r}")
    callbacks = options.get("callbacks") or ()
    if not isinstance(callbacks, list | tuple) or not all(isinstance(callback, Callback) for callback in callbacks):
        raise VitrailError(f"callbacks must be a list of vitrail.Callback objects, got {callbacks!r}")
    if options.get("epochs") is not None and options.get("minutes") is not None:
        raise VitrailError("epochs and minutes both set the number of steps; leave one of them out")
    run_options = {
        "folder": options.get("out"),
        "hardware": Hardware(options.get("device", "auto"), options.get("threads"), options.get("workers")),
        "callbacks": callbacks,
        "autotune": AutoTune(options.get("minutes"), options.get("find_lr", False)),
        "transform": options.get("transform"),
        "loss": options.get("loss"),
    }
    recipe_options = {name: options[name] for name in RECIPE_OPTIONS if name in options}
    return RecipeOptions(settings_to_overrides(options.get("settings") or {}), **recipe_options), run_options


def _pair(image_size: ImageSize | None) -> Pair | None:
    return parse_value(image_size, Pair | None, "image_size")
