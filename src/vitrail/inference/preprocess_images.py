"""``vitrail.preprocess``: images as a model takes them, preprocessed as in its own evaluation. b images, c channels."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Num
from numpy import ndarray
from PIL import Image
from torch import Tensor, nn

from vitrail.data.batch_transforms import EvalTransform
from vitrail.data.decode import to_pil
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.image_like import describe_value, read_image_like
from vitrail.data.transforms import to_pixels
from vitrail.errors import VitrailError
from vitrail.inference.inputs import as_images
from vitrail.inference.predictor import require_preprocess
from vitrail.weights.load import load

T = TypeVar("T")


def preprocess(model: nn.Module | str | Path, images: Any) -> Float[Tensor, "b c height width"]:
    """Preprocess files, bytes, PIL images or arrays (h w c or h w), in their order; or one of them.

    ``model`` is a model, or what ``vitrail.load`` reads. Resized, cropped and normalised, on the model's device and in its
    precision: what ``model(images)`` and ``vitrail.explain`` take. Unlike in ``vitrail.predict``, a bad image is an error.
    """
    model = load(model) if isinstance(model, str | Path) else model
    if not isinstance(model, nn.Module):
        raise VitrailError(
            f"model must be a model or a path, got {describe_value(model)}; try vitrail.preprocess(model, images)"
        )
    source = as_images(images)
    if not len(source):
        raise VitrailError("there are no images to preprocess; name at least one")
    return preprocess_subset(model, source, range(len(source)))


def preprocess_subset(model: nn.Module, source: Dataset, indices: Sequence[int]) -> Float[Tensor, "b c height width"]:
    """Preprocess some of the images; the first bad one raises an error that names it."""
    transformed = EvalTransform(require_preprocess(model))(source, np.zeros(len(indices), np.int64), np.array(indices))
    for index, problem in transformed.read_errors.items():
        where = source.describe(index)
        name = where if where == f"image {index}" else f"the image {where}"
        raise VitrailError(f"{name} {problem.removeprefix(f'{where}: ')}; try another one")
    weight = next(model.parameters())
    return transformed.images.to(weight.device, weight.dtype)


def load_pixels(image: Any, config: Preprocess) -> Num[ndarray, "height width c"]:
    """Return an image as a predictor of this preprocessing takes it."""
    return _load(image, lambda content: to_pixels(content, config))


def load_image(image: Any) -> Image.Image:
    """Return an image upright and in full, before it is resized."""
    return _load(image, to_pil)


def _load(image: Any, convert: Callable[[bytes | ndarray], T]) -> T:
    try:
        return convert(read_image_like(image))
    except (OSError, VitrailError) as error:
        name = f"the image {os.fsdecode(image)}" if isinstance(image, str | os.PathLike) else "the image"
        raise VitrailError(f"{name} {str(error).removeprefix('the image ')}; try another one") from None
