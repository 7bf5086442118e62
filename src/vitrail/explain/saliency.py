"""Saliency maps: one per method, all of one shape, none below zero. b images, q queries, t tokens, y and x the patch grid."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError, did_you_mean
from vitrail.explain.attention import pooled_attention, pooling_weights, to_grid
from vitrail.explain.gradient import ClassIndices, gradcam, gradient_rollout, integrated_gradients, relevance
from vitrail.explain.rollout import rollout

SaliencyMethod = Callable[[nn.Module, Tensor, ClassIndices], Tensor]


def saliency(
    model: nn.Module, images: Float[Tensor, "b c height width"], method: str = "relevance", classes: ClassIndices = None
) -> Float[Tensor, "b y x"]:
    """Return the map of one of ``SALIENCY_METHODS``. Attention and rollout are the same for every class."""
    if method not in SALIENCY_METHODS:
        raise VitrailError(
            f"there is no method {method!r}; there are {', '.join(SALIENCY_METHODS)}{did_you_mean(method, SALIENCY_METHODS)}"
        )
    return SALIENCY_METHODS[method](model, images, classes)


def last_attention_map(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: ClassIndices = None
) -> Float[Tensor, "b y x"]:
    """Return the attention of the pooled tokens in the last layer, mean over heads."""
    return to_grid(model, images, pooled_attention(model, images, layers=[-1])[0].mean(dim=1))


def rollout_map(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: ClassIndices = None
) -> Float[Tensor, "b y x"]:
    """Return the attention rollout of the pooled tokens."""
    return to_grid(model, images, torch.einsum("bq,bqt->bt", pooling_weights(model, images), rollout(model, images)))


SALIENCY_METHODS: dict[str, SaliencyMethod] = {
    "attention": last_attention_map,
    "rollout": rollout_map,
    "gradient_rollout": gradient_rollout,
    "relevance": relevance,
    "gradcam": gradcam,
    "integrated_gradients": integrated_gradients,
}
CLASS_AGNOSTIC_METHODS = ("attention", "rollout")  # need no head
