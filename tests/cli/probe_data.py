"""A small model and a dataset on disk, for tests of the commands that compute features."""

from pathlib import Path

import torch

from tests.data import images as sample_images
from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.weights.save import save


def save_models_and_dataset(root: Path) -> None:
    """Save ``model``, ``bare`` (without a head), and the dataset ``set`` with three splits of three classes."""
    model = small_vit()
    model.preprocess = Preprocess((12, 15))
    save(model, root / "model")
    torch.manual_seed(1)
    bare = small_vit(classes=0)
    bare.preprocess = Preprocess((12, 15))
    save(bare, root / "bare")
    for split, count, first in (("train", 7, 0), ("val", 4, 100), ("test", 3, 200)):
        sample_images.write_class_folders(root / "set" / split, {"ant": count, "bee": count + 1, "cat": count}, first)
