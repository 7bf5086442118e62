"""Folder that is pushed to the hub: weights, metadata without local paths, and a model card. No checkpoints."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitrail.errors import VitrailError
from vitrail.io import atomic_folder
from vitrail.models.build import get_encoder
from vitrail.report.model_card import model_card
from vitrail.report.model_card_yaml import CardFormat
from vitrail.training.run import Run
from vitrail.weights.load import load, resolve_source
from vitrail.weights.load_masked import load_masked
from vitrail.weights.model_folder import DECODER_FILE, is_model_folder, strip_paths
from vitrail.weights.save import model_metadata, save


@dataclass(frozen=True)
class HubFolder:
    """A folder ready to be pushed, its files with sizes in bytes, and the settings that were assumed."""

    folder: Path
    files: dict[str, int]
    assumed: tuple[str, ...] = ()


def build_hub_folder(
    source: str, folder: Path, name: str, license: str | None = None, format: CardFormat = "vitrail"
) -> HubFolder:
    """Build the hub folder of a run, model folder or weight file as ``owner/name``, whole or not at all."""
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license):
        raise VitrailError(
            f"--license must be one of the hub's licence identifiers, got {license!r}; try apache-2.0, mit or cc-by-4.0"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise VitrailError(f"{folder} exists and is not empty, so nothing is written into it; choose another path")
    model = _load_with_decoder(source)
    encoder = get_encoder(model)
    metadata = {key: strip_paths(value) for key, value in encoder.metadata.items()}
    assumed = encoder.load_report.assumed
    card_metadata, class_metrics = model_metadata(model, encoder.config, metadata), _class_metrics(source)
    text = model_card(card_metadata, name, license, format, _num_images(source), assumed, class_metrics)
    try:
        with atomic_folder(folder.resolve()) as temporary:
            save(model, temporary, format=format, metadata=metadata)
            (temporary / "README.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise VitrailError(f"{folder} cannot be written: {error}") from None
    return HubFolder(folder, {file.name: file.stat().st_size for file in sorted(folder.iterdir())}, assumed)


def _load_with_decoder(source: str) -> nn.Module:
    """Load a model with its decoder, also one that is used for pre-training alone."""
    path, model = resolve_source(source), load(source)
    has_decoder = is_model_folder(path) and (path / DECODER_FILE).is_file()
    return load_masked(source) if has_decoder and get_encoder(model) is model else model


def _num_images(source: str) -> dict[str, int]:
    """Return how many images a finished run was evaluated on, by split."""
    run = Run(Path(source).expanduser())
    result = None if source.startswith("hf:") else run.result()
    if result is None or not (run.folder / "predictions.npz").is_file():
        return {}
    with np.load(run.folder / "predictions.npz", allow_pickle=False) as file:
        targets = next((file[key] for key in ("labels", "targets", "indices") if key in file.files), None)
        return {} if targets is None else {result["reported_on"]: len(targets)}


def _class_metrics(source: str) -> list[dict[str, Any]]:
    """Return the metrics of each class of a finished run, if its result has them."""
    result = None if source.startswith("hf:") else Run(Path(source).expanduser()).result()
    return [] if result is None else result.get("classes", [])
