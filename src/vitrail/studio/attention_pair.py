"""One query-key pair in numbers: their dot product, and the softmax that turns it into an attention weight.

t tokens, k width of a head, c channels.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explain.attention import as_vit, eval_mode
from vitrail.explain.merged_tokens import TokenMembership, copy_to_patches, track_merging
from vitrail.layers.position import RelativeKeys
from vitrail.layers.tap import record_activations
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.studio.forward_trace import Metadata, check_index, count_tokens


def attention_pair(
    model: Model, images: Float[Tensor, "1 c height width"], layer: int, head: int, query: int, key: int
) -> Metadata:
    """Break down one weight of ``vitrail.explain.attention``: exp(``score`` - ``max_score``) / ``exp_sum``.

    Query and key as in the dot product: normalised and rotated if the model does so. With token merging each patch has the key
    of its token; dropped patches have none.
    """
    vit = as_vit(model)
    layer, head = check_index("layer", layer, len(vit.blocks)), check_index("head", head, vit.config.heads)
    count = count_tokens(vit, images)
    query, key = check_index("query", query, count), check_index("key", key, count)
    q, k, exists = _queries_and_keys(vit, images, layer, head)
    for name, token in (("query", query), ("key", key)):
        if not exists[token]:
            raise VitrailError(f"the model drops the patch of {name} {token}, so it has no attention; try another")
    scale = q.shape[1] ** -0.5
    offsets = _position_offsets(vit, q, layer, head, query)
    scores = (k @ q[query] + offsets) * scale
    max_score = scores[exists].max()
    exp_sum = (scores[exists] - max_score).exp().sum()
    numbers = {
        "product": (q[query] @ k[key]).item(),
        "position_offset": offsets[key].item(),
        "scale": scale,
        "score": scores[key].item(),
        "max_score": max_score.item(),
        "exp_sum": exp_sum.item(),
        "weight": ((scores[key] - max_score).exp() / exp_sum).item(),
    }
    if not torch.tensor(list(numbers.values())).isfinite().all():
        raise VitrailError("the attention of this image is not finite (NaN/Inf); check the model's weights")
    return {"layer": layer, "head": head, "query": query, "key": key, "q": q[query].tolist(), "k": k[key].tolist(), **numbers}


@torch.no_grad()
def _queries_and_keys(
    vit: ViT, images: Float[Tensor, "1 c height width"], layer: int, head: int
) -> tuple[Float[Tensor, "t k"], Float[Tensor, "t k"], Tensor]:
    """Return queries and keys of one head, in double precision, and a mask of the tokens that exist."""
    names = [f"blocks.{layer}.attention.queries", f"blocks.{layer}.attention.keys"]
    membership: TokenMembership
    with eval_mode(vit), track_merging(vit) as membership, record_activations(vit, *names) as activations:
        vit.features(images)
    q, k = (activations[name][0][:, head].double() for name in names)
    if membership:
        q, k = copy_to_patches(q, membership[layer]), copy_to_patches(k, membership[layer])
        return q[0], k[0], membership[layer][0].sum(dim=0) > 0
    return q[0], k[0], torch.ones(q.shape[1], dtype=torch.bool, device=q.device)


@torch.no_grad()
def _position_offsets(vit: ViT, q: Float[Tensor, "t k"], layer: int, head: int, query: int) -> Float[Tensor, " t"]:
    """Return what relative positions add to the dot products."""
    block: Any = vit.blocks[layer]
    relative = block.attention.relative
    if not isinstance(relative, RelativeKeys):
        return q.new_zeros(q.shape[0])
    return relative.row(head, query).double() @ q[query]
