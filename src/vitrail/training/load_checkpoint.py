"""Load the model from a checkpoint of a run, also during training: what ``vitrail.load(run)`` would have loaded at that step.

Only the weights are read, or the EMA weights if there are any, since those are evaluated and saved. Hashes are not verified:
they cover the optimiser state too, which would have to be read for nothing else.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.models.build import Model, build_on_meta, with_metadata_of
from vitrail.recipes.recipe import Recipe
from vitrail.tasks.registry import build_task
from vitrail.training.checkpoint import MANIFEST_FILE, SCALARS_FILE, list_checkpoints, load_tensors
from vitrail.training.run import Run
from vitrail.weights.convert.inspect import ConvertedCheckpoint
from vitrail.weights.load import LoadReport, adapt_preprocess, check_finite_weights, check_shapes, parse_metadata
from vitrail.weights.model_folder import is_model_folder, read_json, read_metadata
from vitrail.weights.read_file import own_copy

ENCODER_PREFIX = "encoder."  # of the names in a model with a decoder


def checkpoint_steps(run: Run) -> list[int]:
    """List the steps of a run's checkpoints in ascending order, from their names alone."""
    return [int(path.name[5:]) for path in reversed(list_checkpoints(run.checkpoints))]


@torch.inference_mode(False)  # the caller may want gradients
def load_checkpoint(run: Run | str | Path, step: int) -> Model:
    """Load the model of a run at a step, with preprocessing, class names and metadata; if self-supervised, the encoder."""
    run = run if isinstance(run, Run) else Run(Path(run).expanduser())
    path, recipe = run.checkpoints / f"step-{step}", run.recipe()
    if not path.is_dir():
        raise VitrailError(f"{run.folder} has no checkpoint of step {step}{_suggest_step(run, step)}")
    try:
        weights, scalars = _read_weights(path), read_json(path / SCALARS_FILE)
        state = {name.removeprefix(ENCODER_PREFIX): tensor for name, tensor in weights.items() if _is_encoder(name, weights)}
        class_names, metadata = _names_and_metadata(run, recipe, step, scalars)
        converted = check_finite_weights(
            ConvertedCheckpoint("vitrail", recipe.model, state, [], [], recipe.preprocess, class_names, metadata)
        )
        encoder = _build_model(converted, f"the checkpoint of step {step}")
        task = build_task(recipe.task, recipe.model, recipe.preprocess, class_names or ())
        if len(state) == len(weights) or not task.keeps_decoder:
            return encoder
        model = task.build_model(encoder)
        model.load_state_dict({name: own_copy(tensor) for name, tensor in weights.items()})
        return with_metadata_of(encoder, model).eval()
    except Exception as error:  # a damaged file can raise anything
        if not path.is_dir():
            raise VitrailError(
                f"the checkpoint of step {step} was deleted while it was read, to make room for newer "
                f"ones{_suggest_step(run, step)}"
            ) from None
        reason = str(error).strip().splitlines()
        raise VitrailError(
            f"the checkpoint of step {step} in {run.folder} cannot be read ({reason[0] if reason else type(error).__name__})"
            f"{_suggest_step(run, step)}"
        ) from None


def _suggest_step(run: Run, step: int) -> str:
    """Suggest the nearest step that has a checkpoint."""
    others = [other for other in checkpoint_steps(run) if other != step]
    if not others:
        return "; there is no other yet, so use the run's best weights, which need no step"
    return f"; try {min(others, key=lambda other: abs(other - step))}, the nearest one"


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights by their names in the model, from one file or from those of several ranks."""
    missing = [name for name in read_json(path / MANIFEST_FILE) if not (path / Path(name).name).is_file()]
    if missing:
        raise VitrailError(f"{missing[0]} is missing")
    state: dict[str, Tensor] = {}
    load_tensors(path, lambda shapes: _load_targets(shapes, state))
    return state


def _load_targets(shapes: dict[str, tuple[int, ...]], state: dict[str, Tensor]) -> dict[str, Tensor]:
    kind = "ema." if any(name.startswith("ema.") for name in shapes) else "model."
    names = [name for name in shapes if name.startswith(kind)]
    # NaN at first, so that a shard which no file has is noticed
    targets = {name: torch.full(shapes[name], torch.nan) for name in names}
    state.update({name.removeprefix(kind): tensor for name, tensor in targets.items()})
    return targets


def _is_encoder(name: str, weights: dict[str, Tensor]) -> bool:
    """Return whether a weight is the encoder's: of a model without a decoder, all are."""
    return name.startswith(ENCODER_PREFIX) or not any(each.startswith(ENCODER_PREFIX) for each in weights)


def _build_model(converted: ConvertedCheckpoint, where: str) -> Model:
    model = build_on_meta(converted.config)
    check_shapes(where, model, converted.state)
    model.load_state_dict({name: own_copy(tensor) for name, tensor in converted.state.items()}, assign=True)
    model.preprocess = adapt_preprocess(converted, converted.config)
    model.class_names = (
        converted.class_names if converted.class_names and len(converted.class_names) == converted.config.classes else None
    )
    model.metadata, model.load_report = converted.metadata, LoadReport(converted.origin, len(converted.state))
    return model.eval()


def _names_and_metadata(
    run: Run, recipe: Recipe, step: int, scalars: dict[str, Any]
) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
    """Class names and metadata, as the run's saved weights have them or, before there are any, will have them."""
    best = run.folder / "best"
    saved = read_metadata(best) if is_model_folder(best) else {}
    _, class_names, metadata = parse_metadata(saved)
    scores = metadata.get("metrics", {})
    split = "train" if "train" in scores and "validation" not in scores else "validation"
    metadata = {
        "recipe": to_dict(recipe),
        "dataset": {**metadata.get("dataset", {}), "name": recipe.data, "fingerprint": scalars.get("data")},
        "metrics": {"step": step, split: run.logged_validation(step)},
        **({"task_state": metadata["task_state"]} if "task_state" in metadata else {}),
    }
    return (class_names if saved else _class_names(recipe)), metadata


def _class_names(recipe: Recipe) -> tuple[str, ...] | None:
    """Class names from the dataset; None if it is no longer there."""
    if not (recipe.task.labelled or recipe.task.is_dense):
        return None
    try:
        fractions = SplitFractions(recipe.val_fraction, recipe.test_fraction)
        return open_dataset(recipe.data, columns=recipe.columns, split_fractions=fractions).class_names
    except (VitrailError, OSError):
        return None
