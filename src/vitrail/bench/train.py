"""``vitrail bench train-step``: images per second of a training step, against other libraries in their usual eager step.

Three shapes: the demo's own, a small model (192 wide, 6 layers, 65 tokens, batch 64), and S/16 at 224. The same loss and
the same optimiser (AdamW) for all; ours also clips the gradient and checks that it is finite, as in a run. In addition the
demo's own recipe (Muon, EMA weights) and, on request, ours compiled. The peak is that of large matrix products.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from vitrail.bench.peers import DECAY, models, usual_step
from vitrail.bench.turns import in_turns
from vitrail.data.loader import Batch
from vitrail.data.sources.source import Progress
from vitrail.models.build import build
from vitrail.models.cost import cost
from vitrail.models.settings import ViTConfig
from vitrail.models.variants import variant
from vitrail.recipes.book import recipe
from vitrail.recipes.given import Given
from vitrail.tasks.classify import Classify
from vitrail.train.recipe import Optim, Recipe
from vitrail.train.state import fresh
from vitrail.train.step import train_step

SQUARE = 2048  # side of the matrices whose product gives the peak
SLICE = 0.5  # seconds of work per turn, so that other load affects all equally
OURS, OWN, COMPILED = "vitrail", "vitrail, its own recipe", "vitrail, compiled"


@dataclass(frozen=True)
class TrainSpeed:
    """Ratios to the fastest peer, None if no peer is installed; ``gemm_fraction`` is ours of the peak, by shape."""

    demo_ratio: float | None
    small_ratio: float | None
    s16_ratio: float | None
    gemm_share: dict[str, float]
    peers: dict[str, dict[str, float]]  # shape: library: images per second
    ours: dict[str, dict[str, float]]  # shape: which of ours: images per second
    gigaflops: float  # the peak
    threads: int
    rounds: int


@dataclass(frozen=True)
class Shape:
    model: ViTConfig
    batch: int


def shapes() -> dict[str, Shape]:
    own = recipe("demo", Given())
    assert isinstance(own.model, ViTConfig)
    small = ViTConfig(width=192, depth=6, mlp=768, heads=3, patch=(4, 4), image=(32, 32), channels=3, classes=10, gelu="exact")
    s16 = variant("S/16", gelu="exact")  # as in the other libraries
    assert isinstance(s16, ViTConfig)
    return {"demo": Shape(own.model, own.batch), "small": Shape(small, 64), "s16": Shape(s16, 16)}


def train_speed(
    rounds: int = 10, compiled: bool = False, only: tuple[str, ...] | None = None, progress: Progress | None = None
) -> TrainSpeed:
    torch.manual_seed(0)
    peak = 0.0
    ours: dict[str, dict[str, float]] = {}
    theirs: dict[str, dict[str, float]] = {}
    share: dict[str, float] = {}
    for name, shape in shapes().items():
        if only is not None and name not in only:
            continue
        images = torch.randn(shape.batch, shape.model.channels, *shape.model.image)
        batch = Batch(images, torch.arange(shape.batch) % shape.model.classes, torch.arange(shape.batch))
        mine = _ours(name, shape, batch, compiled)
        others = {library: usual_step(model, batch.images, batch.labels) for library, model in models(shape.model).items()}
        tell = None if progress is None else _named(progress, name)
        speeds = in_turns({**{key: _slice(step) for key, step in {**mine, **others}.items()}, "peak": _product}, rounds, tell)
        peak = max(peak, 2 * SQUARE**3 * speeds["peak"])
        ours[name], theirs[name] = {key: speeds[key] for key in mine}, {key: speeds[key] for key in others}
        share[name] = speeds[OURS] * 3 * 2 * cost(shape.model).macs  # a backward pass is two forward passes

    def ratio(name: str) -> float | None:
        return round(ours[name][OURS] / max(theirs[name].values()), 3) if theirs.get(name) else None

    return TrainSpeed(
        ratio("demo"),
        ratio("small"),
        ratio("s16"),
        {name: round(flops / peak, 3) for name, flops in share.items()},
        theirs,
        ours,
        round(peak / 1e9, 1),
        torch.get_num_threads(),
        rounds,
    )


def _ours(name: str, shape: Shape, batch: Batch, compiled: bool) -> dict[str, Callable[[], int]]:
    own = recipe("demo", Given())
    channels = shape.model.channels
    how = replace(own.preprocess, image=shape.model.image, mean=(0.5,) * channels, std=(0.5,) * channels)
    plain = replace(
        own, model=shape.model, preprocess=how, batch=shape.batch, optim=Optim(weight_decay=DECAY, clip=1.0), ema=None
    )
    found = {OURS: _step(plain, batch)}
    if name == "demo":
        found[OWN] = _step(own, batch)
    if compiled:
        found[COMPILED] = _step(replace(plain, compile=True), batch)
    return found


def _step(settings: Recipe, batch: Batch) -> Callable[[], int]:
    state, task = fresh(build(settings.model), settings), Classify(settings.model.classes)
    state.model.train()
    if settings.compile:
        state.model.compile()

    def step() -> int:
        state.step = settings.schedule.warmup  # where the learning rate is not zero
        train_step(state, task, batch, settings)
        return len(batch.labels)

    return step


def _slice(step: Callable[[], int]) -> Callable[[], int]:
    """Return a turn of as many steps as fill ``TURN_SECONDS``, counted once after a warm-up."""
    step()
    began = time.perf_counter()
    step()
    count = max(round(SLICE / (time.perf_counter() - began)), 1)
    return lambda: sum(step() for _ in range(count))


def _product() -> int:
    one = torch.ones(SQUARE, SQUARE)
    torch.mm(one, one, out=torch.empty(SQUARE, SQUARE))
    return 1


def _named(progress: Progress, name: str) -> Progress:
    return lambda _, done, total: progress(f"measuring {name}", done, total)
