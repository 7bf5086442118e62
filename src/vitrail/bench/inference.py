"""``vitrail bench inference``: images per second by each of our paths, against other libraries' models in eager mode.

Ti/16, S/16 and B/16 at 224 pixels. All take turns in one process, with the same number of threads, and the best of several
rounds counts. Peers and our eager model get preprocessed floats; an exported file gets pixels and normalises them itself. Int8
leaves the same layers in float at every size, those that a real Ti/16 does not tolerate in 8 bits. It has two engines,
onnxruntime and torch's fbgemm; which one is faster depends on the CPU, and the row names it.

With real weights of a Ti/16 and labelled images, the accuracy of each path is measured, too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy import ndarray
from torch import Tensor, nn

from vitrail.bench import fbgemm
from vitrail.bench.interleaved_timing import GEMM_SIZE, best_of_interleaved, matrix_product, repeat_for
from vitrail.bench.reference_models import INFERENCE_LIBRARIES, reference_models
from vitrail.data.preprocess import vit_preprocess
from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.exporters.onnx import to_onnx
from vitrail.exporters.quantise import build_quantised_graph, smooth_model
from vitrail.exporters.sample_images import SampleImages, load_sample_images
from vitrail.inference.onnx_predictor import OnnxSession
from vitrail.inference.predictor import TorchPredictor, require_preprocess
from vitrail.models.build import Model, build
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.models.speedups import compiled_copy, speed_up
from vitrail.models.variants import variant
from vitrail.weights.load import load

TURN_SECONDS = 0.05  # seconds of work per turn: the shorter, the likelier one of them is undisturbed by other load
MODEL_SIZES, BATCH_SIZES = ("Ti/16", "S/16", "B/16"), (1, 8)
MERGE_TOKENS = (30, 3)  # tokens, every so many layers: selected on 250 images with a real Ti/16
FLOAT_LAYERS = ("blocks.7.mlp.down",)  # of a real Ti/16: the layer that causes nearly all of the loss in accuracy
EAGER, COMPILED, MERGED, ONNX, INT8, MERGED_INT8 = "eager", "compiled", "merged", "onnx", "int8", "merged int8"
FBGEMM = fbgemm.ENGINE
FLOAT_PATHS = (EAGER, COMPILED, ONNX)
INT8_ENGINES = {INT8: "onnxruntime", FBGEMM: "fbgemm"}  # of int8
OUR_PATHS = (EAGER, COMPILED, MERGED, ONNX, *INT8_ENGINES, MERGED_INT8)
RunBatch = Callable[[int], int]  # runs a batch of this size, and returns it


@dataclass(frozen=True)
class InferenceRow:
    """Ratios to the fastest peer's eager model, None if no peer is installed."""

    model: str
    batch_size: int
    images_per_second: dict[str, float]  # by path and by peer
    eager_ratio: float | None
    float_ratio: float | None  # the fastest of eager, compiled and onnx
    int8_ratio: float | None  # the faster of the two engines
    int8_engine: str | None  # the faster one
    merged_int8_ratio: float | None
    gemm_fraction: float  # fraction of the peak, by our eager model


@dataclass(frozen=True)
class AccuracyKept:
    """Accuracy of a path on real images, and its agreement with the eager model."""

    top1: float | None
    agreement: float


@dataclass(frozen=True)
class InferenceSpeed:
    rows: list[InferenceRow]
    accuracy: dict[str, AccuracyKept] = field(default_factory=dict)  # by path, with real weights
    gigaflops: float = 0.0
    merge: tuple[int | str, int] = MERGE_TOKENS
    threads: int = 1
    rounds: int = 1


def benchmark_inference(
    sizes: tuple[str, ...] = MODEL_SIZES,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
    rounds: int = 30,
    compile: bool = True,
    merge: tuple[int | str, int] = MERGE_TOKENS,
    weights: str | None = None,
    data: str | None = None,
    progress: Progress | None = None,
) -> InferenceSpeed:
    """Run the benchmark. ``weights``: of a Ti/16, whose predictions on the images of ``data`` are compared."""
    for name in sizes:
        if name not in MODEL_SIZES:
            raise VitrailError(f"the size must be one of {', '.join(MODEL_SIZES)}, got {name!r}")
    if weights is not None and data is None:
        raise VitrailError("weights are evaluated on images; name some with --data")
    torch.manual_seed(0)
    report, rows, peak, accuracy = progress or (lambda what, done, total: None), [], 0.0, {}
    for size in sizes:
        real_weights = weights if size == "Ti/16" else None
        report(f"building the paths of {size}", 0, None)
        samples = None
        if real_weights is not None:
            model = load(real_weights)
            samples = load_sample_images(model, data, 250, progress)
        else:
            model = _build_random(size)
        paths = InferencePaths(model, samples, merge, compile)
        if samples is not None:
            accuracy = paths.accuracy_kept(samples)
        assert isinstance(model.config, ViTConfig)
        peers = {
            name: _run_torch(peer, model.config.image)
            for name, peer in reference_models(model.config, INFERENCE_LIBRARIES).items()
        }
        for batch in batch_sizes:
            contestants: dict[str, Callable[[], int]] = {
                name: repeat_for(TURN_SECONDS, partial(run_batch, batch))
                for name, run_batch in (paths.run_batch | peers).items()
            }
            title = f"{size}, batch {batch}"
            rates = best_of_interleaved(
                {**contestants, "peak": matrix_product},
                rounds,
                lambda _, done, of, title=title: report(title, done, of),  # type: ignore[misc]
            )
            peak = max(peak, 2 * GEMM_SIZE**3 * rates.pop("peak"))
            rows.append(_make_row(size, batch, rates, tuple(peers), cost(model.config).macs))
    rows = [_as_fraction_of(row, peak) for row in rows]
    return InferenceSpeed(rows, accuracy, round(peak / 1e9, 1), merge, torch.get_num_threads(), rounds)


