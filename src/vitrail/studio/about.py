"""View of the model itself, independent of an image: patch filters, position similarity, attention distance and entropy.

c channels, l layers, h heads, n filters, p and q the sides of a patch, y, x a grid position and v, u another.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from vitrail.explain.attention import checked
from vitrail.explain.distance import heads
from vitrail.explain.similarity import filters, position_similarity
from vitrail.models.build import Model
from vitrail.studio.trace import Arrays, Facts, plain, sound


def about(model: Model, batches: Sequence[Float[Tensor, "_ c height width"]]) -> tuple[Facts, Arrays]:
    """Return filters, position similarity and head statistics on these images; without images, no head statistics."""
    vit = checked(model)
    arrays = {"filters": plain(filters(vit))}
    if vit.config.position != "none":
        arrays["position_similarity"] = plain(position_similarity(vit))
    pictures = 0
    if len(batches):
        found = heads(vit, iter(batches))
        pictures = found.pictures
        arrays |= {
            "distance": plain(found.distance),
            "renormalised": plain(found.renormalised),
            "entropy": plain(found.entropy),
            "head_similarity": plain(found.similarity),
        }
    facts = {
        "position": vit.config.position,
        "filters_of": "stem" if vit.config.stem else "patch",
        "images": pictures,
        "stride": list(vit.config.stride),
    }
    return facts, sound(arrays)
