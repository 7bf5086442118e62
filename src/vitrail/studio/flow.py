"""Saliency maps with their deletion and insertion curves, and predictions without selected patches.

c channels, k classes, s steps, y and x the grid.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import VitrailError, suggestion
from vitrail.explain.ablate import ablate, order
from vitrail.explain.attention import at_rest, checked
from vitrail.explain.faithfulness import edge_map, faithfulness, random_map
from vitrail.explain.maps import CLASSLESS, METHODS, saliency
from vitrail.explain.odds import odds
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.studio.trace import TOP, Arrays, Facts, explained_class, label, number, plain, sound, tokens, top

BASELINES = {"random": random_map, "edges": edge_map}  # maps that do not use the model


def flow(
    model: Model, images: Float[Tensor, "1 c height width"], method: str, target: int | None = None
) -> tuple[Facts, Arrays]:
    """Return a map by one of ``METHODS`` or ``BASELINES``, and its deletion and insertion curves."""
    vit = checked(model)
    every = [*METHODS, *BASELINES]
    if method not in every:
        raise VitrailError(f"there is no method {method[:40]!r}{suggestion(method, every)}; there are {', '.join(every)}")
    if not vit.config.classes:
        explained_class(vit, target, images.new_zeros(0))
        return _classless(vit, images, method)
    wanted = explained_class(vit, target, _answer(vit, images))
    which = torch.tensor([wanted], device=images.device)
    heat = _heat(vit, images, method, which)
    faith = faithfulness(vit, images, heat, which)
    arrays = sound({"map": plain(heat[0]), "deletion": plain(faith.deletion[0]), "insertion": plain(faith.insertion[0])})
    facts = {"method": method, "target": wanted, "deletion_auc": faith.deleted.item(), "insertion_auc": faith.inserted.item()}
    return facts, arrays


def ablated(
    model: Model,
    images: Float[Tensor, "1 c height width"],
    patches: Sequence[int],
    how: str,
    seed: int = 0,
    target: int | None = None,
) -> Facts:
    """Return the probabilities with and without some patches; ``target`` is a class that is always included."""
    vit = checked(model)
    if not vit.config.classes:
        raise VitrailError("a model without a head (classes=0) predicts no class; load it with its head")
    count = tokens(vit, images) - vit.config.prefix
    chosen = [number("patches", patch, count) for patch in patches]
    then = ablate(vit, images, chosen, how, seed)[0]
    before, after = odds(vit, _answer(vit, images)), odds(vit, then)
    sound({"logits": plain(then)})
    most = torch.maximum(before, after).argsort(descending=True, stable=True)[:TOP].tolist()
    if target is not None and number("class", target, len(before)) not in most:
        most.append(target)
    (answer,) = top(vit, after, 1)
    return {
        "permutation": order(chosen, count, seed) if how == "shuffle" else None,
        "top": [
            {"class": which, "label": label(vit, which), "before": before[which].item(), "after": after[which].item()}
            for which in most
        ],
        "prediction": answer,
        "changed": answer["class"] != int(before.argmax()),
        "tokens": tokens(vit, images) - (len(set(chosen)) if how == "drop" else 0),
    }


def _classless(vit: ViT, images: Float[Tensor, "1 c height width"], method: str) -> tuple[Facts, Arrays]:
    """Return a map of a model without a head: by attention only, and without curves."""
    if method not in (*CLASSLESS, *BASELINES):
        raise VitrailError(
            f"{method} needs a class, and a model without a head (classes=0) predicts none; try {' or '.join(CLASSLESS)}"
        )
    arrays = sound({"map": plain(_heat(vit, images, method, None)[0])})
    return {"method": method, "target": None, "deletion_auc": None, "insertion_auc": None}, arrays


def _heat(vit: ViT, images: Tensor, method: str, which: Tensor | None) -> Float[Tensor, "1 y x"]:
    return BASELINES[method](images, vit.grid(images)) if method in BASELINES else saliency(vit, images, method, which)


@torch.no_grad()
def _answer(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Float[Tensor, " k"]:
    with at_rest(vit):
        logits = vit(images)[0]
    sound({"logits": plain(logits)})
    return logits