class InferencePaths:
    """The inference paths of a model."""

    def __init__(self, model: Model, samples: SampleImages | None, merge: tuple[int | str, int], compile: bool) -> None:
        self.size = model.config.image
        calibration_images = _random_images(32, self.size) if samples is None else samples.images[1::4]
        merged = speed_up(model, merge_tokens=merge[0], merge_every=merge[1])
        with torch.inference_mode(False):
            graphs = {
                ONNX: to_onnx(model),
                INT8: _quantised_graph(model, calibration_images),
                MERGED_INT8: _quantised_graph(merged, calibration_images),
            }
        self.sessions = {name: OnnxSession(graph.SerializeToString()) for name, graph in graphs.items()}
        self.models: dict[str, Model] = {EAGER: model, MERGED: merged}
        if fbgemm.is_available():
            with torch.inference_mode(False):
                self.models[FBGEMM] = fbgemm.quantise_linear_layers(smooth_model(model, calibration_images), FLOAT_LAYERS)
        if compile:
            self.models[COMPILED] = compiled_copy(model)
        self.run_batch: dict[str, RunBatch] = {name: _run_torch(each, self.size) for name, each in self.models.items()}
        self.run_batch |= {name: _run_onnx(each, self.size) for name, each in self.sessions.items()}
        self.preprocess = require_preprocess(model)

    def accuracy_kept(self, samples: SampleImages) -> dict[str, AccuracyKept]:
        logits = {
            name: np.concatenate([session(images) for images in _chunks(samples.images)])
            for name, session in self.sessions.items()
        }
        for name, model in self.models.items():
            if name != COMPILED:
                engine = TorchPredictor(model)
                logits[name] = np.concatenate([engine.outputs(images) for images in _chunks(samples.images)])
        eager_predicted, labelled = logits[EAGER].argmax(1), samples.labels >= 0
        return {
            name: AccuracyKept(
                float((rows.argmax(1) == samples.labels)[labelled].mean()) if labelled.any() else None,
                float((rows.argmax(1) == eager_predicted).mean()),
            )
            for name, rows in logits.items()
        }


def _build_random(size: str) -> Model:
    config = variant(size, gelu="exact")  # as in the other libraries
    model = build(config).eval()
    model.preprocess = vit_preprocess(config.image)
    return model


def _quantised_graph(model: Model, images: UInt8[ndarray, "n height width c"]) -> Any:
    graph = build_quantised_graph(model, images, "static")
    return graph.build(tuple(layer for layer in graph.layers if layer not in FLOAT_LAYERS))


def _run_torch(model: nn.Module, size: tuple[int, int]) -> RunBatch:
    model.eval()
    images: dict[int, Tensor] = {}

    @torch.inference_mode()
    def run_batch(count: int) -> int:
        model(images.setdefault(count, torch.randn(count, 3, *size)))
        return count

    return run_batch


def _run_onnx(session: OnnxSession, size: tuple[int, int]) -> RunBatch:
    inputs: dict[int, ndarray] = {}

    def run_batch(count: int) -> int:
        session(inputs.setdefault(count, _random_images(count, size)))
        return count

    return run_batch


def _make_row(size: str, batch_size: int, rates: dict[str, float], peers: tuple[str, ...], macs: int) -> InferenceRow:
    best = max((rates[peer] for peer in peers), default=0.0)

    def ratio(*paths: str) -> float | None:
        speeds = [rates[path] for path in paths if path in rates]
        return round(max(speeds) / best, 3) if best and speeds else None

    rounded = {name: round(rate, 2) for name, rate in rates.items()}
    fastest = max((path for path in INT8_ENGINES if path in rates), key=lambda path: rates[path], default=None)
    return InferenceRow(
        size,
        batch_size,
        rounded,
        eager_ratio=ratio(EAGER),
        float_ratio=ratio(*FLOAT_PATHS),
        int8_ratio=ratio(*INT8_ENGINES),
        int8_engine=None if fastest is None else INT8_ENGINES[fastest],
        merged_int8_ratio=ratio(MERGED_INT8),
        gemm_fraction=rates[EAGER] * 2 * macs,
    )


def _as_fraction_of(row: InferenceRow, peak: float) -> InferenceRow:
    return InferenceRow(**{**vars(row), "gemm_fraction": round(row.gemm_fraction / peak, 3)})


def _chunks(images: UInt8[ndarray, "n height width c"]) -> Iterator[ndarray]:
    for start in range(0, len(images), 8):
        yield images[start : start + 8]


def _random_images(count: int, size: tuple[int, int]) -> UInt8[ndarray, "n height width c"]:
    return np.random.default_rng(0).integers(0, 256, (count, *size, 3), np.uint8)
