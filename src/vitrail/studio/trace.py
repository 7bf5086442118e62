"""Trace of one image through a model: everything that the page draws of it, computed once by ``vitrail.explain``.

Metadata are plain values for JSON, arrays are for a browser's typed arrays: 32-bit floats and bytes, all of them finite.
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
ROOM = 2**26  # bytes of attention that are sent at once; of larger ones, rows on request
TOP = 10  # top classes
FEW = 100  # classes up to which the logit lens shows all
FIRST = 5  # with more classes, the top ones of every state


def trace(model: Model, picture: bytes | ndarray | Image.Image, target: int | None = None) -> tuple[Facts, Arrays]:
    """Return the input, the states of every layer, and the prediction; ``target``: the class to explain."""
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
        "probabilities": plain(chances[-1]),
        "lens": plain(chances[:, shown]),
        "lens_classes": np.array(shown, np.int32),
        **_tokens(vit, images),
        **_attention(vit, images),
    }
    facts = {
        "image": {"width": original.width, "height": original.height},
        **_shape(vit, images),
        "target": wanted,
        "ranks": []
        if wanted is None
        else (1 + (chances > chances[:, [wanted]]).sum(1)).tolist(),  # of the target in every state
        "top": top(vit, chances[-1]),
        "full_attention": "attention" in arrays,
        "preprocess": _preprocess(original.size, how),
        "sigmoid": alone(vit),
    }
    return facts, sound(arrays)


def rows(model: Model, images: Float[Tensor, "1 c height width"], query: int) -> tuple[Facts, Arrays]:
    """Return the attention of one query token, in every layer and head."""
    vit = checked(model)
    query = number("query", query, tokens(vit, images))
    arrays = {"rows": plain(attention(vit, images, queries=[query])[:, 0, :, 0])}
    return {"query": query}, sound(arrays)


def tokens(vit: ViT, images: Float[Tensor, "b c height width"]) -> int:
    grid = vit.grid(images)
    return vit.config.prefix + grid[0] * grid[1]


def top(vit: ViT, chances: Float[Tensor, " k"], count: int = TOP) -> list[Facts]:
    """Return the most probable classes; ties keep class order."""
    return [
        {"class": which, "label": label(vit, which), "probability": chances[which].item()}
        for which in chances.argsort(descending=True, stable=True)[:count].tolist()
    ]


def label(vit: ViT, which: int) -> str:
    return vit.labels[which] if vit.labels else f"class {which}"


def explained_class(vit: ViT, target: int | None, logits: Float[Tensor, " k"]) -> int | None:
    """Return the target class, else the predicted one; None for a model without a head."""
    if target is None:
        return int(logits.argmax()) if vit.config.classes else None
    if not vit.config.classes:
        raise VitrailError("a model without a head (classes=0) predicts no class; leave it out, or load the head")
    return number("class", target, vit.config.classes)


def number(what: str, value: int, of: int) -> int:
    if not 0 <= value < of:
        raise VitrailError(f"{what} must be an index from 0 to {of - 1}, got {str(value)[:40]}; try {what}=0")
    return value


def plain(values: Tensor) -> ndarray:
    return np.ascontiguousarray(values.detach().float().cpu().numpy())


def sound(arrays: Arrays) -> Arrays:
    """Raise if an array is not finite: neither JSON nor a canvas can show NaN and Inf."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise VitrailError(f"{name} of this image is not finite (NaN/Inf); check the model's weights")
    return arrays


def _images(vit: ViT, pixels: UInt8[ndarray, "height width c"], how: Preprocess) -> Float[Tensor, "1 c height width"]:
    """Normalise the pixels, bit for bit as ``vitrail.prepare`` does."""
    planes = rearrange(torch.from_numpy(pixels), "h w c -> 1 c h w").to(torch.float32, memory_format=torch.contiguous_format)
    weight = next(vit.parameters())
    return normalise(planes, how).to(weight.device, weight.dtype)


def _lens(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Float[Tensor, "s k"]:
    """Return the logits of every state; the last row is the model's output."""
    return lens(vit, images)[:, 0] if vit.config.classes else images.new_zeros(len(vit.blocks) + 1, 0)


def _shown(chances: Float[Tensor, "s k"], wanted: int | None) -> list[int]:
    count = chances.shape[1]
    if count <= FEW:
        return list(range(count))
    first = chances.argsort(dim=1, descending=True, stable=True)[:, :FIRST]
    return sorted({*first.flatten().tolist(), *([] if wanted is None else [wanted])})


@torch.no_grad()
def _tokens(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Arrays:
    """Return norms: of patch embeddings, of position embeddings, and of the tokens in every state."""
    embedded = vit.patches(images)
    found = {"patch_norms": plain(embedded[0].norm(dim=-1)), "token_norms": plain(norms(vit, images)[:, 0])}
    if vit.config.layers_with_position[0] is not None:
        nothing = images.new_zeros(1, tokens(vit, images), vit.config.width)
        found["position_norms"] = plain(vit.positions[0](nothing, vit.grid(images))[0].norm(dim=-1))
    return found


def _attention(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Arrays:
    read = reading(vit, images)
    if len(vit.blocks) * vit.config.heads * read.shape[1] ** 2 * 4 > ROOM:
        return {"pooled_attention": plain(pooled_attention(vit, images)[:, 0]), "pooling_weights": plain(read[0])}
    whole = attention(vit, images)[:, 0]
    pooled = torch.einsum("q,lhqt->lht", read[0], whole)
    return {"pooled_attention": plain(pooled), "pooling_weights": plain(read[0]), "attention": plain(whole)}


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
    """Return the crop in the original image, by the same rule as the pixels."""
    resized, box = window((size[0], size[1]), how)
    return {
        "resized": list(resized),
        "box": list(box),
        "mean": list(how.mean),
        "std": list(how.std),
        "interpolation": how.interpolation,
        "squash": how.squash,
    }
