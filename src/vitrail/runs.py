"""``vitrail.train``, ``finetune`` and ``pretrain``: from a dataset and a few options to a finished run with its report.

The commands of the same names prepare a run by the same functions and train it by ``run_prepared``; between the two they print
what they have prepared.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, overload

import numpy as np

from vitrail.config import parse_value
from vitrail.data.batch_transforms import ImageTransform
from vitrail.data.sources.columns import choose_columns
from vitrail.data.sources.image_like import describe_value
from vitrail.errors import VitrailError, did_you_mean
from vitrail.io import atomic_write
from vitrail.models.config import Pair
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.task_config import TaskConfig, named_task
from vitrail.report.cross_validation_page import cross_validation_page
from vitrail.report.run_page import run_page
from vitrail.system import is_main_process
from vitrail.tasks.task import Loss
from vitrail.training.autotune import AutoTune
from vitrail.training.callbacks import Callback, CallbackList
from vitrail.training.continue_run import prepare_resumption
from vitrail.training.cross_validation import CrossValidation, TrainFold, cross_validate
from vitrail.training.dataset import check_training_data
from vitrail.training.prepare import (
    PreparedRun,
    RecipeOptions,
    prepare_finetuning,
    prepare_pretraining,
    prepare_recipe,
    prepare_training,
    settings_to_overrides,
)
from vitrail.training.process_group import ProcessGroup, process_group
from vitrail.training.run import Run, check_folder, find_recipe
from vitrail.training.trained_run import TrainedRun
from vitrail.training.trainer import Hardware, fit

ImageSize = int | tuple[int, int]


@overload
def train(data: Any = None, *, folds: None = None, **options: Any) -> TrainedRun: ...


@overload
def train(data: Any = None, *, folds: int, **options: Any) -> CrossValidation: ...


def train(
    data: Any = None,
    *,
    model: str | None = None,
    recipe: str | None = None,
    image_size: ImageSize | None = None,
    task: TaskConfig | str | None = None,
    resume: str | Path | None = None,
    recipe_from: str | Path | None = None,
    folds: int | None = None,
    **options: Any,
) -> TrainedRun | CrossValidation:
    """Train a model from random weights on a dataset: a path, a name, or an object with images and labels by index; None means
    ``fashion``, the embedded images.

    ``task`` is what to learn; None means what the targets are for: one label per image, or several. ``resume`` is a run to
    resume, of whatever function; with options that change its recipe, it continues in a new folder. ``recipe_from`` is a run or
    a ``recipe.json`` to take the recipe from. Both open the dataset by its name in the recipe, unless ``data`` gives it: an
    object of your own has no name to open.

    ``folds``, such as 5, cross-validates instead: so many runs, each of which is tested on the part of the images that it does
    not train on. The ``CrossValidation`` has ``folds``, ``metrics`` (means), their ``intervals`` and ``out_of_fold``, the
    predictions for all images.

    ``labels_column``, ``separator`` and ``target`` say where and how a table holds its targets, as in ``vitrail.open_dataset``.
    Further options, the same for ``finetune`` and ``pretrain``: ``epochs``, ``batch_size``, ``lr``, ``weight_decay``,
    ``seed``, ``precision``, ``compile``, ``augment``, ``fit``; ``settings``, a dict of any recipe fields such as
    ``{"optim.grad_clip": 1.0}``; ``out``, the run folder; ``minutes`` and ``find_lr``; ``device``, ``threads`` and
    ``workers``; ``callbacks``; ``transform``, a function of a training image in place of the recipe's augmentation; ``loss``,
    a function of outputs and targets in place of the task's.
    """
    recipe_options, out, run_options = _split_options(options, folds)
    chosen = {"model": model, "recipe": recipe, "image_size": image_size, "task": task}
    _check_names(model=model, recipe=recipe)
    task = _find_task(task)
    with process_group() as group:
        if resume is not None:
            _check_left_out("resume", {**chosen, "recipe_from": recipe_from, "folds": folds})
            run = Run(check_folder(resume, "resume").expanduser())
            own = {name: run_options[name] for name in ("transform", "loss")}
            prepared = prepare_resumption(run, recipe_options, out, group=group, data=data, **own)
        elif recipe_from is not None:
            _check_left_out("recipe_from", chosen)
            prepared = prepare_recipe(find_recipe(recipe_from), recipe_options, group=group, data=data)
        else:
            source = "fashion" if data is None else data
            prepared = prepare_training(source, recipe, model, _pair(image_size), recipe_options, group=group, task=task)
        return _run(prepared.with_out(out), run_options, group)


@overload
def finetune(weights: str | Path, data: Any, *, folds: None = None, **options: Any) -> TrainedRun: ...


@overload
def finetune(weights: str | Path, data: Any, *, folds: int, **options: Any) -> CrossValidation: ...


def finetune(
    weights: str | Path,
    data: Any,
    *,
    recipe: str | None = None,
    image_size: ImageSize | None = None,
    trainable: str = "all",
    task: TaskConfig | str | None = None,
    folds: int | None = None,
    **options: Any,
) -> TrainedRun | CrossValidation:
    """Fine-tune pretrained weights on a dataset: ``finetune("ViT-B_16.npz", "photos/", epochs=5)``.

    ``weights`` is what ``vitrail.load`` reads; ``trainable`` is ``all``, ``head`` or ``last:N`` blocks. The other options are
    those of ``train``.
    """
    recipe_options, out, run_options = _split_options(options, folds)
    if not isinstance(weights, str | Path):
        raise VitrailError(
            f"weights must be a path or hf:owner/name, got {describe_value(weights)}; vitrail.save(model, folder) makes a path"
        )
    _check_names(recipe=recipe)
    task = _find_task(task)
    with process_group() as group:
        prepared, _ = prepare_finetuning(
            str(weights), data, recipe, _pair(image_size), trainable, recipe_options, group=group, task=task
        )
        return _run(prepared.with_out(out), run_options, group)


def pretrain(
    data: Any,
    *,
    method: str = "mae",
    model: str | None = None,
    image_size: ImageSize | None = None,
    target: str | None = None,
    **options: Any,
) -> TrainedRun:
    """Pre-train a model without labels by ``mae``, ``simmim`` or ``masked-patch``.

    ``target`` is what masked-patch predicts: ``mean-colour`` (the default), ``downsampled`` or ``pixels``. The other options
    are those of ``train``.
    """
    if options.get("loss") is not None:
        raise VitrailError(f"pretrain has the loss of its method, {method}; loss is an option of train and finetune")
    recipe_options, out, run_options = _split_options(options)
    _check_names(method=method, model=model, target=target)
    with process_group() as group:
        prepared = prepare_pretraining(data, method, model, _pair(image_size), recipe_options, group=group, target=target)
        return run_prepared(prepared.with_out(out), **run_options, group=group)


def run_prepared(
    prepared: PreparedRun,
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
    trained = fit(prepared.recipe, prepared.folder, prepared.data, transform=transform, loss=loss, **how)
    is_finished_before = trained.data is None
    if is_main_process() and not (is_finished_before and trained.report.is_file()):
        data = trained.data or check_training_data(prepared.data, prepared.recipe).data
        atomic_write(trained.report, run_page(trained.run, data))
    return trained


def run_folds(
    prepared: PreparedRun,
    train_fold: TrainFold,
    autotune: AutoTune,
    loss: Loss | None,
    group: ProcessGroup,
    on_message: Callable[[str], None],
) -> CrossValidation:
    """Train the folds of a cross-validation by ``train_fold``, and write the report of all."""
    validated = cross_validate(prepared, train_fold, autotune, loss, group, on_message)
    if group.is_main and not validated.report.is_file():
        atomic_write(validated.report, cross_validation_page(validated))
    return validated


def _run(prepared: PreparedRun, options: dict[str, Any], group: ProcessGroup) -> TrainedRun | CrossValidation:
    """Train a prepared run, or the folds of a cross-validation."""
    if prepared.folds is None:
        return run_prepared(prepared, **options, group=group)

    def train_fold(fold: PreparedRun, autotune: AutoTune) -> TrainedRun:
        return run_prepared(fold, **{**options, "autotune": autotune}, group=group)

    on_message = CallbackList(options["callbacks"] if group.is_main else ()).on_message
    return run_folds(prepared, train_fold, options["autotune"], options["loss"], group, on_message)


RECIPE_OPTIONS = ("epochs", "batch_size", "lr", "weight_decay", "seed", "precision", "compile", "augment", "fit")
RUN_OPTIONS = ("out", "minutes", "find_lr", "device", "threads", "workers", "callbacks", "transform", "loss", "settings")
COLUMN_OPTIONS = ("labels_column", "separator", "target", "ignore")
OPTION_TYPES = {"epochs": float, "minutes": float, "compile": bool, "find_lr": bool}


def _split_options(options: Mapping[str, Any], folds: Any = None) -> tuple[RecipeOptions, Path | None, dict[str, Any]]:
    """Divide options into those of the recipe, with the number of folds, the run folder, and those of its run."""
    options = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    known, recipe_fields = (*RECIPE_OPTIONS, *COLUMN_OPTIONS, *RUN_OPTIONS), [field.name for field in fields(Recipe)]
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
    for name, kind in OPTION_TYPES.items():
        if options.get(name) is not None:
            options[name] = parse_value(options[name], kind, name)
    out = None if options.get("out") is None else check_folder(options["out"], "out").expanduser()
    run_options = {
        "hardware": Hardware(options.get("device") or "auto", options.get("threads"), options.get("workers")),
        "callbacks": callbacks,
        "autotune": AutoTune(options.get("minutes"), options.get("find_lr") or False),
        "transform": options.get("transform"),
        "loss": options.get("loss"),
    }
    recipe_options = {name: options[name] for name in RECIPE_OPTIONS if name in options}
    recipe_options["columns"] = choose_columns(*(options.get(name) for name in COLUMN_OPTIONS))
    recipe_options["folds"] = None if folds is None else parse_value(folds, int, "folds")
    return RecipeOptions(settings_to_overrides(options.get("settings") or {}), **recipe_options), out, run_options


def _check_names(**names: Any) -> None:
    """Refuse a model or a recipe itself where its name is taken."""
    for option, name in names.items():
        if name is not None and not isinstance(name, str):
            other = "; vitrail.fit trains a complete recipe" if option == "recipe" else ""
            change = "; change the variant by settings, such as {'model.depth': 6}" if option == "model" else other
            raise VitrailError(f"{option} must be a name, got {describe_value(name)}{change}")


def _find_task(task: Any) -> TaskConfig | None:
    """Return the settings of a task, which may be given by its name."""
    if task is None or isinstance(task, TaskConfig):
        return task
    if isinstance(task, str):
        return named_task(task)
    raise VitrailError(
        f"task must be a name such as 'segment', or the settings of a task, got {task!r}; leave it out for the one that the "
        "targets are for"
    )


def _check_left_out(option: str, others: Mapping[str, Any]) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise VitrailError(f"{option} has a recipe already; leave out {' and '.join(given)}, and change fields by settings")


def _pair(image_size: ImageSize | None) -> Pair | None:
    return parse_value(image_size, Pair | None, "image_size")
