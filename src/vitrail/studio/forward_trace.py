"""Trace of one image through a model: everything that the page draws of it, computed once by ``vitrail.explain``.

Metadata are plain values for JSON, arrays are for a browser's typed arrays: 32-bit floats and bytes, all of them finite.
c channels, l layers, s states between them, h heads, q queries, t tokens, k classes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor, nn

from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import crop_window, normalise, resize_and_crop
from vitrail.errors import VitrailError
from vitrail.explain.attention import as_vit, attention, count_tokens, eval_mode, pooled_attention, pooling_weights
from vitrail.explain.box import BoxClassifier
from vitrail.explain.gradient import has_logit_lens, logit_lens
from vitrail.explain.head_statistics import token_norms
from vitrail.inference.predictor import require_preprocess
from vitrail.inference.preprocess_images import load_image
from vitrail.models.vit import ViT
from vitrail.tasks.registry import class_probabilities, model_task

Metadata = dict[str, Any]
NamedArrays = dict[str, ndarray]
MAX_ATTENTION_BYTES = 2**26  # bytes of attention that are sent at once; of larger ones, rows on request
NUM_TOP_CLASSES = 10  # top classes
MAX_LENS_CLASSES = 100  # classes up to which the logit lens shows all
LENS_TOP_CLASSES = 5  # with more classes, the top ones of every state


def trace_image(
    model: nn.Module,
    image: bytes | ndarray | Image.Image,
    target: int | None = None,
    select: Callable[[Float[Tensor, "1 c height width"]], ViT] | None = None,
) -> tuple[Metadata, NamedArrays]:
    """Return the input, the states of every layer, and the prediction; ``target``: the class to explain. ``select`` returns the
    model that classifies the image, of one for another task; None: the model itself."""
    preprocess, original = require_preprocess(model), load_image(image)
    pixels = resize_and_crop(original, preprocess)
    images = _normalise(as_vit(model), pixels, preprocess)
    vit = as_vit(model) if select is None else select(images)
    state_logits = _state_logits(vit, images)
    check_finite_arrays({"logits": to_float32_array(state_logits[-1])})
    target_class, probabilities = resolve_target(vit, target, state_logits[-1]), class_probabilities(vit, state_logits)
    lens_classes = _lens_classes(probabilities, target_class)
    arrays = {
        "pixels": pixels,
        "logits": to_float32_array(state_logits[-1]),
        "probabilities": to_float32_array(probabilities[-1]),
        "lens": to_float32_array(probabilities[:, lens_classes]),
        "lens_classes": np.array(lens_classes, np.int32),
        **_token_norms(vit, images),
        **_attention_arrays(vit, images),
    }
    metadata = {
        "image": {"width": original.width, "height": original.height},
        **_model_shape(vit, images),
        "target": target_class,
        "predicted": resolve_target(vit, None, state_logits[-1]),
        "ranks": []
        if target_class is None
        else (1 + (probabilities > probabilities[:, [target_class]]).sum(1)).tolist(),  # of the target in every state
        "top": top_classes(vit, probabilities[-1]),
        "numbers": predicted_numbers(vit, images),
        "full_attention": "attention" in arrays,
        "has_lens": has_logit_lens(vit),
        "preprocess": _preprocessing(original.size, preprocess),
        "sigmoid": (task := model_task(vit)).has_sigmoid,
        "thresholds": None if (thresholds := task.threshold_row()) is None else thresholds.tolist(),
    }
    return metadata, check_finite_arrays(arrays)


def attention_rows(model: nn.Module, images: Float[Tensor, "1 c height width"], query: int) -> tuple[Metadata, NamedArrays]:
    """Return the attention of one query token, in every layer and head."""
    vit = as_vit(model)
    query = check_index("query", query, count_tokens(vit, images))
    arrays = {"rows": to_float32_array(attention(vit, images, queries=[query])[:, 0, :, 0])}
    return {"query": query}, check_finite_arrays(arrays)


def top_classes(vit: ViT, probabilities: Float[Tensor, " k"], count: int = NUM_TOP_CLASSES) -> list[Metadata]:
    """Return the most probable classes; ties keep class order."""
    return [
        {"class": class_index, "label": class_label(vit, class_index), "probability": probabilities[class_index].item()}
        for class_index in probabilities.argsort(descending=True, stable=True)[:count].tolist()
    ]


def class_label(vit: ViT, class_index: int) -> str:
    return vit.class_names[class_index] if vit.class_names else f"class {class_index}"


def resolve_target(vit: ViT, target: int | None, logits: Float[Tensor, " k"]) -> int | None:
    """Return the target class, else the predicted one, that of a box being given; None for a model without a head."""
    if target is None and isinstance(vit, BoxClassifier):
        return int(vit.labels[0])
    if target is None:
        return int(logits.argmax()) if count_classes(vit) else None
    if not count_classes(vit):
        raise VitrailError("a model without a head (classes=0), or of another task, predicts no class; leave it out")
    return check_index("class", target, vit.config.classes)


def count_classes(vit: ViT) -> int:
    """Return the number of classes; 0 if the model has no head, or its outputs are no classes."""
    return vit.config.classes if model_task(vit).has_classes else 0


@torch.no_grad()
def predicted_numbers(vit: ViT, images: Float[Tensor, "1 c height width"]) -> list[Metadata]:
    """Return the outputs of a model that predicts no classes by name, in the units of its targets."""
    task = model_task(vit)
    if task.has_classes or not vit.config.classes:
        return []
    with eval_mode(vit):
        outputs = vit(images)[0]
    check_finite_arrays({"outputs": to_float32_array(outputs)})
    values = task.restore(outputs.double()).tolist()
    return [{"name": name, "value": value} for name, value in zip(task.output_names, values, strict=True)]


def check_index(name: str, value: int, length: int) -> int:
    if not 0 <= value < length:
        raise VitrailError(f"{name} must be an index from 0 to {length - 1}, got {str(value)[:40]}; try {name}=0")
    return value


def to_float32_array(values: Tensor) -> ndarray:
    return np.ascontiguousarray(values.detach().float().cpu().numpy())


def check_finite_arrays(arrays: NamedArrays) -> NamedArrays:
    """Raise if an array is not finite: neither JSON nor a canvas can show NaN and Inf."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise VitrailError(f"{name} of this image is not finite (NaN/Inf); check the model's weights")
    return arrays


