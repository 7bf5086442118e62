"""Folder that is pushed to the hub: weights, metadata without local paths, and a model card. No checkpoints."""

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.masked import Masked
from vitrail.report.card import card
from vitrail.report.card_head import Format
from vitrail.weights.checkpoint import facts_of, save
from vitrail.weights.folder import DECODER, is_model
from vitrail.weights.load import load, place
from vitrail.weights.masked import load_masked

INSIDE = ("best", "last", "model.safetensors")  # inside a run, whose name precedes them


@dataclass(frozen=True)
class Parcel:
    """A folder ready to be pushed, its files with sizes in bytes, and the settings that were assumed."""

    folder: Path
    files: dict[str, int]
    assumed: tuple[str, ...] = ()


def pack(source: str, folder: Path, name: str, license: str | None = None, format: Format = "vitrail") -> Parcel:
    """Build the hub folder of a run, model folder or weight file as ``owner/name``, whole or not at all."""
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license):
        raise VitrailError(
            f"--license must be one of the hub's licence identifiers, got {license!r}; try apache-2.0, mit or cc-by-4.0"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise VitrailError(f"{folder} exists and is not empty, so nothing is written into it; choose another path")
    model = _read(source)
    encoder = model.encoder if isinstance(model, Masked) else model
    facts = {part: bare(value) for part, value in encoder.facts.items()}
    assumed = encoder.report.assumed
    text = card(facts_of(model, model.config, facts), name, license, format, _pictures(source), assumed)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name[:100]}.") as aside:
            fresh = save(model, Path(aside) / "model", format=format, facts=facts)
            (fresh / "README.md").write_text(text, encoding="utf-8")
            if folder.exists():
                folder.rmdir()
            shutil.move(fresh, folder)
    except OSError as error:
        raise VitrailError(f"{folder} cannot be written: {error}") from None
    return Parcel(folder, {file.name: file.stat().st_size for file in sorted(folder.iterdir())}, assumed)


def bare(value: Any) -> Any:
    """Strip local paths from metadata: of every path the last component is left."""
    if isinstance(value, dict):
        return {name: bare(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [bare(inner) for inner in value]
    if not isinstance(value, str) or value.startswith("hf:"):
        return value
    names = [name for name in re.split(r"[/\\]+", value) if name not in ("", ".", "..", "~")]
    while len(names) > 1 and names[-1] in INSIDE:
        names.pop()
    return names[-1] if names else ""


def _read(source: str) -> Model | Masked:
    """Load a model, with its pre-training decoder where there is one."""
    path = place(source)
    return load_masked(source) if is_model(path) and (path / DECODER).is_file() else load(source)


def _pictures(source: str) -> dict[str, int]:
    """Return how many images a finished run was evaluated on, by split."""
    from vitrail.train.run import Run

    run = Run(Path(source).expanduser())
    result = None if source.startswith("hf:") else run.result()
    if result is None or not (run.folder / "predictions.npz").is_file():
        return {}
    with np.load(run.folder / "predictions.npz", allow_pickle=False) as file:
        return {result["reported_on"]: len(file["labels"])} if "labels" in file.files else {}
