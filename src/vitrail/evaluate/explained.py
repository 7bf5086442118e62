"""What a model sees in single pictures, as numbers: its answer, a map a method, every head's view, what each layer would say.

l layers, s states between them, h heads, k classes, t tokens, c channels, y and x the grid of patches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.evaluate.given import Given, Picture, listed
from vitrail.evaluate.predict import preprocessing
from vitrail.explain.attention import at_rest, attention, checked, reading
from vitrail.explain.distance import norms
from vitrail.explain.gradient import lens
from vitrail.explain.maps import METHODS, saliency
from vitrail.models.build import Model


@dataclass(frozen=True)
class Explained:
    """Of one picture. ``heads`` is what the pooled tokens look at, by layer and head."""

    file: str
    image: Float[Tensor, "c height width"]  # as the model takes it
    logits: Float[Tensor, " k"]
    target: int  # the class that is explained
    maps: dict[str, Float[Tensor, "y x"]]
    heads: Float[Tensor, "l h y x"]
    lens: Float[Tensor, "s k"]  # before the first block, and after each
    norms: Float[Tensor, "s t"]


def explained(
    model: Model, pictures: Sequence[Picture], methods: Sequence[str] | None = None, target: int | None = None
) -> Iterator[Explained]:
    """One after the other. ``target``: the class to explain; none: what the model says of each."""
    vit, how = checked(model), preprocessing(model)
    source = Given(listed(pictures))
    for index in range(len(source)):
        seen = Plain(how)(source, np.zeros(1, np.int64), np.array([index]))
        if seen.problems:
            where = source.where(index)
            raise VitrailError(f"the picture {where} {seen.problems[index].removeprefix(f'{where}: ')}; name another one")
        weight = next(vit.parameters())
        images = seen.images.to(weight.device, weight.dtype)
        with torch.no_grad(), at_rest(vit):
            logits = vit(images)[0]
        if not logits.isfinite().all():
            raise VitrailError(
                f"the model answers {source.where(index)} with something that is no number; are its weights whole?"
            )
        wanted = int(logits.argmax()) if target is None else target
        which = torch.tensor([wanted], device=images.device)
        maps = {name: saliency(vit, images, name, which)[0].cpu() for name in methods or METHODS}
        answer, said, long = logits.cpu(), lens(vit, images)[:, 0].cpu(), norms(vit, images)[:, 0].cpu()
        yield Explained(source.where(index), images[0].cpu(), answer, wanted, maps, _heads(model, images), said, long)


def _heads(model: Model, images: Tensor) -> Float[Tensor, "l h y x"]:
    """The class token's rows in one pass; of all patches a layer at a time, so that no more than one is held."""
    vit = checked(model)
    rows, _ = vit.grid(images)
    if vit.config.pool == "cls":
        found = attention(vit, images, queries=[0])[:, 0, :, 0]
    else:
        read = reading(vit, images)[0]
        layers = (attention(vit, images, layers=[layer])[0, 0] for layer in range(len(vit.blocks)))
        found = torch.stack([torch.einsum("q,hqt->ht", read, weights) for weights in layers])
    return rearrange(found[..., vit.config.prefix :], "l h (y x) -> l h y x", y=rows).cpu()
