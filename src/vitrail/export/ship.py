"""``vitrail.ship``: write a model as a file that runs without Vitrail, kept only if its predictions match the model's."""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from vitrail.config import read as read_as
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.export.check import TOLERANCE, Checked, check, refuse, refuse_drop
from vitrail.export.engine import Engine
from vitrail.export.exported import ExportedResNet, ExportedViT
from vitrail.export.onnx import write_onnx
from vitrail.export.program import ProgramEngine, write_program
from vitrail.export.quantise import Activations, Quantised, quantise
from vitrail.export.session import OnnxEngine
from vitrail.export.trial import Trial, trial
from vitrail.models.build import Model
from vitrail.weights.checkpoint import sync
from vitrail.weights.load import load

To = Literal["onnx", "int8", "program"]
ENDINGS = {"onnx": ".onnx", "int8": ".onnx", "program": ".pt2"}
ENGINES: dict[str, Callable[[Path], Engine]] = {"onnx": OnnxEngine, "int8": OnnxEngine, "program": ProgramEngine}
WRITERS: dict[str, Callable[..., None]] = {"onnx": write_onnx, "program": write_program}
Judge = Callable[[Checked], None]
CALIBRATION = 128  # images


@dataclass(frozen=True)
class Shipped:
    """The exported file, and how its predictions compare with the model's."""

    out: Path
    to: str
    engine: str
    bytes: int
    weights: int  # bytes of the model's weights
    seconds: float  # to write it
    checked: Checked
    quantised: Quantised | None = None
    calibrated: str | None = None  # int8 only: which images the scales were calibrated on


def ship(
    model: Model | str | Path,
    out: str | Path,
    to: To = "onnx",
    dynamic: bool = False,
    data: str | None = None,
    tolerance: float = TOLERANCE,
    pictures: int | None = None,
    progress: Progress | None = None,
    activations: Activations = "static",
    max_drop: float = 0.005,
    calibration: int = CALIBRATION,
    export: dict[str, Any] | None = None,
) -> Shipped:
    """Write ``out``, load it with the backend that will run it, and compare it with the model on images.

    ``dynamic`` leaves height and width open. ``data`` are the images to compare on; None: the model's own test or validation
    split if available, else synthetic images. A file beyond ``tolerance`` (relative to the largest logit) is removed; an
    existing one is kept.

    For int8, the scales of static ``activations`` are calibrated on ``calibration`` images, from train, or from a quarter of
    the only split; the others measure the accuracy lost, at most ``max_drop``, which replaces ``tolerance``. Without a
    classifier, the loss is 1 - cosine similarity between the file's features and the model's.
    """
    read_as(to, To, "to")
    out = checked_out(Path(out).expanduser(), to)
    if not 0 < tolerance < math.inf:
        raise VitrailError(f"tolerance must be a number above 0, got {tolerance:g}; try {TOLERANCE:g}")
    if not 0 <= max_drop < 1:
        raise VitrailError(f"the accuracy that may be lost must be from 0 to below 1, got {max_drop:g}; try 0.005")
    if to == "int8" and dynamic:
        raise VitrailError("an int8 file has one fixed image size; leave --dynamic out, or use --to onnx")
    model = ready(load(model) if isinstance(model, str | Path) else model)
    tried = trial(model, data, pictures, progress, "evaluate" if to == "int8" else None)
    if to != "int8":
        write = WRITERS[to]
        judge: Judge = lambda found: refuse(found, out.name, tolerance)  # noqa: E731
        return kept(model, out, to, lambda half: write(model, half, dynamic, **(export or {})), tried, judge, dynamic, progress)
    found: list[Quantised] = []
    seen = trial(model, data, calibration, progress, "calibrate")

    def write_int8(half: Path) -> None:
        found.append(quantise(model, half, seen.pictures, tried, activations, max_drop, progress, **(export or {})))

    shipped = kept(model, out, to, write_int8, tried, lambda found: refuse_drop(found, out.name, max_drop), False, progress)
    return replace(shipped, quantised=found[0], calibrated=f"{len(seen.pictures):,} of {seen.what}")


def kept(
    model: Model,
    out: Path,
    to: str,
    write: Callable[[Path], None],
    tried: Trial,
    judge: Judge,
    dynamic: bool = False,
    progress: Progress | None = None,
) -> Shipped:
    """Write under a temporary name, verify the file, and rename it once it has passed."""
    half = out.with_name(f".{out.stem[:100]}.{os.getpid()}.part{ENDINGS[to]}")
    try:
        began = time.perf_counter()
        if progress is not None:
            progress(f"writing {out.name}", 0, None)
        write(half)
        seconds, size = time.perf_counter() - began, half.stat().st_size
        engine = ENGINES[to](half)
        found = check(model, engine, tried, dynamic, progress)
        judge(found)
        sync(half)
        half.replace(out)
    except OSError as error:
        raise VitrailError(f"{out} cannot be written: {error.strerror or error}; try another path with --out") from error
    finally:
        with suppress(OSError):  # it does not exist, or the disk is read-only
            half.unlink()
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return Shipped(out, to, engine.name, size, weights, seconds, found)


def checked_out(out: Path, to: str) -> Path:
    """Check, before any work, that the output path can be written."""
    if out.suffix.lower() != ENDINGS[to]:
        raise VitrailError(f"--to {to} writes a {ENDINGS[to]} file, got {out}; try {out.stem or 'model'}{ENDINGS[to]}")
    if out.is_dir() or not out.parent.is_dir():
        raise VitrailError(f"--out must be a file in a folder that exists, got {out}; try {out.name}")
    if not os.access(out.parent, os.W_OK):
        raise VitrailError(f"{out} cannot be written: {out.parent} is read-only; try another path with --out")
    return out


def ready(model: Model) -> Model:
    """Return the model on the CPU, in float32 and eval mode; the caller's is not changed."""
    if isinstance(model, ExportedViT | ExportedResNet):
        raise VitrailError(f"{model.engine.model} is already exported; name the run it was exported from")
    model = getattr(model, "_orig_mod", model)  # a compiled model is exported as the module it was compiled from
    plain = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in model.parameters())
    if any(weight.is_meta for weight in model.parameters()):
        raise VitrailError("the model is on the meta device, so it has no weights to export; build it on the cpu")
    if plain and not model.training:
        return model
    return deepcopy(model).to("cpu", torch.float32).eval()
