"""``vitrail bench token-merging``: accuracy against speed, by merging tokens, by dropping patches, by smaller images.

Accuracy is that of ``vitrail.evaluation`` on the dataset. Speed is that of the model alone on one batch, as a ratio to the
plain model, timed interleaved with it in one process, best of several.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vitrail.bench.interleaved_timing import best_of_interleaved
from vitrail.data.sources.dataset import DatasetSplits, Progress
from vitrail.errors import VitrailError
from vitrail.evaluation.evaluate import evaluate
from vitrail.evaluation.leakage import open_for_evaluation
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import Model
from vitrail.models.config import Pair, ViTConfig
from vitrail.models.cost import cost
from vitrail.models.cost.token_merging import merged_macs
from vitrail.models.speedups import speed_up
from vitrail.models.vit import ViT
from vitrail.plot.canvas import Figure
from vitrail.plot.line_chart import line_chart
from vitrail.weights.load import load, quiet_loading

MERGE_COUNTS = (0, 2, 4, 6, 8, 10, 13)
DROP_FRACTIONS = (0.1, 0.2, 0.3, 0.4)
SIZE_FRACTIONS = (0.86, 0.72, 0.57)  # fractions of each side, rounded to whole patches
SPEEDUP_NAMES = {"merge": "merged tokens", "drop": "dropped patches", "image": "smaller images"}


@dataclass(frozen=True)
class TokenMergingRow:
    """One speed-up; the plain model is the first row."""

    speedup: str  # merge, drop or image
    value: float  # tokens per layer, fraction of the patches, or pixels of the shorter side
    top1: float
    num_correct: int
    agreement: float  # fraction of the images with the plain model's prediction
    images_per_second: float
    speed: float  # ratio to the plain model
    macs_ratio: float  # ratio of the plain model's multiplications


@dataclass(frozen=True)
class TokenMergingCurve:
    rows: tuple[TokenMergingRow, ...]
    num_images: int
    batch_size: int
    threads: int
    rounds: int


def benchmark_token_merging(
    source: str,
    data: DatasetSplits | str,
    counts: Sequence[int] = MERGE_COUNTS,
    drops: Sequence[float] = DROP_FRACTIONS,
    images: Sequence[Pair] | None = None,
    batch_size: int = 8,
    rounds: int = 5,
    split: str | None = None,
    progress: Progress | None = None,
) -> TokenMergingCurve:
    """Run the benchmark. ``images`` None: three smaller sizes. Invalid settings are refused before any work."""
    plain = load(source)
    if not isinstance(plain, ViT):
        raise VitrailError("a ResNet has no tokens to merge; name a Vision Transformer or a hybrid")
    data = open_for_evaluation(data, TorchPredictor(plain), progress)
    models: dict[tuple[str, float], Model] = {("merge", 0): plain}
    models |= {("merge", count): speed_up(plain, merge_tokens=count) for count in counts if count}
    models |= {("drop", fraction): speed_up(plain, drop_patches=fraction) for fraction in drops if fraction}
    with quiet_loading():  # the report of a new size, which is intended here
        sizes = smaller_sizes(plain.config) if images is None else images
        models |= {("image", min(size)): load(source, image=size) for size in sizes if size != plain.config.image}
    speeds = _measure_speeds(models, batch_size, rounds, progress)
    rows: list[TokenMergingRow] = []
    plain_predicted = None
    for done, (key, model) in enumerate(models.items()):
        if progress:
            progress("evaluating", done, len(models))
        evaluation = evaluate(model, data, split, batch_size=batch_size)
        predicted = evaluation.predictions.predicted
        plain_predicted = predicted if plain_predicted is None else plain_predicted
        num_correct = int((predicted == evaluation.predictions.labels).sum())
        agreement = (predicted == plain_predicted).double().mean().item()
        ratio = speeds[key] / speeds["merge", 0]
        rows.append(
            TokenMergingRow(
                *key, evaluation.top1, num_correct, agreement, speeds[key], ratio, _macs_ratio(plain.config, *key, model)
            )
        )
    assert plain_predicted is not None
    return TokenMergingCurve(tuple(rows), len(plain_predicted), batch_size, torch.get_num_threads(), rounds)


def smaller_sizes(config: ViTConfig) -> list[Pair]:
    """Return sizes that the patches divide, each once; none if the positions cannot be resized."""
    if config.position == "relative":
        return []
    sides = [
        tuple(
            max(round(fraction * side / step), 1) * step for side, step in zip(config.image, config.patch_stride, strict=True)
        )
        for fraction in SIZE_FRACTIONS
    ]
    return list(dict.fromkeys((side[0], side[1]) for side in sides if side != config.image))


def plot_curve(curve: TokenMergingCurve) -> Figure:
    """Plot accuracy over speed: the higher and the further to the right, the better the trade-off."""
    lines: dict[str, list[tuple[float, float]]] = {}
    captions: dict[str, list[tuple[str, str] | None]] = {}
    for speedup, name in SPEEDUP_NAMES.items():
        rows = [row for row in curve.rows[1:] if row.speedup == speedup]
        if rows:
            plain = None if captions else ("plain", describe_row(curve.rows[0]))  # all lines start there
            lines[name] = [(row.speed, row.top1) for row in (curve.rows[0], *rows)]
            captions[name] = [plain, *((format_amount(row), describe_row(row)) for row in rows)]
    title = f"Accuracy against speed, {curve.num_images:,} images, batch {curve.batch_size}"
    return line_chart(title, "top-1", "speed relative to the plain model", lines, percent=True, captions=captions)


def format_amount(row: TokenMergingRow) -> str:
    """Return the value in a few letters."""
    return f"{row.value:.0%}" if row.speedup == "drop" else f"{row.value:g}{' px' if row.speedup == 'image' else ''}"


def describe_row(row: TokenMergingRow) -> str:
    """Describe the row, with its accuracy and speed."""
    names = {"merge": f"{row.value:g} tokens merged per layer", "drop": f"{row.value:.0%} of the patches dropped"}
    label = "plain" if row.speedup == "merge" and not row.value else names.get(row.speedup, f"images of {row.value:g} pixels")
    return f"{label}: {row.top1:.1%}, {row.speed:.2f} x"


def _measure_speeds(
    models: dict[tuple[str, float], Model], batch_size: int, rounds: int, progress: Progress | None
) -> dict[tuple[str, float], float]:
    contestants = {f"{speedup} {value}": _contestant(model, batch_size) for (speedup, value), model in models.items()}
    best_of_interleaved(contestants, 1)  # warm-up
    best = best_of_interleaved(contestants, rounds, progress)
    return {(speedup, value): best[f"{speedup} {value}"] for speedup, value in models}


def _contestant(model: Model, batch_size: int) -> Callable[[], int]:
    images = torch.randn(batch_size, model.config.channels, *model.config.image)

    def work() -> int:
        with torch.inference_mode():
            return model(images).shape[0]

    return work


def _macs_ratio(config: ViTConfig, speedup: str, value: float, model: Model) -> float:
    whole = cost(config).macs
    if speedup == "image":
        return whole / cost(model.config).macs
    return whole / merged_macs(config, int(value) if speedup == "merge" else 0, value if speedup == "drop" else 0.0)
