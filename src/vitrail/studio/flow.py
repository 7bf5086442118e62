"""Which patches speak for a class, whether the model agrees when they go, and what it says without those that are clicked.

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

BASELINES = {"random": random_map, "edges": edge_map}  # the maps to beat: no model is asked


def flow(
    model: Model, images: Float[Tensor, "1 c height width"], method: str, target: int | None = None
) -> tuple[Facts, Arrays]:
    """A map by one of ``METHODS`` or ``BASELINES``, and the curves that say how far to trust it."""
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
    facts = {"method": method, "target": wanted, "deleted": faith.deleted.item(), "inserted": faith.inserted.item()}
    return facts, arrays


def ablated(
    model: Model,
    images: Float[Tensor, "1 c height width"],
    patches: Sequence[int],
    how: str,
    seed: int = 0,
    target: int | None = None,
) -> Facts:
    """What the model said and what it says without some patches; ``target`` is a class that is told of in any case."""
    vit = checked(model)
    if not vit.config.classes:
        raise VitrailError("a model without a head (classes=0) says no class, so nothing can change; load it with its head")
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
        "order": order(chosen, count, seed) if how == "shuffle" else None,
        "top": [
            {"class": which, "label": label(vit, which), "before": before[which].item(), "after": after[which].item()}
            for which in most
        ],
        "answer": answer,
        "changed": answer["class"] != int(before.argmax()),
        "kept": tokens(vit, images) - (len(set(chosen)) if how == "drop" else 0),
    }


def _classless(vit: ViT, images: Float[Tensor, "1 c height width"], method: str) -> tuple[Facts, Arrays]:
    """Without a class there is a map by attention alone, and nothing that it could lose."""
    if method not in (*CLASSLESS, *BASELINES):
        raise VitrailError(
            f"{method} asks for a class, and a model without a head (classes=0) says none; try {' or '.join(CLASSLESS)}"
        )
    arrays = sound({"map": plain(_heat(vit, images, method, None)[0])})
    return {"method": method, "target": None, "deleted": None, "inserted": None}, arrays


def _heat(vit: ViT, images: Tensor, method: str, which: Tensor | None) -> Float[Tensor, "1 y x"]:
    return BASELINES[method](images, vit.grid(images)) if method in BASELINES else saliency(vit, images, method, which)


@torch.no_grad()
def _answer(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Float[Tensor, " k"]:
    with at_rest(vit):
        logits = vit(images)[0]
    sound({"logits": plain(logits)})
    return logits
