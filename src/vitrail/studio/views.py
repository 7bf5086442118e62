"""Views besides the trace of an image: saliency maps, the effect of removing patches, one attention weight in numbers, and
the model itself.

c channels, t tokens, k classes, or the width of a head; y and x the grid.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import VitrailError, did_you_mean
from vitrail.explain.ablate import ablate, shuffle_permutation
from vitrail.explain.attention import as_vit, count_tokens, eval_mode, relative_bias
from vitrail.explain.embeddings import patch_filters, position_kind, position_similarity
from vitrail.explain.faithfulness import edge_map, faithfulness, random_map
from vitrail.explain.head_statistics import head_statistics
from vitrail.explain.merged_tokens import TokenMembership, copy_to_patches, track_merging
from vitrail.explain.saliency import CLASS_AGNOSTIC_METHODS, SALIENCY_METHODS, saliency
from vitrail.layers.position import RelativeKeys
from vitrail.layers.tap import record_activations
from vitrail.models.vit import ViT
from vitrail.studio.forward_trace import (
    NUM_TOP_CLASSES,
    Metadata,
    NamedArrays,
    check_finite_arrays,
    check_index,
    class_label,
    count_classes,
    resolve_target,
    to_float32_array,
    top_classes,
)
from vitrail.tasks.registry import class_probabilities

BASELINES = {"random": random_map, "edges": edge_map}  # maps that do not use the model


def saliency_with_curves(
    model: nn.Module, images: Float[Tensor, "1 c height width"], method: str, target: int | None = None
) -> tuple[Metadata, NamedArrays]:
    """Return a map by one of ``SALIENCY_METHODS`` or ``BASELINES``, and its deletion and insertion curves."""
    vit = as_vit(model)
    methods = [*SALIENCY_METHODS, *BASELINES]
    if method not in methods:
        raise VitrailError(f"there is no method {method[:40]!r}; there are {', '.join(methods)}{did_you_mean(method, methods)}")
    if not count_classes(vit):
        resolve_target(vit, target, images.new_zeros(0))
        return _saliency_without_head(vit, images, method)
    target_class = resolve_target(vit, target, _logits(vit, images))
    classes = torch.tensor([target_class], device=images.device)
    saliency_map = _compute_map(vit, images, method, classes)
    curves = faithfulness(vit, images, saliency_map, classes)
    arrays = check_finite_arrays(
        {
            "map": to_float32_array(saliency_map[0]),
            "deletion": to_float32_array(curves.deletion_curve[0]),
            "insertion": to_float32_array(curves.insertion_curve[0]),
        }
    )
    metadata = {
        "method": method,
        "target": target_class,
        "deletion_auc": curves.deletion_auc.item(),
        "insertion_auc": curves.insertion_auc.item(),
    }
    return metadata, arrays


def ablation_effect(
    model: nn.Module,
    images: Float[Tensor, "1 c height width"],
    patches: Sequence[int],
    mode: str,
    seed: int = 0,
    target: int | None = None,
) -> Metadata:
    """Return the probabilities with and without some patches; ``target`` is a class that is always included."""
    vit = as_vit(model)
    if not count_classes(vit):
        raise VitrailError("a model without a head (classes=0), or of another task, predicts no class; name a classifier")
    count = count_tokens(vit, images) - vit.config.prefix_tokens
    indices = [check_index("patches", patch, count) for patch in patches]
    logits_after = ablate(vit, images, indices, mode, seed)[0]
    before, after = class_probabilities(vit, _logits(vit, images)), class_probabilities(vit, logits_after)
    check_finite_arrays({"logits": to_float32_array(logits_after)})
    shown_classes = torch.maximum(before, after).argsort(descending=True, stable=True)[:NUM_TOP_CLASSES].tolist()
    if target is not None and check_index("class", target, len(before)) not in shown_classes:
        shown_classes.append(target)
    (prediction,) = top_classes(vit, after, 1)
    return {
        "permutation": shuffle_permutation(indices, count, seed) if mode == "shuffle" else None,
        "top": [
            {
                "class": class_index,
                "label": class_label(vit, class_index),
                "before": before[class_index].item(),
                "after": after[class_index].item(),
            }
            for class_index in shown_classes
        ],
        "prediction": prediction,
        "changed": prediction["class"] != int(before.argmax()),
        "tokens": count_tokens(vit, images) - (len(set(indices)) if mode == "drop" else 0),
    }


def attention_pair(
    model: nn.Module, images: Float[Tensor, "1 c height width"], layer: int, head: int, query: int, key: int
) -> Metadata:
    """Break down one weight of ``vitrail.explain.attention``: exp(``score`` - ``max_score``) / ``exp_sum``.

    The score is (``product`` + ``position_offset``) * ``scale`` + ``bias``. Query and key as in the dot product: normalised and
    rotated if the model does so. With token merging each patch has the key of its token; dropped patches have none.
    """
    vit = as_vit(model)
    layer, head = check_index("layer", layer, len(vit.blocks)), check_index("head", head, vit.config.heads)
    count = count_tokens(vit, images)
    query, key = check_index("query", query, count), check_index("key", key, count)
    q, k, exists = _queries_and_keys(vit, images, layer, head)
    for name, token in (("query", query), ("key", key)):
        if not exists[token]:
            raise VitrailError(f"the model drops the patch of {name} {token}, so it has no attention; try another")
    scale, product = q.shape[1] ** -0.5, q[query] @ k[key]
    adds_bias = vit.config.relative_axes or vit.config.relative_bias is not None
    offset = _position_offsets(vit, q, layer, head, query)[key]
    scores = _scores(vit, images, q, k, layer, head, query)
    if scores[key] == -torch.inf:
        raise VitrailError(
            f"key {key} is outside of the window of query {query} in layer {layer}, so it has no weight; try another"
        )
    reached = scores[F.pad(exists, (0, len(scores) - count), value=True)]  # keys of the padding of a window count too
    max_score = reached.max()
    exp_sum = (reached - max_score).exp().sum()
    numbers = {
        "product": product.item(),
        "position_offset": offset.item(),
        "scale": scale,
        "bias": (scores[key] - (product + offset) * scale).item() if adds_bias else 0.0,
        "score": scores[key].item(),
        "max_score": max_score.item(),
        "exp_sum": exp_sum.item(),
        "weight": ((scores[key] - max_score).exp() / exp_sum).item(),
    }
    if not torch.tensor(list(numbers.values())).isfinite().all():
        raise VitrailError("the attention of this image is not finite (NaN/Inf); check the model's weights")
    return {"layer": layer, "head": head, "query": query, "key": key, "q": q[query].tolist(), "k": k[key].tolist(), **numbers}


def model_view(model: nn.Module, batches: Sequence[Float[Tensor, "_ c height width"]]) -> tuple[Metadata, NamedArrays]:
    """Return filters, position similarity and head statistics on these images; without images, no head statistics."""
    vit = as_vit(model)
    arrays = {"filters": to_float32_array(patch_filters(vit))}
    if position_kind(vit.config) != "none":
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
        "position": position_kind(vit.config),
        "filters_of": "stem" if vit.config.stem else "patch",
        "images": num_images,
        "stride": list(vit.config.patch_stride),
    }
    return metadata, check_finite_arrays(arrays)


def _saliency_without_head(vit: ViT, images: Float[Tensor, "1 c height width"], method: str) -> tuple[Metadata, NamedArrays]:
    """Return a map of a model without a head: by attention only, and without curves."""
    if method not in (*CLASS_AGNOSTIC_METHODS, *BASELINES):
        raise VitrailError(
            f"{method} needs a class, and a model without a head (classes=0) predicts none; try "
            f"{' or '.join(CLASS_AGNOSTIC_METHODS)}"
        )
    arrays = check_finite_arrays({"map": to_float32_array(_compute_map(vit, images, method, None)[0])})
    return {"method": method, "target": None, "deletion_auc": None, "insertion_auc": None}, arrays


def _compute_map(vit: ViT, images: Tensor, method: str, classes: Tensor | None) -> Float[Tensor, "1 y x"]:
    return BASELINES[method](images, vit.grid(images)) if method in BASELINES else saliency(vit, images, method, classes)


@torch.no_grad()
def _logits(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Float[Tensor, " k"]:
    with eval_mode(vit):
        logits = vit(images)[0]
    check_finite_arrays({"logits": to_float32_array(logits)})
    return logits


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


@torch.no_grad()
def _scores(
    vit: ViT,
    images: Float[Tensor, "1 c height width"],
    q: Float[Tensor, "t k"],
    k: Float[Tensor, "t k"],
    layer: int,
    head: int,
    query: int,
) -> Float[Tensor, " e"]:
    """Return the scores of a query for all keys, those of padding last."""
    block: Any = vit.blocks[layer]
    scores: Tensor = block.attention.scores(q[None, None, [query]], k[None, None], vit.grid(images), [query], [head])[0, 0, 0]
    bias = relative_bias(vit, vit.grid(images), layer)
    if bias is None:
        return scores
    own = bias[head, query].to(q.dtype)
    return scores + F.pad(own, (0, scores.shape[0] - own.shape[0]))  # tokens that a head adds have none
