"""A small model and a dataset on disk, for tests of the commands that compute features."""

from pathlib import Path

import torch

from tests.data import pictures as drawn
from tests.small import vit
from vitrail.data.preprocess import Preprocess
from vitrail.weights.checkpoint import save


def prepared(root: Path) -> None:
    """Save ``model``, ``bare`` (without a head), and the dataset ``set`` with three splits of three classes."""
    model = vit()
    model.preprocess = Preprocess((12, 15))
    save(model, root / "model")
    torch.manual_seed(1)
    bare = vit(classes=0)
    bare.preprocess = Preprocess((12, 15))
    save(bare, root / "bare")
    for split, count, first in (("train", 7, 0), ("val", 4, 100), ("test", 3, 200)):
        drawn.classes(root / "set" / split, {"ant": count, "bee": count + 1, "cat": count}, first)
