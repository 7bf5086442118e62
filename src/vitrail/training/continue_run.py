"""Resume a run by its folder, or continue it with a changed recipe in a new folder that records where it came from."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.io import atomic_folder
from vitrail.training.build import build_model, recipe_task
from vitrail.training.checkpoint import (
    CheckpointRef,
    check_provenance,
    find_valid_checkpoint,
    own_functions,
    read_shapes,
)
from vitrail.training.dataset import check_training_data
from vitrail.training.prepare import PreparedRun, RecipeOptions, prepare_recipe
from vitrail.training.process_group import SINGLE_PROCESS, ProcessGroup
from vitrail.training.run import ORIGIN_FILE, Run, next_free_folder, recipe_differences
from vitrail.training.state import create_state


def prepare_resumption(
    run: Run,
    options: RecipeOptions | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
    data: Any = None,
    transform: object = None,
    loss: object = None,
) -> PreparedRun:
    """Prepare to resume a run. If the options change its recipe, its last checkpoint is the start of a new run in ``out``.

    ``data``: the dataset of the run, if it was an object of the user's own; None: opened by the name in its recipe.
    ``transform`` and ``loss`` of the user's own must be those that the run was started with.
    """
    if run.saved_recipe() is None:
        raise VitrailError(f"resume must be a run folder with a recipe.json, got {run.folder}; a run is resumed by its folder")
    saved = run.recipe()
    prepared = prepare_recipe(saved, options, progress, group, data)
    changes = recipe_differences(saved, prepared.recipe)
    if not changes:
        if out is not None and out.resolve() != run.folder.resolve():
            raise VitrailError(f"{run.folder} is resumed where it is, got out={out}; leave it out, or change a recipe field")
        plan = run.fold_plan()
        return replace(prepared, folder=run.folder, folds=None if plan is None else plan.folds)
    target = Path(group.broadcast_str(lambda: str(out or next_free_folder(run.folder.name, run.folder.parent))))
    note = f"{target} continues {run.folder} with {'; '.join(changes[:3])}"
    if group.is_main:
        _copy_run(run, Run(target), prepared, changes, own_functions(transform, loss))
    group.barrier()  # for what the main process has copied
    return prepared.in_folder(target, note)


def _copy_run(source: Run, target: Run, prepared: PreparedRun, changes: list[str], functions: dict[str, str]) -> None:
    """Copy the last checkpoint, the best weights and the log of a run, whole or not at all."""
    recipe = prepared.recipe
    checkpoint = find_valid_checkpoint(source.checkpoints)
    if checkpoint is None:
        raise VitrailError(
            f"{source.folder} has no checkpoint to continue from; start a new run with recipe_from={source.folder}"
        )
    step = int(checkpoint.scalars["step"])
    if step >= recipe.steps:
        raise VitrailError(
            f"{source.folder} is at step {step}, so steps must be above, got {recipe.steps}; try steps={2 * step}"
        )
    if target.folder.exists():
        raise VitrailError(f"{target.folder} exists; name another folder, or continue that one with resume={target.folder}")
    try:
        _check_compatible(source, checkpoint, prepared, functions)
    except VitrailError as error:
        raise VitrailError(
            f"{source.folder} cannot be continued with {'; '.join(changes[:3])}: {error}; start a new run with "
            f"recipe_from={source.folder}"
        ) from None
    with atomic_folder(target.folder) as temporary:
        new = Run(temporary)
        shutil.copytree(checkpoint.path, new.checkpoints / checkpoint.path.name)
        for name in ("best", "reconstructions"):
            if (source.folder / name).is_dir():
                shutil.copytree(source.folder / name, temporary / name)
        for row in source.log_rows():
            if row["step"] <= step:
                new.log(row)
        new.record_recipe(recipe)
        origin = {"run": str(source.folder), "step": step, "changes": changes}
        (temporary / ORIGIN_FILE).write_text(json.dumps(origin, indent=2) + "\n")


def _check_compatible(source: Run, checkpoint: CheckpointRef, prepared: PreparedRun, functions: dict[str, str]) -> None:
    """Refuse a recipe whose dataset or state is not that of the checkpoint."""
    recipe, saved, data = prepared.recipe, source.recipe(), checkpoint.scalars["data"]
    if any(getattr(recipe, name) != getattr(saved, name) for name in ("data", "val_fraction", "test_fraction", "fold")):
        data = check_training_data(prepared.data, recipe).data.fingerprint  # the same images may be elsewhere now
    check_provenance(source.folder, checkpoint.scalars, {"data": data, **functions})
    task = recipe_task(recipe, prepared.data)
    with torch.device("meta"):  # shapes only
        state = create_state(build_model(recipe, task, resumed=True), recipe)
        state.load_targets(read_shapes(checkpoint.path))
