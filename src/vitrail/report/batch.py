"""A preprocessed and augmented batch of a dataset as a contact sheet."""

from dataclasses import dataclass

from PIL import Image

from vitrail.augment.policy import Policy
from vitrail.data.loader import Batch, Loader, evaluation, training
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.source import Data, Source
from vitrail.errors import VitrailError
from vitrail.report.pictures import restored, sheet

USUAL = (224, 224)


@dataclass(frozen=True)
class Drawn:
    sheet: Image.Image
    indices: list[int]
    labels: list[str]
    image: tuple[int, int]


def draw_batch(
    data: Data, split: str, policy: Policy, image: tuple[int, int] | None, batch: int, step: int, seed: int
) -> Drawn:
    """Draw a batch: train images augmented as in training, validation and test images as in evaluation."""
    source = data.splits[split]
    if not len(source):
        there = [name for name, part in data.splits.items() if len(part)]
        raise VitrailError(f"{data.name} has no {split} split; try --split {there[0] if there else 'train'}")
    loader = _loader(source, split, policy, image, batch, seed)
    made = loader.batch(step)
    how = loader.view.preprocess
    labels = _captions(source, made)
    return Drawn(sheet(restored(made.images, how.mean, how.std), labels), made.indices.tolist(), labels, how.image)


def _loader(source: Source, split: str, policy: Policy, image: tuple[int, int] | None, batch: int, seed: int) -> Loader:
    """Build a loader without a model to set the image size: small images keep theirs, others get the default."""
    first = source.content(0)
    channels = 1 if not isinstance(first, bytes) and first.shape[2] == 1 else 3
    native = (first.shape[0], first.shape[1]) if not isinstance(first, bytes) and max(first.shape[:2]) <= 96 else USUAL
    how = Preprocess(image or native, mean=(0.5,) * channels, std=(0.5,) * channels)
    return training(source, how, batch, policy, seed) if split == "train" else evaluation(source, how, batch)


def _captions(source: Source, batch: Batch) -> list[str]:
    def name(label: int) -> str:
        return source.names[label] if 0 <= label < len(source.names) else ""

    if batch.others is None or batch.share is None:
        return [name(label) for label in batch.labels.tolist()]
    both = zip(batch.labels.tolist(), batch.others.tolist(), batch.share.tolist(), strict=True)
    return [_mixed(name(own), name(other), share) for own, other, share in both]


def _mixed(own: str, other: str, share: float) -> str:
    """Return the caption of a mixed image, the larger part first; a part below half a percent is left out."""
    (most, first), (least, second) = sorted([(share, own), (1 - share, other)], reverse=True)
    return first if least < 0.005 or first == second else f"{most:.0%} {first}, {least:.0%} {second}"
