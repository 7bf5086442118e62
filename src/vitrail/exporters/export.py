"""``vitrail.export``: write a model as a file that runs without Vitrail, kept only if its predictions match the model's."""

import math
import os
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from vitrail.config import parse_value
from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.exporters.onnx import write_onnx
from vitrail.exporters.parity import LOGIT_TOLERANCE, ParityReport, compare_with_model, require_accuracy, require_parity
from vitrail.exporters.quantise import Activations, QuantisationReport, quantise
from vitrail.exporters.sample_images import SampleImages, load_sample_images
from vitrail.exporters.torch_export import write_program
from vitrail.inference.load import EXPORTED_SUFFIXES
from vitrail.inference.onnx_predictor import OnnxPredictor
from vitrail.inference.predictor import Predictor
from vitrail.inference.program_predictor import ProgramPredictor
from vitrail.io import atomic_path
from vitrail.models.speedup_config import Speedups
from vitrail.models.speedups import speed_up
from vitrail.weights.load import load

ExportFormat = Literal["onnx", "int8", "program"]
FILE_SUFFIXES = {"onnx": ".onnx", "int8": ".onnx", "program": ".pt2"}
PREDICTORS: dict[str, Callable[[Path], Predictor]] = {"onnx": OnnxPredictor, "int8": OnnxPredictor, "program": ProgramPredictor}
WRITERS: dict[str, Callable[..., None]] = {"onnx": write_onnx, "program": write_program}
Requirement = Callable[[ParityReport], None]
CALIBRATION_IMAGES = 128


@dataclass(frozen=True)
class ExportResult:
    """The exported file, and how its predictions compare with the model's."""

    out: Path
    format: str
    backend: str
    file_bytes: int
    weight_bytes: int  # bytes of the model's weights
    write_seconds: float
    parity: ParityReport
    quantisation: QuantisationReport | None = None
    calibrated_on: str | None = None  # int8 only: which images the scales were calibrated on


def export(
    model: Any,
    out: str | Path,
    to: ExportFormat = "onnx",
    dynamic: bool = False,
    data: str | None = None,
    tolerance: float = LOGIT_TOLERANCE,
    images: int | None = None,
    progress: Progress | None = None,
    activations: Activations = "static",
    max_drop: float = 0.005,
    calibration: int = CALIBRATION_IMAGES,
    options: dict[str, Any] | None = None,
) -> ExportResult:
    """Write ``out``, load it with the backend that will run it, and compare it with the model, or that at a path, on images.

    ``dynamic`` leaves height and width open. ``data`` are the images to compare on; None: the model's own test or validation
    split if available, else synthetic images. A file beyond ``tolerance`` (relative to the largest logit) is removed; an
    existing one is kept.

    For int8, the scales of static ``activations`` are calibrated on ``calibration`` images, from train, or from a quarter of
    the only split; the others measure the accuracy lost, at most ``max_drop``, which replaces ``tolerance``. Without a
    classifier, the loss is 1 - cosine similarity between the file's features and the model's.
    """
    parse_value(to, ExportFormat, "to")
    out = check_output(Path(out).expanduser(), to)
    if not 0 < tolerance < math.inf:
        raise VitrailError(f"tolerance must be a number above 0, got {tolerance:g}; try {LOGIT_TOLERANCE:g}")
    if not 0 <= max_drop < 1:
        raise VitrailError(f"the accuracy that may be lost must be from 0 to below 1, got {max_drop:g}; try 0.005")
    if to == "int8" and dynamic:
        raise VitrailError("an int8 file has one fixed image size; leave --dynamic out, or use --to onnx")
    model = to_cpu_float32(load_to_export(model) if isinstance(model, str | Path) else model)
    samples = load_sample_images(model, data, images, progress, "evaluate" if to == "int8" else None)
    if to == "int8":
        calibration_samples = load_sample_images(model, data, calibration, progress, "calibrate")
        return _export_int8(model, out, samples, calibration_samples, activations, max_drop, progress, options or {})
    write, name = WRITERS[to], out.name
    return write_and_verify(
        model,
        out,
        to,
        lambda temporary: write(model, temporary, dynamic, **(options or {})),
        samples,
        lambda report: require_parity(report, name, tolerance),
        dynamic,
        progress,
    )


def _export_int8(
    model: nn.Module,
    out: Path,
    samples: SampleImages,
    calibration: SampleImages,
    activations: Activations,
    max_drop: float,
    progress: Progress | None,
    options: dict[str, Any],
) -> ExportResult:
    reports: list[QuantisationReport] = []

    def write(temporary: Path) -> None:
        reports.append(quantise(model, temporary, calibration.images, samples, activations, max_drop, progress, **options))

    result = write_and_verify(
        model, out, "int8", write, samples, lambda report: require_accuracy(report, out.name, max_drop), False, progress
    )
    calibrated_on = f"{len(calibration.images):,} of {calibration.description}"
    return replace(result, quantisation=reports[0], calibrated_on=calibrated_on)


def write_and_verify(
    model: nn.Module,
    out: Path,
    to: str,
    write: Callable[[Path], None],
    samples: SampleImages,
    require: Requirement,
    dynamic: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write under a temporary name, verify the file, and rename it once it has passed."""
    try:
        with atomic_path(out) as temporary:
            started = time.perf_counter()
            if progress is not None:
                progress(f"writing {out.name}", 0, None)
            write(temporary)
            seconds, size = time.perf_counter() - started, temporary.stat().st_size
            predictor = PREDICTORS[to](temporary)
            report = compare_with_model(model, predictor, samples, dynamic, progress)
            require(report)
    except OSError as error:
        raise VitrailError(f"{out} cannot be written: {error.strerror or error}; try another path with --out") from error
    weight_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return ExportResult(out, to, predictor.backend, size, weight_bytes, seconds, report)


def check_output(out: Path, to: str) -> Path:
    """Check, before any work, that the output path can be written."""
    if out.suffix.lower() != FILE_SUFFIXES[to]:
        raise VitrailError(
            f"--to {to} writes a {FILE_SUFFIXES[to]} file, got {out}; try {out.stem or 'model'}{FILE_SUFFIXES[to]}"
        )
    if out.is_dir() or not out.parent.is_dir():
        raise VitrailError(f"--out must be a file in a folder that exists, got {out}; try {out.name}")
    if not os.access(out.parent, os.W_OK):
        raise VitrailError(f"{out} cannot be written: {out.parent} is read-only; try another path with --out")
    return out


def load_to_export(source: str | Path, speedups: Speedups | None = None) -> Any:
    """Load the model to export, with these speedups."""
    if Path(source).suffix.lower() in EXPORTED_SUFFIXES and Path(source).is_file():
        raise VitrailError(f"{source} is already exported; name the run it was exported from")
    return load(source) if speedups is None else speed_up(load(source, image=speedups.image), speedups)


def to_cpu_float32(model: Any) -> Any:
    """Return the model on the CPU, in float32 and eval mode; the caller's is not changed."""
    model = getattr(model, "_orig_mod", model)  # a compiled model is exported as the module it was compiled from
    is_float32 = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in model.parameters())
    if any(weight.is_meta for weight in model.parameters()):
        raise VitrailError("the model is on the meta device, so it has no weights to export; build it on the cpu")
    if is_float32 and not model.training:
        return model
    return deepcopy(model).to("cpu", torch.float32).eval()
