"""``vitrail bench inference``: images per second by each of our paths, against other libraries' models in eager mode.

Ti/16, S/16 and B/16 at 224 pixels. All take turns in one process, with the same number of threads, and the best of several
rounds counts. Peers and our eager model get preprocessed floats; an exported file gets pixels and normalises them itself. Int8
leaves the same layers in float at every size, those that a real Ti/16 does not tolerate in 8 bits. It has two engines,
onnxruntime and torch's fbgemm; which one is faster depends on the CPU, and the row names it.

With real weights of a Ti/16 and labelled images, the accuracy of each path is measured, too.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy import ndarray
from torch import Tensor, nn

from vitrail.bench import fbgemm
from vitrail.bench.peers import ASKED, models
from vitrail.bench.turns import in_turns
from vitrail.data.preprocess import vit as vit_preprocess
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.export.engine import TorchEngine
from vitrail.export.onnx import graph_of
from vitrail.export.quantise import eight_bits, evened
from vitrail.export.session import Session
from vitrail.export.trial import Trial, trial
from vitrail.models.build import Model, build
from vitrail.models.cost import cost
from vitrail.models.faster import faster
from vitrail.models.merged import compiled
from vitrail.models.settings import ViTConfig
from vitrail.models.variants import variant
from vitrail.weights.load import load

SQUARE = 2048  # side of the matrices whose product gives the peak
SLICE = 0.05  # seconds of work per turn: the shorter, the likelier one of them is undisturbed by other load
SIZES, BATCHES = ("Ti/16", "S/16", "B/16"), (1, 8)
MERGE = (30, 3)  # tokens, every so many layers: selected on 250 images with a real Ti/16
IN_FLOAT = ("blocks.7.mlp.down",)  # of a real Ti/16: the layer that causes nearly all of the loss in accuracy
EAGER, COMPILED, MERGED, ONNX, INT8, MERGED_INT8 = "eager", "compiled", "merged", "onnx", "int8", "merged int8"
FBGEMM = fbgemm.ENGINE
LOGITS = "logits"
FLOATS = (EAGER, COMPILED, ONNX)
ENGINES = {INT8: "onnxruntime", FBGEMM: "fbgemm"}  # of int8
OURS = (EAGER, COMPILED, MERGED, ONNX, *ENGINES, MERGED_INT8)
Ask = Callable[[int], None]  # runs a batch of this size


@dataclass(frozen=True)
class Row:
    """Ratios to the fastest peer's eager model, None if no peer is installed."""

    model: str
    batch: int
    images_per_second: dict[str, float]  # by path and by peer
    eager_ratio: float | None
    float_ratio: float | None  # the fastest of eager, compiled and onnx
    int8_ratio: float | None  # the faster of the two engines
    int8_engine: str | None  # the faster one
    merged_int8_ratio: float | None
    gemm_share: float  # fraction of the peak, by our eager model


@dataclass(frozen=True)
class Kept:
    """Accuracy of a path on real images, and its agreement with the eager model."""

    top1: float | None
    agreement: float


@dataclass(frozen=True)
class Speed:
    rows: list[Row]
    accuracy: dict[str, Kept] = field(default_factory=dict)  # by path, with real weights
    gigaflops: float = 0.0
    merge: tuple[int | str, int] = MERGE
    threads: int = 1
    rounds: int = 1


def speed(
    sizes: tuple[str, ...] = SIZES,
    batches: tuple[int, ...] = BATCHES,
    rounds: int = 30,
    compile: bool = True,
    merge: tuple[int | str, int] = MERGE,
    weights: str | None = None,
    data: str | None = None,
    progress: Progress | None = None,
) -> Speed:
    """Run the benchmark. ``weights``: of a Ti/16, whose predictions on the images of ``data`` are compared."""
    for name in sizes:
        if name not in SIZES:
            raise VitrailError(f"the size must be one of {', '.join(SIZES)}, got {name!r}")
    if weights is not None and data is None:
        raise VitrailError("weights are evaluated on images; name some with --data")
    torch.manual_seed(0)
    tell, rows, peak, found = progress or (lambda what, done, total: None), [], 0.0, {}
    for size in sizes:
        real = weights if size == "Ti/16" else None
        tell(f"building the paths of {size}", 0, None)
        tried = None
        if real is not None:
            model = load(real)
            tried = trial(model, data, 250, progress)
        else:
            model = _fresh(size)
        paths = Paths(model, tried, merge, compile)
        if tried is not None:
            found = paths.kept(tried)
        assert isinstance(model.config, ViTConfig)
        peers = {name: _by_torch(peer, model.config.image) for name, peer in models(model.config, ASKED).items()}
        for batch in batches:
            rivals: dict[str, Callable[[], int]] = {name: _turn(ask, batch) for name, ask in {**paths.asks, **peers}.items()}
            rates = in_turns({**rivals, "peak": _product}, rounds, lambda _, done, of: tell(f"{size}, batch {batch}", done, of))  # noqa: B023
            peak = max(peak, 2 * SQUARE**3 * rates.pop("peak"))
            rows.append(_row(size, batch, rates, tuple(peers), cost(model.config).macs))
    rows = [_shared(row, peak) for row in rows]
    return Speed(rows, found, round(peak / 1e9, 1), merge, torch.get_num_threads(), rounds)


