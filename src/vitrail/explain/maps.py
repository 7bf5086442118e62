"""Saliency maps: one per method, all of one shape, none below zero. b images, q queries, t tokens, y and x the patch grid."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError, suggestion
from vitrail.explain.attention import on_grid, pooled_attention, reading
from vitrail.explain.gradient import Classes, gradcam, gradient_rollout, integrated, relevance
from vitrail.explain.rollout import rollout

Method = Callable[[nn.Module, Tensor, Classes], Tensor]


def saliency(
    model: nn.Module, images: Float[Tensor, "b c height width"], method: str = "relevance", classes: Classes = None
) -> Float[Tensor, "b y x"]:
    """Return the map of one of ``SALIENCY_METHODS``. Attention and rollout are the same for every class."""
    if method not in METHODS:
        raise VitrailError(f"there is no method {method!r}{suggestion(method, METHODS)}; there are {', '.join(METHODS)}")
    return METHODS[method](model, images, classes)


def last_attention(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: Classes = None
) -> Float[Tensor, "b y x"]:
    """Return the attention of the pooled tokens in the last layer, mean over heads."""
    return on_grid(model, images, pooled_attention(model, images, layers=[-1])[0].mean(dim=1))


def rolled_out(model: nn.Module, images: Float[Tensor, "b c height width"], classes: Classes = None) -> Float[Tensor, "b y x"]:
    """Return the attention rollout of the pooled tokens."""
    return on_grid(model, images, torch.einsum("bq,bqt->bt", reading(model, images), rollout(model, images)))


METHODS: dict[str, Method] = {
    "attention": last_attention,
    "rollout": rolled_out,
    "gradient_rollout": gradient_rollout,
    "relevance": relevance,
    "gradcam": gradcam,
    "integrated_gradients": integrated,
}
CLASSLESS = ("attention", "rollout")  # need no head
