"""``vitrail bench explain``: the cost of reading attention, as a ratio to one forward pass of the same image.

B/16 at 224, one image: all rows of the attention of all 144 heads; and the class token's rows alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vitrail.bench.interleaved_timing import best_of_interleaved
from vitrail.data.sources.dataset import Progress
from vitrail.explain.attention import attention
from vitrail.models.build import build
from vitrail.models.config import ViTConfig
from vitrail.models.variants import variant


@dataclass(frozen=True)
class ExplainSpeed:
    """Times in units of a forward pass."""

    heads_ratio: float
    class_ratio: float
    seconds: dict[str, float]  # forward, heads, class
    heads: int
    threads: int
    rounds: int


def benchmark_explain(rounds: int = 10, config: ViTConfig | None = None, progress: Progress | None = None) -> ExplainSpeed:
    model = build(config or variant("B/16")).eval()
    shape = model.config
    assert isinstance(shape, ViTConfig)
    images = torch.randn(1, shape.channels, *shape.image)

    def forward() -> int:
        with torch.no_grad():
            return model(images).shape[0]

    contestants: dict[str, Callable[[], int]] = {
        "forward": forward,
        "heads": lambda: attention(model, images).shape[1],
        "class": lambda: attention(model, images, queries=[0]).shape[1],
    }
    best_of_interleaved(contestants, 1)  # warm-up
    speeds = best_of_interleaved(contestants, rounds, progress)
    heads, rows = (round(speeds["forward"] / speeds[name], 3) for name in ("heads", "class"))
    seconds = {name: 1 / speed for name, speed in speeds.items()}
    return ExplainSpeed(heads, rows, seconds, shape.depth * shape.heads, torch.get_num_threads(), rounds)
