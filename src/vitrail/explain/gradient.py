"""Gradient-based explanations of a class: attention weighted by the gradient of its logit, Grad-CAM, integrated gradients.

``relevance`` is the rule of Chefer, Gur and Wolf for self-attention (2021, "Generic attention-model explainability"): R begins
as the identity and grows by the positive part of gradient times weights, mean over heads, in every layer. ``gradient_rollout``
rolls the same matrices out. ``gradcam`` is Grad-CAM (Selvaraju et al. 2017) on the tokens that enter a layer's attention.
``integrated_gradients`` (Sundararajan, Taly and Yan 2017) are taken at the patch embeddings. ``logit_lens`` applies the head
after every block (nostalgebraist 2020). b images, s states between the layers, h heads, t tokens, n patches, k classes, y and x
the grid.
"""

from itertools import repeat

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.attention import (
    as_vit,
    check_indices,
    count_tokens,
    eval_mode,
    pad_pooled_prefix,
    pooling_weights,
    to_grid,
    visit_states,
)
from vitrail.explain.merged_tokens import TokenMembership, copy_to_patches, split_over_patches, track_merging
from vitrail.explain.region import RegionClassifier
from vitrail.explain.rollout import RolloutAccumulator
from vitrail.layers.tap import record_activations
from vitrail.layers.token_merging import gather_tokens
from vitrail.models.vit import ViT

ClassIndices = Int[Tensor, " b"] | None  # None: the predicted class


def relevance(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: ClassIndices = None
) -> Float[Tensor, "b y x"]:
    """Return each patch's contribution to the class through attention, without the identity of the residual."""
    return _pooled_relevance(as_vit(model), images, classes, normalise=False)


def gradient_rollout(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: ClassIndices = None
) -> Float[Tensor, "b y x"]:
    """Roll out the same matrices with rows normalised to one; what passes along the residual alone is left out too."""
    return _pooled_relevance(as_vit(model), images, classes, normalise=True)


def gradcam(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: ClassIndices = None, layer: int = -1
) -> Float[Tensor, "b y x"]:
    """Return the channels weighted by their mean gradient over the patches, summed, the positive part."""
    vit = as_vit(model)
    (number,) = check_indices("layer", [layer], len(vit.blocks))
    recorded: list[Tensor] = []
    hook = vit.blocks[number].attention.register_forward_pre_hook(lambda _, inputs: recorded.append(inputs[0]))  # type: ignore[union-attr]
    try:
        with eval_mode(vit), track_merging(vit) as membership:
            score = _class_score(vit, images, classes)
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(score, recorded)
    tokens = gradient.shape[1] if membership else count_tokens(vit, images)  # without those that a head adds
    channels = gradient[:, vit.config.prefix_tokens : tokens].mean(dim=1, keepdim=True)
    cam = (recorded[0][:, :tokens] * channels).sum(-1).relu().detach()
    return to_grid(vit, images, copy_to_patches(cam, membership[number]) if membership else cam)


def integrated_gradients(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: ClassIndices = None, steps: int = 16
) -> Float[Tensor, "b y x"]:
    """Return each patch's contribution on the path from a grey image to this one, the positive part."""
    return signed_integrated_gradients(model, images, classes, steps).relu().unflatten(1, as_vit(model).grid(images))


def signed_integrated_gradients(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: ClassIndices = None, steps: int = 16
) -> Float[Tensor, "b n"]:
    """Return the mean gradient along the straight path from grey, times the change of each patch embedding.

    With enough steps the sum is the class's logit minus that of grey; patches that are evidence against it are negative.
    """
    vit = as_vit(model)
    grid, kept = vit.grid(images), vit.kept_patches(images)
    with torch.no_grad(), eval_mode(vit):
        target = vit(images).argmax(dim=1) if classes is None else classes.to(images.device)
        grey, embedded = vit.embed_patches(torch.zeros_like(images)), vit.embed_patches(images)
    total = torch.zeros_like(embedded)
    for step in range(steps):
        x = torch.lerp(grey, embedded, (step + 0.5) / steps).requires_grad_()
        with torch.enable_grad(), eval_mode(vit):
            logits = vit.head(vit.encode_and_pool(x if kept is None else gather_tokens(x, kept), grid, kept))
        total += torch.autograd.grad(_sum_class_logits(vit, logits, target), x)[0]
    return ((embedded - grey) * total).sum(dim=-1) / steps


