"""``vitrail bench train-step``: images per second of a training step, against other libraries in their usual eager step.

Three shapes: the demo's own, a small model (192 wide, 6 layers, 65 tokens, batch 64), and S/16 at 224. The same loss and
the same optimiser (AdamW) for all; ours also clips the gradient and checks that it is finite, as in a run. In addition the
demo's own recipe (Muon, EMA weights) and, on request, ours compiled. The peak is that of large matrix products.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from vitrail.bench.interleaved_timing import GEMM_SIZE, best_of_interleaved, matrix_product, repeat_for
from vitrail.bench.reference_models import WEIGHT_DECAY, plain_train_step, reference_models
from vitrail.bench.reference_training import own_train_step
from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import Progress
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.models.variants import variant
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.recipe import Optim
from vitrail.recipes.registry import get_recipe

TURN_SECONDS = 0.5  # seconds of work per turn, so that other load affects all equally
OURS, OWN_RECIPE, COMPILED = "vitrail", "vitrail, its own recipe", "vitrail, compiled"


@dataclass(frozen=True)
class TrainSpeed:
    """Ratios to the fastest peer, None if no peer is installed; ``gemm_fraction`` is ours of the peak, by shape."""

    demo_ratio: float | None
    small_ratio: float | None
    s16_ratio: float | None
    gemm_fraction: dict[str, float]
    peers: dict[str, dict[str, float]]  # shape: library: images per second
    ours: dict[str, dict[str, float]]  # shape: which of ours: images per second
    gigaflops: float  # the peak
    threads: int
    rounds: int


@dataclass(frozen=True)
class BenchmarkShape:
    model: ViTConfig
    batch_size: int


def benchmark_shapes() -> dict[str, BenchmarkShape]:
    demo = get_recipe("demo", RecipeContext())
    assert isinstance(demo.model, ViTConfig)
    small = ViTConfig(width=192, depth=6, mlp=768, heads=3, patch=(4, 4), image=(32, 32), channels=3, classes=10, gelu="exact")
    s16 = variant("S/16", gelu="exact")  # as in the other libraries
    assert isinstance(s16, ViTConfig)
    return {
        "demo": BenchmarkShape(demo.model, demo.batch_size),
        "small": BenchmarkShape(small, 64),
        "s16": BenchmarkShape(s16, 16),
    }


def benchmark_train_step(
    rounds: int = 10, compiled: bool = False, names: tuple[str, ...] | None = None, progress: Progress | None = None
) -> TrainSpeed:
    torch.manual_seed(0)
    peak = 0.0
    ours: dict[str, dict[str, float]] = {}
    peer_speeds: dict[str, dict[str, float]] = {}
    flops_per_second: dict[str, float] = {}
    for name, shape in benchmark_shapes().items():
        if names is not None and name not in names:
            continue
        images = torch.randn(shape.batch_size, shape.model.channels, *shape.model.image)
        batch = Batch(images, torch.arange(shape.batch_size) % shape.model.classes, torch.arange(shape.batch_size))
        own_steps = _build_own_steps(name, shape, batch, compiled)
        peer_steps = {
            library: plain_train_step(model, batch.images, batch.targets)
            for library, model in reference_models(shape.model).items()
        }
        report = None if progress is None else _with_name(progress, name)
        speeds = best_of_interleaved(
            {**{key: repeat_for(TURN_SECONDS, step) for key, step in (own_steps | peer_steps).items()}, "peak": matrix_product},
            rounds,
            report,
        )
        peak = max(peak, 2 * GEMM_SIZE**3 * speeds["peak"])
        ours[name], peer_speeds[name] = {key: speeds[key] for key in own_steps}, {key: speeds[key] for key in peer_steps}
        flops_per_second[name] = speeds[OURS] * 3 * 2 * cost(shape.model).macs  # a backward pass is two forward passes

    def ratio(name: str) -> float | None:
        return round(ours[name][OURS] / max(peer_speeds[name].values()), 3) if peer_speeds.get(name) else None

    return TrainSpeed(
        ratio("demo"),
        ratio("small"),
        ratio("s16"),
        {name: round(flops / peak, 3) for name, flops in flops_per_second.items()},
        peer_speeds,
        ours,
        round(peak / 1e9, 1),
        torch.get_num_threads(),
        rounds,
    )


def _build_own_steps(name: str, shape: BenchmarkShape, batch: Batch, compiled: bool) -> dict[str, Callable[[], int]]:
    demo = get_recipe("demo", RecipeContext())
    channels = shape.model.channels
    preprocess = replace(demo.preprocess, image_size=shape.model.image, mean=(0.5,) * channels, std=(0.5,) * channels)
    plain = replace(
        demo,
        model=shape.model,
        preprocess=preprocess,
        batch_size=shape.batch_size,
        optim=Optim(weight_decay=WEIGHT_DECAY, grad_clip=1.0),
        ema_decay=None,
    )
    steps = {OURS: own_train_step(plain, batch)}
    if name == "demo":
        steps[OWN_RECIPE] = own_train_step(demo, batch)
    if compiled:
        steps[COMPILED] = own_train_step(replace(plain, compile=True), batch)
    return steps


def _with_name(progress: Progress, name: str) -> Progress:
    return lambda _, done, total: progress(f"measuring {name}", done, total)
