"""Few-shot section of a run's report: linear classification of its features from a few images per class.

It has to be cheap: it uses a tenth as many images as the run was trained on, a few thousand at most. A forward pass costs about
a third of a training step, so this is some 3 % of the run. n images.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset, DatasetSplits, select_images
from vitrail.errors import VitrailError
from vitrail.evaluation.fewshot import SHOTS, FewShotResult, fewshot_probe
from vitrail.inference.features import embed
from vitrail.report.html import html_table
from vitrail.system import select_device
from vitrail.weights.load import load

MAX_IMAGES = 3000  # images in total, half of them for training
MIN_IMAGES_PER_CLASS = 5  # training images per class


def fewshot_section(weights: Path, data: DatasetSplits, split: str, images_seen: int) -> Iterator[str]:
    """Yield the section, or nothing if it cannot be computed. ``images_seen``: images that the run was trained on."""
    try:
        results = fewshot_accuracies(weights, data, split, images_seen)
    except (VitrailError, OSError, RuntimeError, MemoryError):
        return
    if results:
        rows = [(f"{result.shots}", f"{result.accuracy:.2%}", f"{result.std:.2%}") for result in results]
        yield "<h2>Few-shot accuracy</h2>"
        yield (
            f"<p>Accuracy on {split} of a linear classifier on the features, trained on a few images per class: "
            "ridge regression in closed form, mean and standard deviation of three draws.</p>"
        )
        yield html_table(("#images per class", "#accuracy", "#standard deviation"), rows)


def fewshot_accuracies(weights: Path, data: DatasetSplits, split: str, images_seen: int) -> tuple[FewShotResult, ...]:
    """Compute few-shot accuracies for the numbers of shots that allow three different draws."""
    classes, half = len(data.class_names), min(MAX_IMAGES, images_seen // 10) // 2
    per_class = half // max(classes, 1)
    if split == "train" or classes < 2 or per_class < MIN_IMAGES_PER_CLASS:
        return ()
    indices = _sample_per_class(data.train.labels, per_class)
    shots = [count for count in SHOTS if 2 * count <= per_class or len(indices) == len(data.train)]
    model = load(weights).to(select_device("auto"))
    train, test = (
        embed(model, select_images(dataset, rows))
        for dataset, rows in ((data.train, indices), _random_subset(data.splits[split], half))
    )
    return fewshot_probe(train, test, classes, shots)


def _sample_per_class(labels: Int[ndarray, " n"], count: int) -> ndarray:
    """Return indices of up to ``count`` images of every class, by a fixed draw."""
    order = np.random.default_rng(0).permutation(len(labels))
    per_class = [order[labels[order] == label][:count] for label in range(int(labels.max(initial=-1)) + 1)]
    return np.sort(np.concatenate(per_class)) if per_class else order


def _random_subset(dataset: Dataset, count: int) -> tuple[Dataset, ndarray]:
    return dataset, np.sort(np.random.default_rng(0).permutation(len(dataset))[:count])
