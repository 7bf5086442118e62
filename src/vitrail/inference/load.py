"""``vitrail.load_predictor``: a predictor for a model, a file that was exported from one, or any weights."""

from pathlib import Path
from typing import Literal

import torch

from vitrail.errors import VitrailError
from vitrail.inference.onnx_predictor import OnnxPredictor
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.inference.program_predictor import ProgramPredictor
from vitrail.models.build import Model
from vitrail.models.speedup_config import Speedups
from vitrail.models.speedups import speed_up
from vitrail.system import select_device
from vitrail.weights.load import load

Backend = Literal["auto", "torch", "onnxruntime"]
EXPORTED_SUFFIXES = (".onnx", ".pt2")


def load_predictor(
    source: str | Path | Model | Predictor,
    backend: Backend = "auto",
    threads: int | None = None,
    speedups: Speedups | None = None,
    device: str | None = None,
) -> Predictor:
    """Load a predictor: for an exported file (.onnx, .pt2) the backend it needs, for anything ``vitrail.load`` reads torch.

    ``threads`` is the number of CPU threads of one call; ``speedups`` and ``device`` apply to torch only. None leaves a model
    on the device that it is on, and loads a file to the best one. A predictor is returned as it is.
    """
    if isinstance(source, Predictor):
        return source
    if threads is not None and threads < 1:
        raise VitrailError(f"threads must be at least 1, got {threads}; leave it out to use every core")
    if not isinstance(source, str | Path):
        return _torch_predictor(source, "the model", threads, speedups, device)
    suffix = Path(source).suffix.lower()
    if suffix not in EXPORTED_SUFFIXES:
        if backend == "onnxruntime":
            raise VitrailError(f"onnxruntime runs .onnx files, got {source}; try `vitrail export {source} --to onnx` first")
        model = load(source, image=None if speedups is None else speedups.image)
        return _torch_predictor(model, str(source), threads, speedups, device or "auto")
    if speedups is not None:
        raise VitrailError(f"{source} is an exported file, which cannot be sped up; give these options to `vitrail export`")
    if backend != "auto" and (backend == "onnxruntime") != (suffix == ".onnx"):
        required = "onnxruntime" if suffix == ".onnx" else "torch"
        raise VitrailError(f"{source} must be run by {required}, got {backend}; leave the backend out")
    return OnnxPredictor(source, threads) if suffix == ".onnx" else ProgramPredictor(source, threads)


def _torch_predictor(
    model: Model, source: str, threads: int | None, speedups: Speedups | None, device: str | None
) -> TorchPredictor:
    if threads is not None:
        torch.set_num_threads(threads)
    if speedups is not None:
        model = speed_up(model, speedups)
    return TorchPredictor(model if device is None else model.to(select_device(device)), source)
