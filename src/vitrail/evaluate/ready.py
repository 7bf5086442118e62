"""``vitrail.preprocess``: images as a model takes them, preprocessed as in its own evaluation. b images, c channels."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.data.decode import as_picture
from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.evaluate.given import Given, Picture, listed
from vitrail.models.build import Model


def prepare(model: Model, pictures: Iterable[Picture]) -> Float[Tensor, "b c height width"]:
    """Preprocess files, bytes, PIL images or arrays (h w c or h w, uint8), in their order.

    Resized, cropped and normalised, on the model's device and in its precision: what ``model(images)`` and ``vitrail.explain``
    take. Unlike in ``vitrail.predict``, a bad image is an error.
    """
    source = Given(listed(pictures))
    if not len(source):
        raise VitrailError("there are no images to preprocess; name at least one")
    return ready(model, source, range(len(source)))


def ready(model: Model, source: Given, indices: Sequence[int]) -> Float[Tensor, "b c height width"]:
    """Preprocess some of the images; the first bad one raises an error that names it."""
    seen = Plain(preprocess_of(model))(source, np.zeros(len(indices), np.int64), np.array(indices))
    for index, problem in seen.problems.items():
        where = source.where(index)
        name = where if where == f"image {index}" else f"the image {where}"
        raise VitrailError(f"{name} {problem.removeprefix(f'{where}: ')}; try another one")
    weight = next(model.parameters())
    return seen.images.to(weight.device, weight.dtype)


def opened(picture: Picture) -> Image.Image:
    """Return an image upright and in full, before it is resized."""
    try:
        return as_picture(Given(listed([picture])).content(0))
    except (OSError, VitrailError) as error:
        raise VitrailError(f"the image {str(error).removeprefix('the image ')}; try another one") from None
