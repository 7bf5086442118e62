"""Rename the tensors of other projects to timm's names, and convert them from there."""

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.models.config import Pair, ViTConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import Overrides
from vitrail.weights.convert.timm_architectures import Architecture
from vitrail.weights.convert.timm_vit import convert_vit


def rename(file: Mapping[str, Tensor], rules: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Apply regular expressions to every name, each in turn; refuse a file of which two names become one."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in file.items():
        renamed = name
        for theirs, timms in rules:
            renamed = re.sub(theirs, timms, renamed)
        if renamed in tensors:
            raise VitrailError(f"the file has {name} and another tensor of the same meaning; it is ambiguous which to use")
        tensors[renamed] = tensor
    return tensors


def convert_renamed(
    tensors: Mapping[str, Tensor], facts: Architecture, overrides: Overrides, assumed: list[str], size: Pair | None = None
) -> tuple[ViTConfig, dict[str, Tensor], list[str]]:
    """Convert tensors in the names of timm; an error about a missing one says so, because the file has other names."""
    _check_shapes(tensors)
    try:
        return convert_vit(tensors, facts, size, overrides, assumed)
    except VitrailError as error:
        if not str(error).startswith("the file lacks "):
            raise
        raise VitrailError(f"{error} (in the names of timm, to which those of the file were changed)") from None


def _check_shapes(tensors: Mapping[str, Tensor]) -> None:
    """Refuse shapes that the inference of the config, or the reordering of channels, would not notice."""
    if "head.weight" in tensors:
        inspect.require_shape(tensors, "head.weight", 2)
    width = inspect.require_shape(tensors, "patch_embed.proj.weight", 4)[0]
    for name, tensor in tensors.items():
        part = re.fullmatch(r"blocks\.\d+\.attn\.qkv\.(weight|bias)", name)
        allowed = [(3 * width, width)] if part and part[1] == "weight" else [(3 * width,), (2 * width,)]
        if part and tuple(tensor.shape) not in allowed:
            raise VitrailError(f"the projection to q, k and v must have the shape {list(allowed[0])}, got {list(tensor.shape)}")


def require(file: Mapping[str, Tensor], *names: str) -> None:
    """Refuse a file without tensors that every model of its kind has."""
    missing = [name for name in names if name not in file]
    if missing:
        raise VitrailError(f"the file lacks {', '.join(missing)}")


def refuse_unknown(names: Iterable[str]) -> None:
    """Refuse tensors that no part of the model has: it would compute something else."""
    unknown = list(names)
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
