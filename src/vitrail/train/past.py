"""Load the model from a checkpoint of a run, also during training: what ``vitrail.load(run)`` would have given at that step.

Only the weights are read, or the EMA weights if there are any, since those are evaluated and saved. Hashes are not verified:
they cover the optimiser state too, which would have to be read for nothing else.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config import to_plain
from vitrail.data.sources.open import pictures
from vitrail.data.sources.split import Shares
from vitrail.errors import VitrailError
from vitrail.models.build import Model, skeleton
from vitrail.train.checkpoint import COUNTERS, MANIFEST, checkpoints, fill
from vitrail.train.recipe import Recipe
from vitrail.train.run import Run
from vitrail.weights.convert.detect import Found
from vitrail.weights.files import held
from vitrail.weights.folder import is_model, read_facts, read_json
from vitrail.weights.load import Report, match, preprocessing, sound, travelling

ENCODER = "encoder."  # of a self-supervised model, the part that is used afterwards


def steps(run: Run) -> list[int]:
    """List the steps of a run's checkpoints in ascending order, from their names alone."""
    return [int(path.name[5:]) for path in reversed(checkpoints(run.checkpoints))]


@torch.inference_mode(False)  # the caller may want gradients
def model_at(run: Run | str | Path, step: int) -> Model:
    """Load the model of a run at a step, with preprocessing, class names and metadata; if self-supervised, the encoder."""
    run = run if isinstance(run, Run) else Run(Path(run).expanduser())
    path, recipe = run.checkpoints / f"step-{step}", run.recipe()
    if not path.is_dir():
        raise VitrailError(f"{run.folder} has no checkpoint of step {step}{_instead(run, step)}")
    try:
        state, counters = _weights(path, masked=recipe.masking is not None), read_json(path / COUNTERS)
        labels, facts = _told(run, recipe, step, counters)
        found = sound(Found("vitrail", recipe.model, state, [], [], recipe.preprocess, labels, facts))
        return _model(found, f"the checkpoint of step {step}")
    except Exception as error:  # a damaged file can raise anything
        if not path.is_dir():
            raise VitrailError(
                f"the checkpoint of step {step} was deleted while it was read, to make room for newer ones{_instead(run, step)}"
            ) from None
        reason = str(error).strip().splitlines()
        raise VitrailError(
            f"the checkpoint of step {step} in {run.folder} cannot be read ({reason[0] if reason else type(error).__name__})"
            f"{_instead(run, step)}"
        ) from None


def _instead(run: Run, step: int) -> str:
    """Suggest the nearest step that has a checkpoint."""
    others = [other for other in steps(run) if other != step]
    if not others:
        return "; there is no other yet, so use the run's best weights, which need no step"
    return f"; try {min(others, key=lambda other: abs(other - step))}, the nearest one"


def _weights(path: Path, masked: bool) -> dict[str, Tensor]:
    """Read the weights by their names in the model, from one file or from those of several ranks."""
    missing = [name for name in read_json(path / MANIFEST) if not (path / Path(name).name).is_file()]
    if missing:
        raise VitrailError(f"{missing[0]} is missing")
    state: dict[str, Tensor] = {}
    fill(path, lambda shapes: _places(shapes, ENCODER if masked else "", state))
    return state


def _places(shapes: dict[str, tuple[int, ...]], part: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    kind = "ema." if any(name.startswith("ema.") for name in shapes) else "model."
    wanted = [name for name in shapes if name.startswith(kind + part)]
    # NaN at first, so that a shard which no file has is noticed
    places = {name: torch.full(shapes[name], torch.nan) for name in wanted}
    state.update({name.removeprefix(kind + part): place for name, place in places.items()})
    return places


def _model(found: Found, where: str) -> Model:
    model = skeleton(found.config)
    match(where, model, found.state)
    model.load_state_dict({name: held(tensor) for name, tensor in found.state.items()}, assign=True)
    model.preprocess = preprocessing(found, found.config)
    model.labels = found.labels if found.labels and len(found.labels) == found.config.classes else None
    model.facts, model.report = found.facts, Report(found.origin, len(found.state))
    return model.eval()


def _told(run: Run, recipe: Recipe, step: int, counters: dict[str, Any]) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
    """Class names and metadata, as the run's saved weights have them or, before there are any, will have them."""
    best = run.folder / "best"
    known = read_facts(best) if is_model(best) else {}
    _, labels, facts = travelling(known)
    scores = facts.get("metrics", {})
    on = "train" if "train" in scores and "validation" not in scores else "validation"
    facts = {
        "recipe": to_plain(recipe),
        "dataset": {"name": recipe.data, "fingerprint": counters.get("data")},
        "metrics": {"step": step, on: _evaluated(run, step)},
    }
    return (labels if known else _names(recipe)), facts


def _names(recipe: Recipe) -> tuple[str, ...] | None:
    """Class names from the dataset; None if it is no longer there."""
    if recipe.masking is not None:
        return None
    try:
        return pictures(recipe.data, shares=Shares(recipe.validation, recipe.test)).names
    except (VitrailError, OSError):
        return None


def _evaluated(run: Run, step: int) -> dict[str, Any]:
    """The logged metrics of the evaluation at a step; the last line of the log may be incomplete."""
    path = run.folder / "log.jsonl"
    for text in path.read_text().splitlines() if path.is_file() else []:
        if '"validation"' not in text:
            continue
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line.get("step") == step:
            return {name: value for name, value in line["validation"].items() if value - value == 0}
    return {}