def _normalise(vit: ViT, pixels: UInt8[ndarray, "height width c"], preprocess: Preprocess) -> Float[Tensor, "1 c height width"]:
    """Normalise the pixels, bit for bit as ``vitrail.preprocess`` does."""
    planes = rearrange(torch.from_numpy(pixels), "h w c -> 1 c h w").to(torch.float32, memory_format=torch.contiguous_format)
    weight = next(vit.parameters())
    return normalise(planes, preprocess).to(weight.device, weight.dtype)


def _state_logits(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Float[Tensor, "s k"]:
    """Return the logits of every state; the last row is the model's output, and the only one without a logit lens."""
    if not count_classes(vit):
        return images.new_zeros(len(vit.blocks) + 1, 0)
    if has_logit_lens(vit):
        return logit_lens(vit, images)[:, 0]
    with torch.no_grad(), eval_mode(vit):
        return vit(images)


def _lens_classes(probabilities: Float[Tensor, "s k"], target: int | None) -> list[int]:
    count = probabilities.shape[1]
    if count <= MAX_LENS_CLASSES:
        return list(range(count))
    top = probabilities.argsort(dim=1, descending=True, stable=True)[:, :LENS_TOP_CLASSES]
    return sorted({*top.flatten().tolist(), *([] if target is None else [target])})


@torch.no_grad()
def _token_norms(vit: ViT, images: Float[Tensor, "1 c height width"]) -> NamedArrays:
    """Return norms: of patch embeddings, of position embeddings, and of the tokens in every state."""
    patch_embeddings = vit.embed_patches(images)
    result = {
        "patch_norms": to_float32_array(patch_embeddings[0].norm(dim=-1)),
        "token_norms": to_float32_array(token_norms(vit, images)[:, 0]),
    }
    if vit.config.layers_with_position[0] is not None:
        zeros = images.new_zeros(1, count_tokens(vit, images), vit.config.width)
        result["position_norms"] = to_float32_array(vit.positions[0](zeros, vit.grid(images))[0].norm(dim=-1))
    return result


def _attention_arrays(vit: ViT, images: Float[Tensor, "1 c height width"]) -> NamedArrays:
    weights = pooling_weights(vit, images)
    if len(vit.blocks) * vit.config.heads * weights.shape[1] ** 2 * 4 > MAX_ATTENTION_BYTES:
        return {
            "pooled_attention": to_float32_array(pooled_attention(vit, images)[:, 0]),
            "pooling_weights": to_float32_array(weights[0]),
        }
    full = attention(vit, images)[:, 0]
    pooled = torch.einsum("q,lhqt->lht", weights[0], full)
    return {
        "pooled_attention": to_float32_array(pooled),
        "pooling_weights": to_float32_array(weights[0]),
        "attention": to_float32_array(full),
    }


def _model_shape(vit: ViT, images: Float[Tensor, "1 c height width"]) -> Metadata:
    config = vit.config
    return {
        "grid": list(vit.grid(images)),
        "prefix": config.prefix_tokens,
        "class_token": config.has_class_token,
        "registers": config.registers,
        "depth": config.depth,
        "heads": config.heads,
        "pool": config.pool,
        "pool_prefix": config.pool_prefix,
        "tokens": count_tokens(vit, images),
        "classes": count_classes(vit),
        "scale": (config.width // config.heads) ** -0.5,
    }


def _preprocessing(size: Sequence[int], preprocess: Preprocess) -> Metadata:
    """Return the crop in the original image, by the same rule as the pixels."""
    resized, box = crop_window((size[0], size[1]), preprocess)
    return {
        "resized": list(resized),
        "box": list(box),
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "interpolation": preprocess.interpolation,
        "fit": preprocess.fit,
    }
