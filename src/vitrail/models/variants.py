"""Model variants by name. Torch-free.

Dosovitskiy et al. 2021 (Table 1 and B.1), its official code's hybrids, big_vision's further sizes, and the BiT ResNets
that the paper compares with. ``variant("B/16", image=384, classes=10)`` returns the config; every field can be changed.
"""

import re
from dataclasses import fields
from typing import Any, NamedTuple

from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig


class ModelSize(NamedTuple):
    width: int
    depth: int
    mlp: int
    heads: int


SIZES = {
    "mu": ModelSize(width=32, depth=1, mlp=128, heads=2),
    "Ti": ModelSize(width=192, depth=12, mlp=768, heads=3),
    "S": ModelSize(width=384, depth=12, mlp=1536, heads=6),
    "M": ModelSize(width=512, depth=12, mlp=2048, heads=8),
    "B": ModelSize(width=768, depth=12, mlp=3072, heads=12),
    "L": ModelSize(width=1024, depth=24, mlp=4096, heads=16),
    "So400m": ModelSize(width=1152, depth=27, mlp=4304, heads=16),
    "H": ModelSize(width=1280, depth=32, mlp=5120, heads=16),
    "g": ModelSize(width=1408, depth=40, mlp=6144, heads=16),
    "g-opt": ModelSize(width=1536, depth=40, mlp=6144, heads=16),
    "G": ModelSize(width=1664, depth=48, mlp=8192, heads=16),
    "G-opt": ModelSize(width=1536, depth=48, mlp=8192, heads=16),
    "e": ModelSize(width=1792, depth=56, mlp=15360, heads=16),
}


class HybridSpec(NamedTuple):
    """Meaning of a hybrid's name: the stages of its ResNet, and the patch on their output."""

    stages: tuple[int, ...]
    patch: int


HYBRID_SPECS = {
    "R/16": HybridSpec(stages=(), patch=8),  # the official name; the stem has stride 4, so the real stride is 32
    "R26/32": HybridSpec(stages=(2, 2, 2, 2), patch=1),
    "R50/16": HybridSpec(stages=(3, 4, 9), patch=1),
    "R50/32": HybridSpec(stages=(3, 4, 6, 3), patch=1),
}
RESNETS = {"R50": (3, 4, 6, 3), "R101": (3, 4, 23, 3), "R152": (3, 8, 36, 3), "R200": (3, 24, 36, 3)}


def variant(name: str, **changes: Any) -> ModelConfig:
    """Return the config of a named model with changes: ``variant("B/16", image=384, pool="gap")``."""
    kind, values = parse_name(name)
    names = [field.name for field in fields(kind)]
    for field in changes:
        if field not in names:
            raise VitrailError(f"{name} has no field {field!r}{did_you_mean(field, names)}")
    return kind(**{**values, **changes})


def parse_name(name: str) -> tuple[type[ViTConfig] | type[ResNetConfig], dict[str, Any]]:
    """Parse a name to its config class and the fields that differ from the defaults, not yet checked."""
    vit = re.fullmatch(r"(?:(R\d*)\+)?([A-Za-z0-9-]+)/(\d+)(?:x(\d+))?", name, re.ASCII)
    if vit:
        resnet_stem, size, high, wide = vit.groups()
        return ViTConfig, _vit_fields(name, resnet_stem, size, int(high), int(wide or high))
    resnet = re.fullmatch(r"(R\d+)x(\d+)", name, re.ASCII)
    if resnet and resnet[1] in RESNETS and int(resnet[2]) >= 1:
        return ResNetConfig, {"stages": RESNETS[resnet[1]], "width": 64 * int(resnet[2])}
    hint = did_you_mean(name, variant_names()) or "; names read B/16, R50+B/16 or R50x1"
    raise VitrailError(f"no model is named {name!r}{hint}")


def variant_names() -> list[str]:
    """List the common names; any size goes with any patch, and any ResNet stem with any size."""
    plain = [f"{size}/{patch}" for size in SIZES for patch in (8, 14, 16, 32)]
    hybrids = ["R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/16", "R50+L/32"]
    return [*plain, *hybrids, *(f"{resnet}x{factor}" for resnet in RESNETS for factor in (1, 2, 3, 4))]


def _vit_fields(name: str, resnet_stem: str | None, size: str, high: int, wide: int) -> dict[str, Any]:
    if size not in SIZES:
        hint = did_you_mean(size, SIZES) or f"; there are {', '.join(SIZES)}"
        raise VitrailError(f"no size is named {size!r} in {name!r}{hint}")
    values: dict[str, Any] = {**SIZES[size]._asdict(), "patch": (high, wide)}
    if resnet_stem is None:
        return values
    if f"{resnet_stem}/{high}" not in HYBRID_SPECS or high != wide:
        options = ", ".join(f"{spec.replace('/', f'+{size}/')}" for spec in HYBRID_SPECS)
        raise VitrailError(f"no hybrid is named {name!r}; with this size there are {options}")
    stages, patch = HYBRID_SPECS[f"{resnet_stem}/{high}"]
    return {**values, "patch": (patch, patch), "stem": StemConfig(stages=stages)}
