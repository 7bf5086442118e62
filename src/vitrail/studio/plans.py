"""Cost of any Vision Transformer configuration, and Python code for it. Torch-free."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vitrail.config import override, to_plain
from vitrail.errors import VitrailError
from vitrail.models.cost import cost
from vitrail.models.settings import ViTConfig
from vitrail.models.variants import blueprint, variant

CHANGED = ("image", "patch", "width", "depth", "heads", "mlp", "classes", "channels", "registers", "pool", "position")
LIKE = "B/16"
MOST = {"depth": 400, "batch": 2**16}  # limits of what the page draws


def planned(asked: Mapping[str, str], like: ViTConfig | None = None) -> dict[str, Any]:
    """Return the cost of a configuration: fields as text, plus ``name`` and ``batch``; the rest is as in ``like``, or B/16."""
    config = _named(asked["name"]) if "name" in asked else like or _named(LIKE)
    changes = [f"{name}={asked[name]}" for name in CHANGED if name in asked]
    for name, most in MOST.items():
        if name in asked and (not asked[name].isdecimal() or not 1 <= int(asked[name]) <= most):
            raise VitrailError(f"{name} must be a number from 1 to {most}, got {asked[name][:20]!r}; try {name}=1")
    config = override(config, changes)
    found = cost(config, int(asked.get("batch", "1")))
    return {
        "config": {name: to_plain(getattr(config, name)) for name in CHANGED}
        | {"prefix": config.prefix, "class_token": config.has_class_token},
        "stride": list(config.stride),
        **to_plain(found),
        "python": python(config),
    }


def python(config: ViTConfig) -> str:
    """Return Python code: the nearest variant, and the fields that differ from it."""
    name = min((f"{size}/16" for size in ("Ti", "S", "B", "L", "H")), key=lambda name: len(_differences(config, name)))
    patch = config.patch
    if config.stem is None:
        name = name.replace("/16", f"/{patch[0]}" if patch[0] == patch[1] else f"/{patch[0]}x{patch[1]}")
    words = ["".join(("\n    ", field, "=", repr(value), ",")) for field, value in _differences(config, name).items()]
    made = f'vitrail.variant("{name}"' + (f",{''.join(words)}\n)" if words else ")")
    first = "from vitrail.models.settings import Stem\n" if config.stem is not None else ""
    return f"import vitrail\n{first}\nconfig = {made}\nmodel = vitrail.build(config)\nprint(vitrail.cost(config))"


def _differences(config: ViTConfig, name: str) -> dict[str, Any]:
    """Return the fields that differ from a variant, which need not be valid itself, such as patches of 15 on 224 pixels."""
    _, known = blueprint(name)
    usual = {field.name: field.default for field in fields(ViTConfig)} | known
    found = {field.name: getattr(config, field.name) for field in fields(ViTConfig)}
    pairs = {
        field: value[0] if field in ("image", "patch") and value[0] == value[1] else value for field, value in found.items()
    }
    return {field: pairs[field] for field, value in found.items() if value != usual[field]}


def _named(name: str) -> ViTConfig:
    config = variant(name)
    if not isinstance(config, ViTConfig):
        raise VitrailError(f"{name} is not a Vision Transformer; try {LIKE}")
    return config
