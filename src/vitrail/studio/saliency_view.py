"""Saliency maps with their deletion and insertion curves, and predictions without selected patches.

c channels, k classes, s steps, y and x the grid.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import VitrailError, did_you_mean
from vitrail.explain.ablate import ablate, shuffle_permutation
from vitrail.explain.attention import as_vit, eval_mode
from vitrail.explain.faithfulness import edge_map, faithfulness, random_map
from vitrail.explain.probabilities import class_probabilities
from vitrail.explain.saliency import CLASS_AGNOSTIC_METHODS, SALIENCY_METHODS, saliency
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.studio.forward_trace import (
    NUM_TOP_CLASSES,
    Metadata,
    NamedArrays,
    check_finite_arrays,
    check_index,
    class_label,
    count_tokens,
    resolve_target,
    to_float32_array,
    top_classes,
)

BASELINES = {"random": random_map, "edges": edge_map}  # maps that do not use the model


def saliency_with_curves(
    model: Model, images: Float[Tensor, "1 c height width"], method: str, target: int | None = None
) -> tuple[Metadata, NamedArrays]:
    """Return a map by one of ``SALIENCY_METHODS`` or ``BASELINES``, and its deletion and insertion curves."""
    vit = as_vit(model)
    methods = [*SALIENCY_METHODS, *BASELINES]
    if method not in methods:
        raise VitrailError(f"there is no method {method[:40]!r}{did_you_mean(method, methods)}; there are {', '.join(methods)}")
    if not vit.config.classes:
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
    model: Model,
    images: Float[Tensor, "1 c height width"],
    patches: Sequence[int],
    mode: str,
    seed: int = 0,
    target: int | None = None,
) -> Metadata:
    """Return the probabilities with and without some patches; ``target`` is a class that is always included."""
    vit = as_vit(model)
    if not vit.config.classes:
        raise VitrailError("a model without a head (classes=0) predicts no class; load it with its head")
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
