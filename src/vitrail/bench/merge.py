"""``vitrail bench token-merging``: accuracy against speed, by merging tokens, by dropping patches, by smaller images.

Accuracy is that of ``vitrail.evaluate`` on the dataset. Speed is that of the model alone on one batch, as a ratio to the plain
model, timed interleaved with it in one process, best of several.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vitrail.bench.turns import in_turns
from vitrail.data.sources.source import Data, Progress
from vitrail.errors import VitrailError
from vitrail.evaluate.caution import opened
from vitrail.evaluate.evaluate import measure
from vitrail.models.build import Model
from vitrail.models.cost import cost
from vitrail.models.cost_merged import merged_macs
from vitrail.models.faster import faster
from vitrail.models.settings import Pair, ViTConfig
from vitrail.models.vit import ViT
from vitrail.report.chart import chart
from vitrail.report.drawing import Drawing
from vitrail.weights.load import load, untold

COUNTS = (0, 2, 4, 6, 8, 10, 13)
DROPS = (0.1, 0.2, 0.3, 0.4)
SIZES = (0.86, 0.72, 0.57)  # fractions of each side, rounded to whole patches
WAYS = {"merge": "merged tokens", "drop": "dropped patches", "image": "smaller images"}


@dataclass(frozen=True)
class Row:
    """One speed-up; the plain model is the first row."""

    way: str  # merge, drop or image
    value: float  # tokens per layer, fraction of the patches, or pixels of the shorter side
    top1: float
    right: int
    same: float  # fraction of the images with the plain model's prediction
    images_per_second: float
    speed: float  # ratio to the plain model
    macs: float  # ratio of the plain model's multiplications


@dataclass(frozen=True)
class MergeCurve:
    rows: tuple[Row, ...]
    pictures: int
    batch: int
    threads: int
    rounds: int


def merge_curve(
    source: str,
    data: Data | str,
    counts: Sequence[int] = COUNTS,
    drops: Sequence[float] = DROPS,
    images: Sequence[Pair] | None = None,
    batch: int = 8,
    rounds: int = 5,
    split: str | None = None,
    progress: Progress | None = None,
) -> MergeCurve:
    """Run the benchmark. ``images`` None: three smaller sizes. Invalid settings are refused before any work."""
    plain = load(source)
    if not isinstance(plain, ViT):
        raise VitrailError("a ResNet has no tokens to merge; name a Vision Transformer or a hybrid")
    data = opened(data, plain, progress) if isinstance(data, str) else data
    models: dict[tuple[str, float], Model] = {("merge", 0): plain}
    models |= {("merge", count): faster(plain, merge=count) for count in counts if count}
    models |= {("drop", share): faster(plain, drop=share) for share in drops if share}
    with untold():  # the report of a new size, which is intended here
        sizes = smaller(plain.config) if images is None else images
        models |= {("image", min(size)): load(source, image=size) for size in sizes if size != plain.config.image}
    speeds = _speeds(models, batch, rounds, progress)
    found: list[Row] = []
    first = None
    for done, (key, model) in enumerate(models.items()):
        if progress:
            progress("evaluating", done, len(models))
        measured = measure(model, data, split, batch=batch)
        guesses = measured.answers.guesses
        first = guesses if first is None else first
        right = int((guesses == measured.answers.labels).sum())
        same = (guesses == first).double().mean().item()
        ratio = speeds[key] / speeds["merge", 0]
        found.append(Row(*key, measured.top1, right, same, speeds[key], ratio, _fewer(plain.config, *key, model)))
    assert first is not None
    return MergeCurve(tuple(found), len(first), batch, torch.get_num_threads(), rounds)


def smaller(config: ViTConfig) -> list[Pair]:
    """Return sizes that the patches divide, each once; none if the positions cannot be resized."""
    if config.position == "relative":
        return []
    sides = [
        tuple(max(round(share * side / step), 1) * step for side, step in zip(config.image, config.stride, strict=True))
        for share in SIZES
    ]
    return list(dict.fromkeys((side[0], side[1]) for side in sides if side != config.image))


def curve_drawing(found: MergeCurve) -> Drawing:
    """Plot accuracy over speed: the higher and the further to the right, the better the trade-off."""
    lines: dict[str, list[tuple[float, float]]] = {}
    captions: dict[str, list[tuple[str, str] | None]] = {}
    for way, words in WAYS.items():
        rows = [row for row in found.rows[1:] if row.way == way]
        if rows:
            plain = None if captions else ("plain", told(found.rows[0]))  # all lines start there
            lines[words] = [(row.speed, row.top1) for row in (found.rows[0], *rows)]
            captions[words] = [plain, *((amount(row), told(row)) for row in rows)]
    title = f"Accuracy against speed, {found.pictures:,} images, batch {found.batch}"
    return chart(title, "top-1", "speed relative to the plain model", lines, percent=True, captions=captions)


def amount(row: Row) -> str:
    """Return the value in a few letters."""
    return f"{row.value:.0%}" if row.way == "drop" else f"{row.value:g}{' px' if row.way == 'image' else ''}"


def told(row: Row) -> str:
    """Describe the row, with its accuracy and speed."""
    names = {"merge": f"{row.value:g} tokens merged per layer", "drop": f"{row.value:.0%} of the patches dropped"}
    what = "plain" if row.way == "merge" and not row.value else names.get(row.way, f"images of {row.value:g} pixels")
    return f"{what}: {row.top1:.1%}, {row.speed:.2f} x"


def _speeds(
    models: dict[tuple[str, float], Model], batch: int, rounds: int, progress: Progress | None
) -> dict[tuple[str, float], float]:
    rivals = {f"{way} {value}": _rival(model, batch) for (way, value), model in models.items()}
    in_turns(rivals, 1)  # warm-up
    best = in_turns(rivals, rounds, progress)
    return {(way, value): best[f"{way} {value}"] for way, value in models}


def _rival(model: Model, batch: int) -> Callable[[], int]:
    images = torch.randn(batch, model.config.channels, *model.config.image)

    def work() -> int:
        with torch.inference_mode():
            return model(images).shape[0]

    return work


def _fewer(config: ViTConfig, way: str, value: float, model: Model) -> float:
    whole = cost(config).macs
    if way == "image":
        return whole / cost(model.config).macs
    return whole / merged_macs(config, int(value) if way == "merge" else 0, value if way == "drop" else 0.0)
