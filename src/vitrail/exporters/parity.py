"""Compare an exported file with its model on the same images. n images, c channels, k classes."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float32, Num
from numpy import ndarray

from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.exporters.export_module import to_flexible
from vitrail.exporters.sample_images import SampleImages
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.models.build import Model
from vitrail.tasks.task import Task

LOGIT_TOLERANCE = 1e-3  # of the largest logit: float rounding stays a hundred times below, a wrong weight far above
BATCH_SIZE = 8


@dataclass(frozen=True)
class ParityReport:
    """The difference between the file's predictions and the model's."""

    num_images: int
    image_source: str  # which images
    real_images: bool
    max_difference: float  # the largest, of any logit
    max_logit: float  # the largest absolute logit
    agreement: float  # by the task: fraction of equal predictions; for features, their mean cosine similarity
    torch_top1: float | None = None  # on the images with known labels
    file_top1: float | None = None
    torch_map: float | None = None  # mean average precision, if images may have several labels and theirs are known
    file_map: float | None = None
    other_sizes_difference: float | None = None  # the largest difference at other image sizes, if the file accepts them
    features: bool = False  # the model has no classifier, so its features were compared
    agreement_title: str = "same top-1 prediction"  # what ``agreement`` is, in words

    @property
    def relative_difference(self) -> float:
        return max(self.max_difference, self.other_sizes_difference or 0.0) / max(self.max_logit, 1e-12)

    @property
    def accuracy_drop(self) -> float:
        """Accuracy or mAP lost; without labels, the fraction of changed predictions; for features, 1 - mean cosine."""
        for expected, actual in ((self.torch_top1, self.file_top1), (self.torch_map, self.file_map)):
            if expected is not None and actual is not None:
                return expected - actual
        return 1 - self.agreement


def compare_with_model(
    model: Model, predictor: Predictor, samples: SampleImages, dynamic: bool = False, progress: Progress | None = None
) -> ParityReport:
    """Run both on the same images and report the differences; the caller decides whether they are acceptable."""
    reference = TorchPredictor(model)
    expected = batched_outputs(reference, samples.images, progress, "running torch")
    if not np.isfinite(expected).all():
        raise VitrailError("the model's logits are not finite (NaN/Inf) on some images; its weights are damaged")
    logits = batched_outputs(predictor, samples.images, progress, "running the exported file")
    if logits.shape != expected.shape:
        raise VitrailError(f"the file has {logits.shape[1]} outputs per image, the model {expected.shape[1]}")
    single_difference = np.abs(predictor.outputs(samples.images[:1]) - expected[:1]).max()  # also as a batch of one
    report = ParityReport(
        num_images=len(expected),
        image_source=samples.description,
        real_images=samples.is_real,
        max_difference=float(max(np.abs(logits - expected).max(), single_difference)),
        max_logit=float(np.abs(expected).max()),
        agreement=compute_agreement(reference.task, logits, expected, reference.has_outputs),
        features=not reference.has_outputs,
        agreement_title=reference.task.agreement_title,
    )
    if (scores := labelled_scores(reference.task, logits, expected, samples)) is not None:
        actual, wanted = scores
        if samples.label_sets is None:
            report = replace(report, file_top1=actual, torch_top1=wanted)
        else:
            report = replace(report, file_map=actual, torch_map=wanted)
    return replace(report, other_sizes_difference=_other_sizes_difference(model, predictor, samples)) if dynamic else report


def require_parity(report: ParityReport, name: str, tolerance: float) -> None:
    """Refuse a file whose logits differ from the model's by more than the tolerance."""
    if not report.relative_difference <= tolerance:  # also refuses NaN
        raise VitrailError(
            f"the logits of {name} differ from the model's by {report.relative_difference:.2g} of the largest logit "
            f"on {report.image_source}, where {tolerance:g} is allowed, so it was removed; "
            "try another --to, or a larger --tolerance"
        )


def require_accuracy(report: ParityReport, name: str, max_drop: float) -> None:
    """Refuse a quantised file that loses more accuracy than allowed."""
    if not report.accuracy_drop <= max_drop + 1e-9 or not np.isfinite(report.max_difference):
        unit = " of feature cosine similarity" if report.features else "" if report.file_map is None else " of mAP"
        raise VitrailError(
            f"{name} loses {100 * report.accuracy_drop:.2f} points{unit} on {report.image_source}, where "
            f"{100 * max_drop:g} are allowed, so it was removed; try a larger --max-drop, or --to onnx"
        )


def compute_agreement(
    task: Task, outputs: Float32[ndarray, "n ..."], expected: Float32[ndarray, "n ..."], has_outputs: bool
) -> float:
    """Return how well outputs agree by the task of the model; for features, the mean cosine similarity."""
    actual, wanted = torch.from_numpy(outputs).double(), torch.from_numpy(expected).double()
    if has_outputs:
        return task.agreement(actual, wanted)
    return float(torch.nn.functional.cosine_similarity(actual, wanted, dim=1, eps=1e-12).mean())


def labelled_scores(
    task: Task, outputs: Float32[ndarray, "n ..."], expected: Float32[ndarray, "n ..."], samples: SampleImages
) -> tuple[float, float] | None:
    """Return the accuracy of a classifier's outputs and of the expected ones, of several labels the mAP; None without labels,
    or for another model."""
    if not task.has_classes or not task.model.classes:
        return None
    if samples.label_sets is not None:
        targets = torch.from_numpy(samples.label_sets)
        maps = [task.metrics(torch.from_numpy(scores), targets)[task.primary_metric] for scores in (outputs, expected)]
        return maps[0], maps[1]
    labelled = samples.labels >= 0
    if not labelled.any():
        return None
    correct = [(scores.argmax(1) == samples.labels)[labelled].mean() for scores in (outputs, expected)]
    return float(correct[0]), float(correct[1])


def batched_outputs(
    predictor: Predictor, images: Num[ndarray, "n height width c"], progress: Progress | None = None, description: str = ""
) -> Float32[ndarray, "n ..."]:
    batches = []
    for start in range(0, images.shape[0], BATCH_SIZE):
        batches.append(predictor.outputs(images[start : start + BATCH_SIZE]))
        if progress is not None:
            progress(description, min(start + BATCH_SIZE, images.shape[0]), images.shape[0])
    return np.concatenate(batches)


def _other_sizes_difference(model: Model, predictor: Predictor, samples: SampleImages) -> float:
    """Return the largest difference from the model at one smaller and one larger image size, neither square."""
    reference = TorchPredictor(to_flexible(model))
    (height, width), (stride_y, stride_x) = model.config.image, getattr(model.config, "patch_stride", (32, 32))
    worst = 0.0
    for size in ((height + stride_y, width + 2 * stride_x), (max(stride_y, height - stride_y), width + stride_x)):
        images = _tile(samples.images[:2], size)
        worst = max(worst, float(np.abs(predictor.outputs(images) - reference.outputs(images)).max()))
    return worst


def _tile(images: Num[ndarray, "b h w c"], size: tuple[int, int]) -> Num[ndarray, "b height width c"]:
    repeats = [1, *(-(-new // old) for new, old in zip(size, images.shape[1:3], strict=True)), 1]
    return np.tile(images, repeats)[:, : size[0], : size[1]]
