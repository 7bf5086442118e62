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

from vitrail.data.loader import Loader, evaluation
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.source import Source
from vitrail.data.view import Seen, View
from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.evaluate.given import Given, Picture, listed
from vitrail.models.build import Model
from vitrail.weights.load import load

TOP, BATCH = 5, 32


@dataclass(frozen=True)
class Guess:
    label: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """Prediction for one image. ``label`` and ``probability`` repeat the first of ``top``; an unusable image has ``error``."""

    file: str
    label: str | None = None
    probability: float | None = None
    top: tuple[Guess, ...] = ()
    error: str | None = None


def predict(
    model: Model | str | Path,
    pictures: Iterable[Picture],
    top: int = TOP,
    batch: int = BATCH,
    workers: int | None = None,
) -> list[Prediction]:
    """Predict labels and probabilities of files, bytes, PIL images or arrays (h w c or h w, uint8), in their order.

    ``model`` is a model, or what ``vitrail.load`` reads. A bad image is a prediction with an error and affects no other.
    """
    items = listed(pictures)
    return list(stream(model, items, top, batch, workers)) if items else []


def stream(
    model: Model | str | Path,
    pictures: Iterable[Picture],
    top: int = TOP,
    batch: int = BATCH,
    workers: int | None = None,
) -> Generator[Prediction, None, None]:
    """Yield predictions while the next images are read; errors other than bad images are raised at once."""
    source = Given(listed(pictures))
    if top < 1:
        raise VitrailError(f"top must be at least 1, got {top}; try top=5")
    model = load(model) if isinstance(model, str | Path) else model
    how = preprocessing(model)
    loader = evaluation(source, how, batch)
    noting = _Noting(loader.view)
    return _predictions(model, replace(loader, view=noting), source, noting.problems, top, workers)


@dataclass(frozen=True)
class _Noting:
    """Transform that collects read errors: here they are part of the result, neither logged nor counted."""

    view: View
    problems: dict[int, str] = field(default_factory=dict)

    @property
    def preprocess(self) -> Preprocess:
        return self.view.preprocess

    def __call__(self, source: Source, epochs: ndarray, indices: ndarray) -> Seen:
        seen = self.view(source, epochs, indices)
        self.problems.update(seen.problems)
        return Seen(seen.images, seen.kept, {})


def _predictions(
    model: Model, loader: Loader, source: Given, problems: dict[int, str], top: int, workers: int | None
) -> Generator[Prediction, None, None]:
    names = model.labels or tuple(str(number) for number in range(model.config.classes))
    was, alone = model.training, model.facts.get("recipe", {}).get("loss") == "sigmoid"
    model.eval()
    try:
        for step, batch in enumerate(loader.batches(workers=workers)):
            guesses = _guesses(_logits(model, batch.images), names, top, alone) if batch.images.shape[0] else []
            answered = dict(zip(batch.indices.tolist(), guesses, strict=True))
            for index in loader.order.at(step)[1].tolist():
                where = source.where(index)
                if index in problems:
                    yield Prediction(where, error=problems.pop(index).removeprefix(f"{where}: "))
                elif first := answered[index][:1]:
                    yield Prediction(where, first[0].label, first[0].probability, answered[index])
                else:
                    yield Prediction(where, error="makes the model's logits non-finite (NaN/Inf)")
    finally:
        model.train(was)


@torch.inference_mode()
def _logits(model: Model, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
    weight = next(model.parameters())
    return model(images.to(weight.device, weight.dtype)).float().cpu()


def _guesses(logits: Float[Tensor, "b k"], names: Sequence[str], top: int, alone: bool) -> list[tuple[Guess, ...]]:
    """Return the most probable classes, of equal ones the first; none if a logit is not finite."""
    order = logits.argsort(dim=1, descending=True, stable=True)[:, :top]
    shares = (logits.double().sigmoid() if alone else logits.double().softmax(dim=1)).gather(1, order)
    return [
        tuple(Guess(names[number], share) for number, share in zip(numbers, row, strict=True)) if sound else ()
        for numbers, row, sound in zip(order.tolist(), shares.tolist(), logits.isfinite().all(1).tolist(), strict=True)
    ]


def preprocessing(model: Model) -> Preprocess:
    if not model.config.classes:
        raise VitrailError("the model has no classifier (classes=0); add one first: vitrail finetune RUN DATA")
    return preprocess_of(model)
