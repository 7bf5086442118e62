"""``vitrail.predict``: classify images, preprocessed as in the model's own evaluation.

Probabilities are the softmax of the logits or, for a model trained with the sigmoid loss, the sigmoid of each. b images,
k classes.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from vitrail.data.batch_transforms import BatchTransform, TransformedBatch
from vitrail.data.loader import Loader, build_eval_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.inference.features import require_preprocess
from vitrail.inference.inputs import ImageLike, ImageList, as_image_list
from vitrail.models.build import Model
from vitrail.tasks.classification import ClassProbability
from vitrail.weights.load import load

DEFAULT_TOP_K, DEFAULT_BATCH_SIZE = 5, 32


@dataclass(frozen=True)
class Prediction:
    """Prediction for one image. ``label`` and ``probability`` repeat the first of ``top``; an unusable image has ``error``."""

    file: str
    label: str | None = None
    probability: float | None = None
    top: tuple[ClassProbability, ...] = ()
    error: str | None = None


def predict(
    model: Model | str | Path,
    images: Iterable[ImageLike],
    top_k: int = DEFAULT_TOP_K,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
) -> list[Prediction]:
    """Predict labels and probabilities of files, bytes, PIL images or arrays (h w c or h w, uint8), in their order.

    ``model`` is a model, or what ``vitrail.load`` reads. A bad image is a prediction with an error and affects no other.
    """
    items = as_image_list(images)
    return list(iter_predictions(model, items, top_k, batch_size, workers)) if items else []


def iter_predictions(
    model: Model | str | Path,
    images: Iterable[ImageLike],
    top_k: int = DEFAULT_TOP_K,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
) -> Generator[Prediction, None, None]:
    """Yield predictions while the next images are read; errors other than bad images are raised at once."""
    source = ImageList(as_image_list(images))
    if top_k < 1:
        raise VitrailError(f"top_k must be at least 1, got {top_k}; try top_k=5")
    model = load(model) if isinstance(model, str | Path) else model
    preprocess = require_classifier(model)
    loader = build_eval_loader(source, preprocess, batch_size)
    transform = _CollectErrors(loader.transform)
    return _predict_batches(model, replace(loader, transform=transform), source, transform.read_errors, top_k, workers)


@dataclass(frozen=True)
class _CollectErrors:
    """Transform that collects read errors: here they are part of the result, neither logged nor counted."""

    transform: BatchTransform
    read_errors: dict[int, str] = field(default_factory=dict)

    @property
    def preprocess(self) -> Preprocess:
        return self.transform.preprocess

    def __call__(self, dataset: Dataset, epochs: ndarray, indices: ndarray) -> TransformedBatch:
        transformed = self.transform(dataset, epochs, indices)
        self.read_errors.update(transformed.read_errors)
        return TransformedBatch(transformed.images, transformed.readable, {})


def _predict_batches(
    model: Model, loader: Loader, source: ImageList, read_errors: dict[int, str], top_k: int, workers: int | None
) -> Generator[Prediction, None, None]:
    class_names = model.class_names or tuple(str(number) for number in range(model.config.classes))
    was_training, sigmoid = model.training, model.metadata.get("recipe", {}).get("loss") == "sigmoid"
    model.eval()
    try:
        for step, batch in enumerate(loader.batches(workers=workers)):
            ranked = _top_classes(_logits(model, batch.images), class_names, top_k, sigmoid) if batch.images.shape[0] else []
            by_index = dict(zip(batch.indices.tolist(), ranked, strict=True))
            for index in loader.sampler.batch_indices(step)[1].tolist():
                where = source.describe(index)
                if index in read_errors:
                    yield Prediction(where, error=read_errors.pop(index).removeprefix(f"{where}: "))
                elif first := by_index[index][:1]:
                    yield Prediction(where, first[0].label, first[0].probability, by_index[index])
                else:
                    yield Prediction(where, error="makes the model's logits non-finite (NaN/Inf)")
    finally:
        model.train(was_training)


@torch.inference_mode()
def _logits(model: Model, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
    weight = next(model.parameters())
    return model(images.to(weight.device, weight.dtype)).float().cpu()


def _top_classes(
    logits: Float[Tensor, "b k"], class_names: Sequence[str], top_k: int, sigmoid: bool
) -> list[tuple[ClassProbability, ...]]:
    """Return the most probable classes, of equal ones the first; none if a logit is not finite."""
    order = logits.argsort(dim=1, descending=True, stable=True)[:, :top_k]
    probabilities = (logits.double().sigmoid() if sigmoid else logits.double().softmax(dim=1)).gather(1, order)
    return [
        tuple(ClassProbability(class_names[number], probability) for number, probability in zip(numbers, row, strict=True))
        if finite
        else ()
        for numbers, row, finite in zip(order.tolist(), probabilities.tolist(), logits.isfinite().all(1).tolist(), strict=True)
    ]


def require_classifier(model: Model) -> Preprocess:
    if not model.config.classes:
        raise VitrailError("the model has no classifier (classes=0); add one first: vitrail finetune RUN DATA")
    return require_preprocess(model)
