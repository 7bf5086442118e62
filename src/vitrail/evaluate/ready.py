"""``vitrail.prepare``: pictures as a model takes them, made ready as its own evaluation does it. b pictures, c channels."""

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
    """Of files, of their bytes, of PIL pictures or of arrays (h w c or h w, uint8), in their order.

    Resized, cropped and normalised, on the model's device and in its precision: what ``model(images)`` and ``vitrail.explain``
    take. Unlike ``vitrail.predict``, a bad picture is an error.
    """
    source = Given(listed(pictures))
    if not len(source):
        raise VitrailError("there are no pictures to make ready; name at least one")
    return ready(model, source, range(len(source)))


def ready(model: Model, source: Given, indices: Sequence[int]) -> Float[Tensor, "b c height width"]:
    """Some of the pictures that were handed in; the first bad one is named."""
    seen = Plain(preprocess_of(model))(source, np.zeros(len(indices), np.int64), np.array(indices))
    for index, problem in seen.problems.items():
        where = source.where(index)
        name = where if where == f"picture {index}" else f"the picture {where}"
        raise VitrailError(f"{name} {problem.removeprefix(f'{where}: ')}; name another one")
    weight = next(model.parameters())
    return seen.images.to(weight.device, weight.dtype)


def opened(picture: Picture) -> Image.Image:
    """One of them upright and whole, before it is resized."""
    try:
        return as_picture(Given(listed([picture])).content(0))
    except (OSError, VitrailError) as error:
        raise VitrailError(f"the picture {str(error).removeprefix('the picture ')}; name another one") from None
