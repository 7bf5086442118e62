"""Peak memory to predict the mask of an image of 4000 x 3000 pixels: ``python -m scripts.tile_memory CLASSES [TILE]``.

A Ti/16 with random weights and an input of 224 x 224 predicts it in tiles of so many pixels, 224 by default, or ``none`` as a
whole. The peak is that of the process, as the system has counted it.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

import vitrail
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.vit import ViT
from vitrail.tasks.segmentation_model import LinearSegmenter


def make_model(classes: int) -> LinearSegmenter:
    encoder = build(vitrail.variant("Ti/16", image=224, classes=0))
    assert isinstance(encoder, ViT)
    encoder.preprocess, encoder.class_names = Preprocess((224, 224), 1.0, "stretch"), tuple(map(str, range(classes)))
    encoder.metadata = {"recipe": {"task": {"kind": "segmentation", "classes": classes}}}
    return LinearSegmenter(encoder, classes)


def peak() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main(classes: int, tile: str) -> None:
    model = make_model(classes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.jpg"
        colours = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(colours).resize((4000, 3000)).save(path)
        start = time.perf_counter()
        (prediction,) = vitrail.predict(model, [path], tile=tile if tile == "none" else int(tile))
        seconds = time.perf_counter() - start
    print(f"{classes} classes, tile {tile}: {prediction.mask.shape}, peak {peak():.0f} MB, {seconds:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "224")