@torch.no_grad()
def logit_lens(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "s b k"]:
    """Return the logits of the head before the first block and after each; the last row is the model's output."""
    vit = as_vit(model)
    if not has_logit_lens(vit) and vit.config.classes:
        raise VitrailError("the head reads more than the last block, so it cannot be applied after each; leave the lens out")
    states: list[Tensor] = []
    with eval_mode(vit), track_merging(vit) as membership, visit_states(vit, states.append):
        vit.features(images)
        sizes = [members.sum(dim=-1) for members in membership] if membership else repeat(None)
        pooled = [vit.pool(vit.norm(x), size) for x, size in zip(states, sizes, strict=False)]
        return torch.stack([vit.head(vit.pooled_norm(x)) for x in pooled])


def has_logit_lens(vit: ViT) -> bool:
    """Whether the model has a head, and it can be applied to what any block returns."""
    return bool(vit.config.classes) and (not isinstance(vit, RegionClassifier) or vit.reads_last_block)


def _gradient_weighted_attention(
    vit: ViT, images: Tensor, classes: ClassIndices
) -> tuple[list[Float[Tensor, "b _ _"]], Float[Tensor, "b t"] | None, TokenMembership]:
    """Return the positive part of gradient times weights of every layer, mean over heads; and of an attention pooling."""
    recorded: list[Tensor] = []
    patterns = ["blocks.*.attention.weights", *(["pool.weights"] if vit.config.pool == "map" else [])]

    def keep(weights: Tensor) -> Tensor:
        recorded.append(weights)
        return weights

    with eval_mode(vit), track_merging(vit) as membership, record_activations(vit, *patterns, transform=keep):
        score = _class_score(vit, images, classes)
    gradients = torch.autograd.grad(score, recorded)
    weighted = [(weights * gradient).relu().mean(dim=1).detach() for weights, gradient in zip(recorded, gradients, strict=True)]
    for layer, members in enumerate(membership[:-1]):  # a token's gradient is the sum over its patches, which attend equally
        weighted[layer] = weighted[layer] / members.sum(dim=-1, keepdim=True).to(weighted[layer].dtype)
    if vit.config.pool != "map":
        return weighted, None, membership
    last = pad_pooled_prefix(vit, weighted[-1][:, 0])
    return weighted[:-1], split_over_patches(last, membership[-1]) if membership else last, membership


def _pooled_relevance(vit: ViT, images: Tensor, classes: ClassIndices, normalise: bool) -> Float[Tensor, "b y x"]:
    """Return what reaches the pooled tokens through attention. An attention pooling also weights what the residual carries."""
    layers, last, membership = _gradient_weighted_attention(vit, images, classes)
    accumulator = RolloutAccumulator(membership, normalise)
    for mixing in layers:
        accumulator.multiply(mixing)
    attended, residual = accumulator.attended_and_residual
    weights = pooling_weights(vit, images) if last is None else last
    tokens = weights.shape[1]
    result = (weights[:, None] @ attended[:, :tokens, :tokens])[:, 0]
    if last is not None:
        result = result + (last * residual if residual.ndim == 2 else (last[:, None] @ residual)[:, 0])
    return to_grid(vit, images, result)


def _class_score(vit: ViT, images: Tensor, classes: ClassIndices) -> Tensor:
    with torch.enable_grad():
        logits = vit(images.detach().requires_grad_())  # so that there is a gradient even if all weights are frozen
        target = logits.argmax(dim=1) if classes is None else classes.to(logits.device)
        return _sum_class_logits(vit, logits, target)


def _sum_class_logits(vit: ViT, logits: Float[Tensor, "b k"], target: Int[Tensor, " b"]) -> Tensor:
    """Return the sum of the images' class logits: images do not interact, so their gradients do not mix."""
    if not vit.config.classes:
        raise VitrailError("a model without a head (classes=0) has no classes; load it with its head")
    with torch.enable_grad():
        return logits.gather(1, target[:, None]).sum()
