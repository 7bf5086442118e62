"""Compare an exported file with its model on the same images. b images, c channels."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float32, Num
from numpy import ndarray
from torch import nn

from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.exporters.export_module import to_flexible
from vitrail.exporters.output_scores import OutputScorer, batch_size, output_scorer
from vitrail.exporters.sample_images import SampleImages
from vitrail.inference.exported_predictor import ExportedPredictor
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.models.build import get_encoder

DECODING_TOLERANCE = 1e-3  # of what follows from the outputs: probabilities, scores, pixels
LOGIT_TOLERANCE = 1e-3  # of the largest logit: float rounding stays a hundred times below, a wrong weight far above


@dataclass(frozen=True)
class ParityReport:
    """The difference between the file's predictions and the model's."""

    num_images: int
    image_source: str  # which images
    real_images: bool
    max_difference: float  # the largest, of any logit; of boxes, of their logits or distances, whichever is relatively larger
    max_logit: float  # the largest absolute logit, or distance
    agreement: float  # by the task: fraction of equal predictions; for features, their mean cosine similarity
    torch_top1: float | None = None  # on the images with known labels
    file_top1: float | None = None
    torch_map: float | None = None  # mean average precision, if images may have several labels and theirs are known
    file_map: float | None = None
    torch_miou: float | None = None  # mean IoU, if the masks of the images are known
    file_miou: float | None = None
    torch_ap: float | None = None  # average precision of boxes, if the objects in the images are known
    file_ap: float | None = None
    other_sizes_difference: float | None = None  # the largest difference at other image sizes, if the file accepts them
    features: bool = False  # the model has no classifier, so its features were compared
    agreement_title: str = "same top-1 prediction"  # what ``agreement`` is, in words

    @property
    def relative_difference(self) -> float:
        return max(self.max_difference, self.other_sizes_difference or 0.0) / max(self.max_logit, 1e-12)

    @property
    def accuracy_drop(self) -> float:
        """Accuracy, mAP, mean IoU or AP lost; without targets, the fraction of changed predictions; of features, 1 - cosine."""
        for expected, actual in (
            (self.torch_top1, self.file_top1),
            (self.torch_map, self.file_map),
            (self.torch_miou, self.file_miou),
            (self.torch_ap, self.file_ap),
        ):
            if expected is not None and actual is not None:
                return expected - actual
        return 1 - self.agreement


def compare_with_model(
    model: nn.Module, predictor: Predictor, samples: SampleImages, dynamic: bool = False, progress: Progress | None = None
) -> ParityReport:
    """Run both on the same images and report the differences; the caller decides whether they are acceptable."""
    reference, images = TorchPredictor(model), samples.images
    scorer = output_scorer(reference.task, samples, reference.has_outputs)
    single, expected_single = predictor.outputs(images[:1]), reference.outputs(images[:1])  # also as a batch of one
    if single.shape != expected_single.shape:
        raise VitrailError(f"the file has {single.shape[1]} outputs per image, the model {expected_single.shape[1]}")
    if isinstance(predictor, ExportedPredictor):
        _check_decoding(predictor, scorer, images[:2])
    differences = _differences(scorer, single, expected_single)
    largest = np.zeros_like(differences)
    reduced: list[tuple[Any, Any]] = []
    step = batch_size(single.size)
    for start in range(0, len(images), step):
        expected, outputs = (each.outputs(images[start : start + step]) for each in (reference, predictor))
        if not np.isfinite(expected).all():
            raise VitrailError("the model's logits are not finite (NaN/Inf) on some images; its weights are damaged")
        differences = np.maximum(differences, _differences(scorer, outputs, expected))
        largest = np.maximum(largest, _differences(scorer, expected, np.zeros_like(expected)))
        reduced.append((scorer.reduce(outputs, start), scorer.reduce(expected, start)))
        if progress is not None:
            progress("comparing the file with the model", min(start + step, len(images)), len(images))
    actual, wanted = (scorer.join(batches) for batches in zip(*reduced, strict=True))
    other_sizes = _other_sizes_differences(model, predictor, samples, scorer) if dynamic else None
    worst = int(np.argmax(np.maximum(differences, differences if other_sizes is None else other_sizes) / largest.clip(1e-12)))
    report = ParityReport(
        num_images=len(images),
        image_source=samples.description,
        real_images=samples.is_real,
        max_difference=float(differences[worst]),
        max_logit=float(largest[worst]),
        agreement=scorer.agreement(actual, wanted),
        other_sizes_difference=None if other_sizes is None else float(other_sizes[worst]),
        features=not reference.has_outputs,
        agreement_title=reference.task.agreement_title,
    )
    if (scores := scorer.scores(actual, wanted)) is not None:
        fields: dict[str, Any] = {f"file_{scorer.metric}": scores[0], f"torch_{scorer.metric}": scores[1]}
        report = replace(report, **fields)
    return report


def _differences(
    scorer: OutputScorer, outputs: Float32[ndarray, "b ..."], expected: Float32[ndarray, "b ..."]
) -> Float32[ndarray, " parts"]:
    """Return the largest difference of each part of the outputs; NaN if any is."""
    pairs = zip(scorer.parts(outputs), scorer.parts(expected), strict=True)
    return np.array([np.abs(actual - wanted).max() for actual, wanted in pairs], np.float32)


def _check_decoding(predictor: ExportedPredictor, scorer: OutputScorer, images: Num[ndarray, "b h w c"]) -> None:
    """Refuse a file whose other outputs do not follow from its first."""
    named = predictor.named_outputs(images)
    if np.isfinite(named[next(iter(named))]).all():
        difference = scorer.decoding_difference(named) if scorer.has_outputs else 0.0
        if not difference <= DECODING_TOLERANCE:
            first, *others = named
            raise VitrailError(
                f"{' and '.join(others)} in the file differ by {difference:.2g} from what follows from its {first}, so it was "
                "removed; try another --to"
            )


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
        metrics = {
            "mAP": report.file_map,
            "mean IoU": report.file_miou,
            "AP": report.file_ap,
            "feature cosine similarity": report.features or None,
        }
        unit = "".join(f" of {metric}" for metric, value in metrics.items() if value is not None)
        raise VitrailError(
            f"{name} loses {100 * report.accuracy_drop:.2f} points{unit} on {report.image_source}, where "
            f"{100 * max_drop:g} are allowed, so it was removed; try a larger --max-drop, or --to onnx"
        )


def _other_sizes_differences(
    model: nn.Module, predictor: Predictor, samples: SampleImages, scorer: OutputScorer
) -> Float32[ndarray, " parts"]:
    """Return the largest difference of each part at one smaller and one larger image size, neither square."""
    reference = TorchPredictor(to_flexible(model))
    config = get_encoder(model).config
    (height, width), (stride_y, stride_x) = config.image, getattr(config, "patch_stride", (32, 32))
    differences = []
    for size in ((height + stride_y, width + 2 * stride_x), (max(stride_y, height - stride_y), width + stride_x)):
        images = _tile(samples.images[:2], size)
        differences.append(_differences(scorer, predictor.outputs(images), reference.outputs(images)))
    return np.maximum(*differences)


def _tile(images: Num[ndarray, "b h w c"], size: tuple[int, int]) -> Num[ndarray, "b height width c"]:
    repeats = [1, *(-(-new // old) for new, old in zip(size, images.shape[1:3], strict=True)), 1]
    return np.tile(images, repeats)[:, : size[0], : size[1]]
