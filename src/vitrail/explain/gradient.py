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
from vitrail.explain.attention import at_rest, checked, numbers, on_grid, reading
from vitrail.explain.held import Held, handed, holding, shared
from vitrail.explain.rollout import Rolled
from vitrail.layers.merge import taken
from vitrail.layers.tap import recording
from vitrail.models.vit import ViT

Classes = Int[Tensor, " b"] | None  # None: the predicted class


def relevance(model: nn.Module, images: Float[Tensor, "b c height width"], classes: Classes = None) -> Float[Tensor, "b y x"]:
    """Return each patch's contribution to the class through attention, without the identity of the residual."""
    vit = checked(model)
    layers, last, held = _weighed(vit, images, classes)
    return _read(vit, images, _rolled(layers, held, whole=False), last)


def gradient_rollout(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: Classes = None
) -> Float[Tensor, "b y x"]:
    """Roll out the same matrices with rows normalised to one; what passes along the residual alone is left out too."""
    vit = checked(model)
    layers, last, held = _weighed(vit, images, classes)
    return _read(vit, images, _rolled(layers, held, whole=True), last)


def gradcam(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: Classes = None, layer: int = -1
) -> Float[Tensor, "b y x"]:
    """Return the channels weighted by their mean gradient over the patches, summed, the positive part."""
    vit = checked(model)
    (number,) = numbers("layer", [layer], len(vit.blocks))
    seen: list[Tensor] = []
    hook = vit.blocks[number].attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))  # type: ignore[union-attr]
    try:
        with at_rest(vit), holding(vit) as held:
            score = _score(vit, images, classes)
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(score, seen)
    prefix = vit.config.prefix
    channels = gradient[:, prefix:].mean(dim=1, keepdim=True)
    found = (seen[0] * channels).sum(-1).relu().detach()
    return on_grid(vit, images, handed(found, held[number]) if held else found)


def integrated(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: Classes = None, steps: int = 16
) -> Float[Tensor, "b y x"]:
    """Return each patch's contribution on the path from a grey image to this one, the positive part."""
    return contributions(model, images, classes, steps).relu().unflatten(1, checked(model).grid(images))


def contributions(
    model: nn.Module, images: Float[Tensor, "b c height width"], classes: Classes = None, steps: int = 16
) -> Float[Tensor, "b n"]:
    """Return the mean gradient along the straight path from grey, times the change of each patch embedding.

    With enough steps the sum is the class's logit minus that of grey; patches that are evidence against it are negative.
    """
    vit = checked(model)
    grid, places = vit.grid(images), vit.places(images)
    with torch.no_grad(), at_rest(vit):
        which = vit(images).argmax(dim=1) if classes is None else classes.to(images.device)
        grey, there = vit.patches(torch.zeros_like(images)), vit.patches(images)
    total = torch.zeros_like(there)
    for step in range(steps):
        x = torch.lerp(grey, there, (step + 0.5) / steps).requires_grad_()
        with torch.enable_grad(), at_rest(vit):
            logits = vit.head(vit.gathered(x if places is None else taken(x, places), grid, places))
        total += torch.autograd.grad(_picked(vit, logits, which), x)[0]
    return ((there - grey) * total).sum(dim=-1) / steps


@torch.no_grad()
def lens(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "s b k"]:
    """Return the logits of the head before the first block and after each; the last row is the model's output."""
    vit = checked(model)
    states: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, output: states.append(output)) for block in vit.blocks]
    hooks.append(vit.blocks[0].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0])))
    try:
        with at_rest(vit), holding(vit) as held:
            vit.features(images)
            sizes = [there.sum(dim=-1) for there in held] if held else repeat(None)
            pooled = [vit.pool(vit.norm(x), size) for x, size in zip(states, sizes, strict=False)]
            return torch.stack([vit.head(vit.pooled_norm(x)) for x in pooled])
    finally:
        for hook in hooks:
            hook.remove()


def _weighed(
    vit: ViT, images: Tensor, classes: Classes
) -> tuple[list[Float[Tensor, "b _ _"]], Float[Tensor, "b t"] | None, Held]:
    """Return the positive part of gradient times weights of every layer, mean over heads; and of an attention pooling."""
    seen: list[Tensor] = []
    patterns = ["blocks.*.attention.weights", *(["pool.weights"] if vit.config.pool == "map" else [])]

    def keep(weights: Tensor) -> Tensor:
        seen.append(weights)
        return weights

    with at_rest(vit), holding(vit) as held, recording(vit, *patterns, keep=keep):
        score = _score(vit, images, classes)
    gradients = torch.autograd.grad(score, seen)
    mixed = [(weights * gradient).relu().mean(dim=1).detach() for weights, gradient in zip(seen, gradients, strict=True)]
    for layer, there in enumerate(held[:-1]):  # a token's gradient is the sum over its patches, which attend equally
        mixed[layer] = mixed[layer] / there.sum(dim=-1, keepdim=True).to(mixed[layer].dtype)
    if vit.config.pool != "map":
        return mixed, None, held
    last = nn.functional.pad(mixed[-1][:, 0], (vit.config.prefix, 0))
    return mixed[:-1], shared(last, held[-1]) if held else last, held


def _rolled(layers: list[Float[Tensor, "b _ _"]], held: Held, whole: bool) -> Rolled:
    rolled = Rolled(held, whole)
    for mixing in layers:
        rolled.multiply(mixing)
    return rolled


def _read(vit: ViT, images: Tensor, rolled: Rolled, last: Float[Tensor, "b t"] | None) -> Float[Tensor, "b y x"]:
    """Return what reaches the pooled tokens through attention. An attention pooling also weights what the residual carries."""
    mixed, straight = rolled.ends
    read = reading(vit, images) if last is None else last
    found = (read[:, None] @ mixed)[:, 0]
    if last is not None:
        found = found + (last * straight if straight.ndim == 2 else (last[:, None] @ straight)[:, 0])
    return on_grid(vit, images, found)


def _score(vit: ViT, images: Tensor, classes: Classes) -> Tensor:
    with torch.enable_grad():
        logits = vit(images.detach().requires_grad_())  # so that there is a gradient even if all weights are frozen
        which = logits.argmax(dim=1) if classes is None else classes.to(logits.device)
        return _picked(vit, logits, which)


def _picked(vit: ViT, logits: Float[Tensor, "b k"], which: Int[Tensor, " b"]) -> Tensor:
    """Return the sum of the images' class logits: images do not interact, so their gradients do not mix."""
    if not vit.config.classes:
        raise VitrailError("a model without a head (classes=0) has no classes; load it with its head")
    with torch.enable_grad():
        return logits.gather(1, which[:, None]).sum()
