"""View of the model itself, independent of an image: patch filters, position similarity, attention distance and entropy.

c channels, l layers, h heads, n filters, p and q the sides of a patch, y, x a grid position and v, u another.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from vitrail.explain.attention import as_vit
from vitrail.explain.embeddings import patch_filters, position_similarity
from vitrail.explain.head_statistics import head_statistics
from vitrail.models.build import Model
from vitrail.studio.forward_trace import Metadata, NamedArrays, check_finite_arrays, to_float32_array


def model_view(model: Model, batches: Sequence[Float[Tensor, "_ c height width"]]) -> tuple[Metadata, NamedArrays]:
    """Return filters, position similarity and head statistics on these images; without images, no head statistics."""
    vit = as_vit(model)
    arrays = {"filters": to_float32_array(patch_filters(vit))}
    if vit.config.position != "none":
        arrays["position_similarity"] = to_float32_array(position_similarity(vit))
    num_images = 0
    if len(batches):
        statistics = head_statistics(vit, iter(batches))
        num_images = statistics.num_images
        arrays |= {
            "distance": to_float32_array(statistics.distance),
            "renormalised": to_float32_array(statistics.renormalised),
            "entropy": to_float32_array(statistics.entropy),
            "head_similarity": to_float32_array(statistics.similarity),
        }
    metadata = {
        "position": vit.config.position,
        "filters_of": "stem" if vit.config.stem else "patch",
        "images": num_images,
        "stride": list(vit.config.patch_stride),
    }
    return metadata, check_finite_arrays(arrays)
