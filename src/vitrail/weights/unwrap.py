"""Take a model's tensors out of what training scripts save around them: wrappers, prefixes, other towers.

The prefix is found by structure: whatever precedes the patch projection. What is left aside is named in the report.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError

WRAPPER_KEYS = (
    "model",
    "state_dict_ema",
    "state_dict",
    "teacher",
    "student",
    "model_state_dict",
    "module",
    "params",
    "weights",
    "ema",
    "model_ema",
    "net",
    "target_encoder",  # I-JEPA evaluates this one
    "encoder",
    "backbone",
)
# The first tensor of a model in the names of each library, after a prefix.
PATCH_PROJECTIONS = (
    r"(.*?)(?:patch_embed\.(?:proj|backbone\.(?:stem\.)?conv)|embeds\.proj)\.weight",
    r"(.*?)(?:(?:vit|deit|dinov2|dinov2_with_registers|ijepa|beit|data2vec_vision|vision_model)\.)?"
    r"embeddings\.patch_embed(?:dings?)?(?:\.projection)?\.weight",
    r"(.*?)conv_proj\.weight",
    r"(.*?)(?:visual\.)?(?:class_embedding|ln_pre\.weight)",
    r"(.*?)stem\.conv\.weight",
    r"(.*?)patch_embed\.projection\.weight",  # mmpretrain's
    r"(.*?)to_patch_embedding\.1\.weight",  # vit-pytorch's
    r"(.*?)preprocessor\.patchifier\.proj\.weight",  # AIMv2's
)
# Of several models in one file, the one that its project evaluates.
PREFERRED_PREFIXES = ("teacher.", "teacher_backbone.", "target_encoder.", "base_encoder.", "encoder_q.", "ema.")
# Tensors next to an encoder by which its decoder is known, so that both are read: Segmenter's.
DECODERS = {"encoder.": ("decoder.cls_emb", "decoder.head.weight"), "backbone.": ("decode_head.cls_emb",)}
HEADS = ("head.", "heads.", "classifier.", "linear_head.")
MODULE_PREFIXES = ("module.", "backbone.", "model.", "_orig_mod.", "net.")  # in files without a patch projection


def unwrap(content: Any, description: str) -> tuple[dict[str, Tensor], str | None, list[str]]:
    """Return the tensors by name, the key of the innermost wrapper around them, and the names of the other entries."""
    wrapper, unused = None, []
    for _ in range(8):  # wrappers are not nested deeper, but may contain themselves
        if not isinstance(content, Mapping):
            break
        nested = [name for name in WRAPPER_KEYS if isinstance(content.get(name), Mapping)]
        if not nested:
            break
        wrapper = nested[0]
        unused += [str(name) for name, value in content.items() if name != wrapper and _holds_values(value)]
        content = content[wrapper]
    if not isinstance(content, Mapping):
        raise VitrailError(f"{description} contains a {type(content).__name__}, not tensors by name")
    tensors = {str(name): tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
    if not tensors:
        raise VitrailError(f"{description} contains no tensors by name")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise VitrailError(f"{description} must hold plain tensors, got {name} as a sparse, quantised or meta one")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise VitrailError(f"{description} claims more values for {name} than it contains")
    return tensors, wrapper, unused


def _holds_values(value: Any) -> bool:
    """Whether an entry beside the weights is worth a line: not empty, and not a single number such as an accuracy."""
    return (isinstance(value, Tensor) and value.ndim > 0 and value.numel() > 0) or (
        isinstance(value, Mapping) and len(value) > 0
    )


def strip_prefix(tensors: dict[str, Tensor], description: str) -> tuple[dict[str, Tensor], list[str]]:
    """Remove what precedes the model's names, and return the names of tensors that do not belong to it."""
    prefix = _model_prefix(tensors, description)
    prefix = None if prefix is None else _without_encoder(prefix, tensors)
    if prefix is None:
        return _strip_module_prefixes(tensors, description), []
    if not prefix:
        return tensors, []
    stripped = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    parents = ["".join(f"{part}." for part in prefix.split(".")[:count]) for count in range(len(prefix.split(".")) - 1)]
    unused = []
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            continue
        head = next((name.removeprefix(parent) for parent in parents if name.removeprefix(parent).startswith(HEADS)), None)
        if head is None or not name.startswith(tuple(parents)):
            unused.append(name)
        elif head in stripped:
            raise VitrailError(
                f"{description} has the same names with and without the prefix {prefix!r}; it is ambiguous which to use"
            )
        else:
            stripped[head] = tensor
    return stripped, unused


def _model_prefix(tensors: Mapping[str, Tensor], description: str) -> str | None:
    """Return what precedes the patch projection; None if the file has none."""
    for pattern in PATCH_PROJECTIONS:
        found = sorted({match[1] for name in tensors if (match := re.fullmatch(pattern, name))})
        if len(found) > 1:
            preferred = [prefix for wanted in PREFERRED_PREFIXES for prefix in found if wanted in prefix]
            if not preferred:
                raise VitrailError(
                    f"{description} has the same names with and without the prefix {found[-1]!r}; it is ambiguous which to use"
                )
            return preferred[0]
        if found:
            return found[0]
    return None


def _without_encoder(prefix: str, tensors: Mapping[str, Tensor]) -> str:
    """Return what precedes encoder and decoder, if the file has a decoder that is read as well; else the prefix."""
    for encoder, marks in DECODERS.items():
        parent = prefix.removesuffix(encoder)
        if parent != prefix and any(f"{parent}{mark}" in tensors for mark in marks):
            return parent
    return prefix


def _strip_module_prefixes(tensors: dict[str, Tensor], description: str) -> dict[str, Tensor]:
    """Remove the prefix that wrapping a module adds to the names of its tensors."""
    while prefix := next((p for p in MODULE_PREFIXES if sum(name.startswith(p) for name in tensors) > len(tensors) / 2), None):
        stripped = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        if len(stripped) < len(tensors):
            raise VitrailError(
                f"{description} has the same names with and without the prefix {prefix!r}; it is ambiguous which to use"
            )
        tensors = stripped
    return tensors
