"""One query-key pair in numbers: their dot product, and the softmax that turns it into an attention weight.

t tokens, k width of a head, c channels.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explain.attention import at_rest, checked
from vitrail.explain.held import Held, handed, holding
from vitrail.layers.position import RelativeKeys
from vitrail.layers.tap import recording
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.studio.trace import Facts, number, tokens


def pair(model: Model, images: Float[Tensor, "1 c height width"], layer: int, head: int, query: int, key: int) -> Facts:
    """Break down one weight of ``vitrail.explain.attention``: exp(``score`` - ``max_score``) / ``exp_sum``.

    Query and key as in the dot product: normalised and rotated if the model does so. With token merging each patch has the key
    of its token; dropped patches have none.
    """
    vit = checked(model)
    layer, head = number("layer", layer, len(vit.blocks)), number("head", head, vit.config.heads)
    count = tokens(vit, images)
    query, key = number("query", query, count), number("key", key, count)
    q, k, there = _met(vit, images, layer, head)
    for name, token in (("query", query), ("key", key)):
        if not there[token]:
            raise VitrailError(f"the model drops the patch of {name} {token}, so it has no attention; try another")
    scale = q.shape[1] ** -0.5
    offsets = _offsets(vit, q, layer, head, query)
    scores = (k @ q[query] + offsets) * scale
    largest = scores[there].max()
    total = (scores[there] - largest).exp().sum()
    found = {
        "product": (q[query] @ k[key]).item(),
        "position_offset": offsets[key].item(),
        "scale": scale,
        "score": scores[key].item(),
        "max_score": largest.item(),
        "exp_sum": total.item(),
        "weight": ((scores[key] - largest).exp() / total).item(),
    }
    if not torch.tensor(list(found.values())).isfinite().all():
        raise VitrailError("the attention of this image is not finite (NaN/Inf); check the model's weights")
    return {"layer": layer, "head": head, "query": query, "key": key, "q": q[query].tolist(), "k": k[key].tolist(), **found}


@torch.no_grad()
def _met(
    vit: ViT, images: Float[Tensor, "1 c height width"], layer: int, head: int
) -> tuple[Float[Tensor, "t k"], Float[Tensor, "t k"], Tensor]:
    """Return queries and keys of one head, in double precision, and a mask of the tokens that exist."""
    names = [f"blocks.{layer}.attention.queries", f"blocks.{layer}.attention.keys"]
    held: Held
    with at_rest(vit), holding(vit) as held, recording(vit, *names) as seen:
        vit.features(images)
    q, k = (seen[name][0][:, head].double() for name in names)
    if held:
        q, k, there = handed(q, held[layer]), handed(k, held[layer]), held[layer][0].sum(dim=0) > 0
        return q[0], k[0], there
    return q[0], k[0], torch.ones(q.shape[1], dtype=torch.bool, device=q.device)


@torch.no_grad()
def _offsets(vit: ViT, q: Float[Tensor, "t k"], layer: int, head: int, query: int) -> Float[Tensor, " t"]:
    """Return what relative positions add to the dot products."""
    block: Any = vit.blocks[layer]
    relative = block.attention.relative
    if not isinstance(relative, RelativeKeys):
        return q.new_zeros(q.shape[0])
    return relative.of(head, query).double() @ q[query]
