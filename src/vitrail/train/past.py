"""The model that a run had at a checkpoint, also while it trains: what ``vitrail.load(run)`` would have given at that step.

Of a checkpoint the weights alone are read, and of those the average where there is one, since that is what is evaluated and
kept. Its hashes are not looked at: they are of the optimiser's moments too, which would be read for nothing else.
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

ENCODER = "encoder."  # of what is learnt without labels, the part that people use


def steps(run: Run) -> list[int]:
    """Of its checkpoints, the first one first; told from their names alone."""
    return [int(path.name[5:]) for path in reversed(checkpoints(run.checkpoints))]


@torch.inference_mode(False)  # gradients may be asked of it later
def model_at(run: Run | str | Path, step: int) -> Model:
    """With preprocessing, labels and facts, ready to predict; of a run without labels, the encoder."""
    run = run if isinstance(run, Run) else Run(Path(run).expanduser())
    path, recipe = run.checkpoints / f"step-{step}", run.recipe()
    if not path.is_dir():
        raise VitrailError(f"{run.folder} has no checkpoint of step {step}{_instead(run, step)}")
    try:
        state, counters = _weights(path, masked=recipe.masking is not None), read_json(path / COUNTERS)
        labels, facts = _told(run, recipe, step, counters)
        found = sound(Found("vitrail", recipe.model, state, [], [], recipe.preprocess, labels, facts))
        return _model(found, f"the checkpoint of step {step}")
    except Exception as error:  # a damaged file can fail its reader in any way
        if not path.is_dir():
            raise VitrailError(
                f"the checkpoint of step {step} was taken away while it was read, to make room{_instead(run, step)}"
            ) from None
        reason = str(error).strip().splitlines()
        raise VitrailError(
            f"the checkpoint of step {step} in {run.folder} cannot be read ({reason[0] if reason else type(error).__name__})"
            f"{_instead(run, step)}"
        ) from None


def _instead(run: Run, step: int) -> str:
    """The nearest that is there."""
    others = [other for other in steps(run) if other != step]
    if not others:
        return "; there is no other yet, so take the run's best weights, which need no step"
    return f"; try {min(others, key=lambda other: abs(other - step))}, the nearest there is"


def _weights(path: Path, masked: bool) -> dict[str, Tensor]:
    """By the names that they have in the model, from one file or from those of several ranks."""
    missing = [name for name in read_json(path / MANIFEST) if not (path / Path(name).name).is_file()]
    if missing:
        raise VitrailError(f"{missing[0]} is missing")
    state: dict[str, Tensor] = {}
    fill(path, lambda shapes: _places(shapes, ENCODER if masked else "", state))
    return state


def _places(shapes: dict[str, tuple[int, ...]], part: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    kind = "average." if any(name.startswith("average.") for name in shapes) else "model."
    wanted = [name for name in shapes if name.startswith(kind + part)]
    # no numbers at first, so that a piece which no file holds is noticed
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
    """The classes' names and the facts, as the run's own weights have them or, before there are any, as they will."""
    best = run.folder / "best"
    known = read_facts(best) if is_model(best) else {}
    _, labels, facts = travelling(known)
    scores = facts.get("score", {})
    on = "train" if "train" in scores and "validation" not in scores else "validation"
    facts = {
        "recipe": to_plain(recipe),
        "data": {"name": recipe.data, "fingerprint": counters.get("data")},
        "score": {"step": step, on: _evaluated(run, step)},
    }
    return (labels if known else _names(recipe)), facts


def _names(recipe: Recipe) -> tuple[str, ...] | None:
    """From the data, where that is still there; a model can be looked at without."""
    if recipe.masking is not None:
        return None
    try:
        return pictures(recipe.data, shares=Shares(recipe.validation, recipe.test)).names
    except (VitrailError, OSError):
        return None


def _evaluated(run: Run, step: int) -> dict[str, Any]:
    """What the log says of the evaluation at that step; its last line may still be in the middle of being written."""
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
