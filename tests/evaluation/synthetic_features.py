"""Synthetic features of overlapping classes, for tests."""

import numpy as np

from vitrail.inference.features import Features


def gaussian_features(count: int, classes: int = 5, width: int = 7, seed: int = 0, spread: float = 1.5) -> Features:
    """Return a Gaussian cloud per class around a centre that all seeds share, stretched differently along each axis."""
    centres = np.random.default_rng(99).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    values = (centres[labels] + spread * rng.normal(size=(count, width))) * np.linspace(0.5, 3, width) + 2
    return Features(values.astype(np.float32), labels.astype(np.int64), np.arange(count))