class Paths:
    """The inference paths of a model."""

    def __init__(self, model: Model, tried: Trial | None, merge: tuple[int | str, int], compile: bool) -> None:
        self.size = model.config.image
        pictures = _noise(32, self.size) if tried is None else tried.pictures[1::4]
        merged = faster(model, merge=merge[0], every=merge[1])
        with torch.inference_mode(False):
            graphs = {
                ONNX: graph_of(model),
                INT8: _int8(model, pictures),
                MERGED_INT8: _int8(merged, pictures),
            }
        self.sessions = {name: Session(graph.SerializeToString()) for name, graph in graphs.items()}
        self.models: dict[str, Model] = {EAGER: model, MERGED: merged}
        if fbgemm.there():
            with torch.inference_mode(False):
                self.models[FBGEMM] = fbgemm.in_eight_bits(evened(model, pictures), IN_FLOAT)
        if compile:
            self.models[COMPILED] = compiled(model)
        self.asks: dict[str, Ask] = {name: _by_torch(each, self.size) for name, each in self.models.items()}
        self.asks |= {name: _by_session(each, self.size) for name, each in self.sessions.items()}
        self.preprocess = preprocess_of(model)

    def kept(self, tried: Trial) -> dict[str, Kept]:
        answers = {
            name: np.concatenate([session(some, LOGITS) for some in _parts(tried.pictures)])
            for name, session in self.sessions.items()
        }
        for name, model in self.models.items():
            if name != COMPILED:
                engine = TorchEngine(model)
                answers[name] = np.concatenate([engine.logits(some) for some in _parts(tried.pictures)])
        first, known = answers[EAGER].argmax(1), tried.labels >= 0
        return {
            name: Kept(
                float((rows.argmax(1) == tried.labels)[known].mean()) if known.any() else None,
                float((rows.argmax(1) == first).mean()),
            )
            for name, rows in answers.items()
        }


def _fresh(size: str) -> Model:
    config = variant(size, gelu="exact")  # as in the other libraries
    model = build(config).eval()
    model.preprocess = vit_preprocess(config.image)
    return model


def _int8(model: Model, pictures: UInt8[ndarray, "n height width c"]) -> Any:
    graph = eight_bits(model, pictures, "static")
    return graph.made(tuple(layer for layer in graph.layers if layer not in IN_FLOAT))


def _by_torch(model: nn.Module, size: tuple[int, int]) -> Ask:
    model.eval()
    images: dict[int, Tensor] = {}

    @torch.inference_mode()
    def ask(count: int) -> None:
        model(images.setdefault(count, torch.randn(count, 3, *size)))

    return ask


def _by_session(session: Session, size: tuple[int, int]) -> Ask:
    pictures: dict[int, ndarray] = {}

    def ask(count: int) -> None:
        session(pictures.setdefault(count, _noise(count, size)), LOGITS)

    return ask


def _turn(ask: Ask, batch: int) -> Callable[[], int]:
    """Return a turn of as many calls as fill ``TURN_SECONDS``, counted once after a warm-up."""
    ask(batch)
    began = time.perf_counter()
    ask(batch)
    count = max(round(SLICE / (time.perf_counter() - began)), 1)

    def turn() -> int:
        for _ in range(count):
            ask(batch)
        return count * batch

    return turn


def _row(size: str, batch: int, rates: dict[str, float], peers: tuple[str, ...], macs: int) -> Row:
    best = max((rates[peer] for peer in peers), default=0.0)

    def ratio(*paths: str) -> float | None:
        found = [rates[path] for path in paths if path in rates]
        return round(max(found) / best, 3) if best and found else None

    rounded = {name: round(rate, 2) for name, rate in rates.items()}
    chosen = max((path for path in ENGINES if path in rates), key=lambda path: rates[path], default=None)
    return Row(
        size,
        batch,
        rounded,
        eager_ratio=ratio(EAGER),
        float_ratio=ratio(*FLOATS),
        int8_ratio=ratio(*ENGINES),
        int8_engine=None if chosen is None else ENGINES[chosen],
        merged_int8_ratio=ratio(MERGED_INT8),
        gemm_share=rates[EAGER] * 2 * macs,
    )


def _shared(row: Row, peak: float) -> Row:
    return Row(**{**vars(row), "gemm_share": round(row.gemm_share / peak, 3)})


def _parts(pictures: UInt8[ndarray, "n height width c"]) -> Iterator[ndarray]:
    for start in range(0, len(pictures), 8):
        yield pictures[start : start + 8]


def _noise(count: int, size: tuple[int, int]) -> UInt8[ndarray, "n height width c"]:
    return np.random.default_rng(0).integers(0, 256, (count, *size, 3), np.uint8)


def _product() -> int:
    one = torch.ones(SQUARE, SQUARE)
    torch.mm(one, one, out=torch.empty(SQUARE, SQUARE))
    return 1
