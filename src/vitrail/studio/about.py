"""The model itself, whatever the picture: what it looks for, where patches think they are, how far its heads look.

c channels, l layers, h heads, n filters, p and q the sides of a patch, y, x a place in the grid and v, u another.
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
    """Heads are measured on these pictures; without any, the arrays that need them are left out."""
    vit = checked(model)
    arrays = {"filters": plain(filters(vit))}
    if vit.config.position != "none":
        arrays["similarity"] = plain(position_similarity(vit))
    pictures = 0
    if len(batches):
        found = heads(vit, iter(batches))
        pictures = found.pictures
        arrays |= {
            "distance": plain(found.distance),
            "renormalised": plain(found.renormalised),
            "entropy": plain(found.entropy),
            "alike": plain(found.similarity),
        }
    facts = {
        "position": vit.config.position,
        "filters_of": "stem" if vit.config.stem else "patch",
        "pictures": pictures,
        "stride": list(vit.config.stride),
    }
    return facts, sound(arrays)
