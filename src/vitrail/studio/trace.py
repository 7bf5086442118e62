"""One picture on its way through a model, in numbers: all that the page draws of it, computed once by ``vitrail.explain``.

Facts are plain values for JSON, arrays are for a browser's typed arrays: 32-bit floats and bytes, every one of them a number.
c channels, l layers, s states between them, h heads, q queries, t tokens, k classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.data.prepare import fitted, normalise, window
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.evaluate.ready import opened
from vitrail.explain.attention import attention, checked, pooled_attention, reading
from vitrail.explain.distance import norms
from vitrail.explain.gradient import lens
from vitrail.explain.odds import alone, odds
from vitrail.models.build import Model
from vitrail.models.vit import ViT

Facts = dict[str, Any]
Arrays = dict[str, ndarray]
ROOM = 2**26  # bytes of attention that are handed out whole; of more, the rows that are asked for
TOP = 10  # classes that are named
FEW = 100  # classes up to which the lens shows all
FIRST = 5  # of more, those of every state


def trace(model: Model, picture: bytes | ndarray | Image.Image, target: int | None = None) -> tuple[Facts, Arrays]:
    """What the model sees, what becomes of it layer by layer, and what it says; ``target``: the class to explain."""
    vit, how, original = checked(model), preprocess_of(model), opened(picture)
    pixels = fitted(original, how)
    images = _images(vit, pixels, how)
    lenses = _lens(vit, images)
    sound({"logits": plain(lenses[-1])})
    wanted, chances = explained_class(vit, target, lenses[-1]), odds(vit, lenses)
    shown = _shown(chances, wanted)
    arrays = {
        "pixels": pixels,
        "logits": plain(lenses[-1]),
        "odds": plain(chances[-1]),
        "lens": plain(chances[:, shown]),
        "lens_classes": np.array(shown, np.int32),
        **_tokens(vit, images),
        **_attention(vit, images),
    }
    facts = {
        "picture": {"width": original.width, "height": original.height},
        **_shape(vit, images),
        "target": wanted,
        "ranks": [] if wanted is None else (1 + (chances > chances[:, [wanted]]).sum(1)).tolist(),  # its own, of every state
        "top": top(vit, chances[-1]),
        "whole": "attention" in arrays,
        "preprocess": _preprocess(original.size, how),
        "sigmoid": alone(vit),
    }
    return facts, sound(arrays)


def rows(model: Model, images: Float[Tensor, "1 c height width"], query: int) -> tuple[Facts, Arrays]:
    """What one token looks at, in every layer and head."""
    vit = checked(model)
    query = number("query", query, tokens(vit, images))
    arrays = {"rows": plain(attention(vit, images, queries=[query])[:, 0, :, 0])}
    return {"query": query}, sound(arrays)


def tokens(vit: ViT, images: Float[Tensor, "b c height width"]) -> int:
    grid = vit.grid(images)
    return vit.config.prefix + grid[0] * grid[1]


def top(vit: ViT, chances: Float[Tensor, " k"], count: int = TOP) -> list[Facts]:
    """The most probable classes; of equal ones the first comes first."""
    return [
        {"class": which, "label": label(vit, which), "probability": chances[which].item()}
        for which in chances.argsort(descending=True, stable=True)[:count].tolist()
    ]


def label(vit: ViT, which: int) -> str:
    return vit.labels[which] if vit.labels else f"class {which}"


def explained_class(vit: ViT, target: int | None, logits: Float[Tensor, " k"]) -> int | None:
    """What is asked for, else what the model says; none of a model without a head."""
    if target is None:
        return int(logits.argmax()) if vit.config.classes else None
    if not vit.config.classes:
        raise VitrailError("a model without a head (classes=0) says no class; ask for none, or load it with its head")
    return number("class", target, vit.config.classes)


def number(what: str, value: int, of: int) -> int:
    if not 0 <= value < of:
        raise VitrailError(f"{what} must be a number from 0 to {of - 1}, got {str(value)[:40]}; try {what}=0")
    return value


def plain(values: Tensor) -> ndarray:
    return np.ascontiguousarray(values.detach().float().cpu().numpy())


def sound(arrays: Arrays) -> Arrays:
    """The same, or a sentence: JSON and canvases know no numbers that are none."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise VitrailError(f"the model makes something of this picture that is no number ({name}); are its weights whole?")
    return arrays


def _images(vit: ViT, pixels: UInt8[ndarray, "height width c"], how: Preprocess) -> Float[Tensor, "1 c height width"]:
    """To the bit what ``vitrail.prepare`` makes of the picture."""
    planes = rearrange(torch.from_numpy(pixels), "h w c -> 1 c h w").to(torch.float32, memory_format=torch.contiguous_format)
    weight = next(vit.parameters())
    return normalise(planes, how).to(weight.device, weight.dtype)


def _lens(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Float[Tensor, "s k"]:
    """Logits; the last row is what the model says."""
    return lens(vit, images)[:, 0] if vit.config.classes else images.new_zeros(len(vit.blocks) + 1, 0)


def _shown(chances: Float[Tensor, "s k"], wanted: int | None) -> list[int]:
    count = chances.shape[1]
    if count <= FEW:
        return list(range(count))
    first = chances.argsort(dim=1, descending=True, stable=True)[:, :FIRST]
    return sorted({*first.flatten().tolist(), *([] if wanted is None else [wanted])})


@torch.no_grad()
def _tokens(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Arrays:
    """How long tokens are: the patches alone, what is added for their places, and the states between the layers."""
    embedded = vit.patches(images)
    found = {"embedded": plain(embedded[0].norm(dim=-1)), "norms": plain(norms(vit, images)[:, 0])}
    if vit.config.layers_with_position[0] is not None:
        nothing = images.new_zeros(1, tokens(vit, images), vit.config.width)
        found["positions"] = plain(vit.positions[0](nothing, vit.grid(images))[0].norm(dim=-1))
    return found


def _attention(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Arrays:
    read = reading(vit, images)
    if len(vit.blocks) * vit.config.heads * read.shape[1] ** 2 * 4 > ROOM:
        return {"pooled": plain(pooled_attention(vit, images)[:, 0]), "reading": plain(read[0])}
    whole = attention(vit, images)[:, 0]
    pooled = torch.einsum("q,lhqt->lht", read[0], whole)
    return {"pooled": plain(pooled), "reading": plain(read[0]), "attention": plain(whole)}


def _shape(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Facts:
    c = vit.config
    return {
        "grid": list(vit.grid(images)),
        "prefix": c.prefix,
        "class_token": c.has_class_token,
        "registers": c.registers,
        "depth": c.depth,
        "heads": c.heads,
        "pool": c.pool,
        "tokens": tokens(vit, images),
        "classes": c.classes,
        "scale": (c.width // c.heads) ** -0.5,
    }


def _preprocess(size: Sequence[int], how: Preprocess) -> Facts:
    """Where in the original lies what the model sees: the rule is that of the pixels themselves."""
    resized, box = window((size[0], size[1]), how)
    return {
        "resized": list(resized),
        "box": list(box),
        "mean": list(how.mean),
        "std": list(how.std),
        "interpolation": how.interpolation,
        "squash": how.squash,
    }
