"""What an experiment has to know of the small pictures that it learns from."""

from dataclasses import dataclass

import numpy as np

from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import pictures
from vitrail.errors import VitrailError
from vitrail.models.settings import Pair

LARGEST = 64  # pixels a side that a training of minutes can afford
TINY = "panes:count=200,size=16"  # for a quick look


@dataclass(frozen=True)
class Small:
    """``image``: height and width, cut down to what the patches divide; ``count``: pictures to learn from."""

    data: str
    image: Pair
    channels: int
    classes: int
    count: int

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess(self.image, mean=(0.5,) * self.channels, std=(0.5,) * self.channels)

    @property
    def batch(self) -> int:
        """128, or what a tiny set can fill."""
        return min(128, 2 ** max((self.count // 4).bit_length() - 1, 0))


def small(data: str, multiple: int) -> Small:
    opened = pictures(data)
    pixels = opened.train.content(0) if len(opened.train) else None
    if not isinstance(pixels, np.ndarray) or max(pixels.shape[:2]) > LARGEST or min(pixels.shape[:2]) < multiple:
        raise VitrailError(
            f"the experiment takes pictures of {multiple} to {LARGEST} pixels that lie in memory, and {data} has others; "
            "try --data fashion, or --data panes:count=5000,size=32"
        )
    if len(opened.names) < 2:
        raise VitrailError(f"the experiment tells classes apart, and {data} has {len(opened.names)}; try --data fashion")
    image = pixels.shape[0] // multiple * multiple, pixels.shape[1] // multiple * multiple
    return Small(data, image, pixels.shape[2], len(opened.names), len(opened.train))
