"""Compare an exported file with its model on the same images. n images, c channels, k classes."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, UInt8
from numpy import ndarray

from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.export.engine import Engine, TorchEngine
from vitrail.export.graph import flexible
from vitrail.export.trial import Trial
from vitrail.models.build import Model

TOLERANCE = 1e-3  # of the largest logit: float rounding stays a hundred times below, a wrong weight far above
BATCH = 8


@dataclass(frozen=True)
class Checked:
    """The difference between the file's predictions and the model's."""

    pictures: int
    what: str  # which images
    real: bool
    difference: float  # the largest, of any logit
    scale: float  # the largest absolute logit
    agreement: float  # fraction of images with the same top-1 prediction; for features, their mean cosine similarity
    torch_top1: float | None = None  # on the images with known labels
    file_top1: float | None = None
    other_sizes: float | None = None  # the largest difference at other image sizes, if the file accepts them
    features: bool = False  # the model has no classifier, so its features were compared

    @property
    def relative(self) -> float:
        return max(self.difference, self.other_sizes or 0.0) / max(self.scale, 1e-12)

    @property
    def drop(self) -> float:
        """Accuracy lost; without labels, the fraction of changed top-1 predictions; for features, 1 - mean cosine."""
        if self.torch_top1 is None or self.file_top1 is None:
            return 1 - self.agreement
        return self.torch_top1 - self.file_top1


def check(model: Model, engine: Engine, trial: Trial, dynamic: bool = False, progress: Progress | None = None) -> Checked:
    """Run both on the same images and report the differences; the caller decides whether they are acceptable."""
    reference = TorchEngine(model)
    want = answers(reference, trial.pictures, progress, "running torch")
    if not np.isfinite(want).all():
        raise VitrailError("the model's logits are not finite (NaN/Inf) on some images; its weights are damaged")
    got = answers(engine, trial.pictures, progress, "running the exported file")
    if got.shape != want.shape:
        raise VitrailError(f"the file has {got.shape[1]} outputs per image, the model {want.shape[1]}")
    alone = np.abs(engine.logits(trial.pictures[:1]) - want[:1]).max()  # also as a batch of one
    found = Checked(
        len(want), trial.what, trial.real, float(max(np.abs(got - want).max(), alone)), float(np.abs(want).max()),
        agreement(got, want, features=not model.config.classes), features=not model.config.classes,
    )  # fmt: skip
    known = trial.labels >= 0
    if known.any() and model.config.classes:
        right = [float((each.argmax(1) == trial.labels)[known].mean()) for each in (want, got)]
        found = replace(found, torch_top1=right[0], file_top1=right[1])
    return replace(found, other_sizes=_elsewhere(model, engine, trial)) if dynamic else found


def refuse(found: Checked, name: str, tolerance: float) -> None:
    """Refuse a file whose logits differ from the model's by more than the tolerance."""
    if not found.relative <= tolerance:  # also refuses NaN
        raise VitrailError(
            f"the logits of {name} differ from the model's by {found.relative:.2g} of the largest logit on {found.what}, where "
            f"{tolerance:g} is allowed, so it was removed; try another --to, or a larger --tolerance"
        )


def refuse_drop(found: Checked, name: str, max_drop: float) -> None:
    """Refuse a quantised file that loses more accuracy than allowed."""
    if not found.drop <= max_drop + 1e-9 or not np.isfinite(found.difference):
        of = " of feature cosine similarity" if found.features else ""
        raise VitrailError(
            f"{name} loses {100 * found.drop:.2f} points{of} on {found.what}, where {100 * max_drop:g} are allowed, "
            "so it was removed; try a larger --max-drop, or --to onnx"
        )


def agreement(got: Float32[ndarray, "n k"], want: Float32[ndarray, "n k"], features: bool) -> float:
    """Return the fraction of equal top-1 predictions; for features, the mean cosine similarity."""
    if not features:
        return float((got.argmax(1) == want.argmax(1)).mean())
    got, want = got.astype(np.float64), want.astype(np.float64)
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(want, axis=1)
    return float(((got * want).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())


def answers(
    engine: Engine, pictures: UInt8[ndarray, "n height width c"], progress: Progress | None = None, what: str = ""
) -> Float32[ndarray, "n k"]:
    rows = []
    for start in range(0, pictures.shape[0], BATCH):
        rows.append(engine.logits(pictures[start : start + BATCH]))
        if progress is not None:
            progress(what, min(start + BATCH, pictures.shape[0]), pictures.shape[0])
    return np.concatenate(rows)


def _elsewhere(model: Model, engine: Engine, trial: Trial) -> float:
    """Return the largest difference from the model at one smaller and one larger image size, neither square."""
    reference = TorchEngine(flexible(model))
    (high, wide), (down, across) = model.config.image, getattr(model.config, "stride", (32, 32))
    worst = 0.0
    for size in ((high + down, wide + 2 * across), (max(down, high - down), wide + across)):
        seen = _tiled(trial.pictures[:2], size)
        worst = max(worst, float(np.abs(engine.logits(seen) - reference.logits(seen)).max()))
    return worst


def _tiled(pictures: UInt8[ndarray, "b h w c"], size: tuple[int, int]) -> UInt8[ndarray, "b height width c"]:
    times = [1, *(-(-new // old) for new, old in zip(size, pictures.shape[1:3], strict=True)), 1]
    return np.tile(pictures, times)[:, : size[0], : size[1]]
