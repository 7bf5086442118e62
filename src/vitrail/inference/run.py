"""Run a predictor over a dataset, batch by batch. n images of which b are readable."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from einops import rearrange
from jaxtyping import Float32, Int, Num
from numpy import ndarray

from vitrail.data.loader import Loader

RunImages = Callable[[Num[ndarray, "b height width c"]], Float32[ndarray, "b ..."]]  # ``outputs`` or ``features``


@dataclass(frozen=True)
class OutputBatch:
    """Outputs or features of the readable images of a batch."""

    values: Float32[ndarray, "b ..."]
    indices: Int[ndarray, " b"]  # in the dataset
    batch_indices: Int[ndarray, " n"]  # also of images that cannot be read


def iter_outputs(run: RunImages, loader: Loader, workers: int | None) -> Iterator[OutputBatch]:
    """Yield the outputs of every batch of a pixel loader; a batch without a readable image has none."""
    for step, batch in enumerate(loader.batches(workers=workers)):
        images = rearrange(batch.images, "n c h w -> n h w c").numpy()
        values = run(images) if len(images) else np.zeros((0, 0), np.float32)
        yield OutputBatch(values, batch.indices.numpy(), loader.sampler.batch_indices(step)[1])


def join_outputs(batches: list[OutputBatch]) -> tuple[Float32[ndarray, "b ..."], Int[ndarray, " b"]]:
    """Return the outputs of all readable images, and their indices."""
    filled = [batch for batch in batches if len(batch.indices)]
    if not filled:
        return np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
    return np.concatenate([batch.values for batch in filled]), np.concatenate([batch.indices for batch in filled])
