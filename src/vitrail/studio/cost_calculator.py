"""Cost of any Vision Transformer configuration, and Python code for it. Torch-free."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vitrail.config import override, to_dict
from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.models.variants import parse_name, variant

CONFIG_FIELDS = ("image", "patch", "width", "depth", "heads", "mlp", "classes", "channels", "registers", "pool", "position")
DRAWN_FIELDS = (
    "mlp_kind", "mlp_outputs", "feature_width", "attention_norm", "mlp_norm", "rotary", "relative_bias", "relative_axes",
    "windows"
)  # fmt: skip
DEFAULT_VARIANT = "B/16"
FIELD_LIMITS = {"depth": 400, "batch": 2**16}  # limits of what the page draws


def cost_of(fields: Mapping[str, str], base: ViTConfig | None = None) -> dict[str, Any]:
    """Return the cost of a configuration: fields as text, plus ``name`` and ``batch``; the rest is as in ``base``, or B/16."""
    config = _named_config(fields["name"]) if "name" in fields else base or _named_config(DEFAULT_VARIANT)
    changes = [f"{name}={fields[name]}" for name in CONFIG_FIELDS if name in fields]
    for name, limit in FIELD_LIMITS.items():
        if name in fields and (not fields[name].isdecimal() or not 1 <= int(fields[name]) <= limit):
            raise VitrailError(f"{name} must be a number from 1 to {limit}, got {fields[name][:20]!r}; try {name}=1")
    config = override(config, changes)
    result = cost(config, int(fields.get("batch", "1")))
    return {
        "config": {name: to_dict(getattr(config, name)) for name in CONFIG_FIELDS}
        | {"prefix": config.prefix_tokens, "class_token": config.has_class_token}
        | {name: to_dict(getattr(config, name)) for name in DRAWN_FIELDS},
        "stride": list(config.patch_stride),
        **to_dict(result),
        "python": python_code(config),
    }


def python_code(config: ViTConfig) -> str:
    """Return Python code: the nearest variant, and the fields that differ from it."""
    name = min((f"{size}/16" for size in ("Ti", "S", "B", "L", "H")), key=lambda name: len(_differences(config, name)))
    patch = config.patch
    if config.stem is None:
        name = name.replace("/16", f"/{patch[0]}" if patch[0] == patch[1] else f"/{patch[0]}x{patch[1]}")
    arguments = ["".join(("\n    ", field, "=", repr(value), ",")) for field, value in _differences(config, name).items()]
    expression = f'vitrail.variant("{name}"' + (f",{''.join(arguments)}\n)" if arguments else ")")
    nested = [type(value).__name__ for value in (config.stem, config.rotary, config.relative_bias) if value is not None]
    imports = f"from vitrail.models.config import {', '.join(sorted(nested))}\n" if nested else ""
    return f"import vitrail\n{imports}\nconfig = {expression}\nmodel = vitrail.build(config)\nprint(vitrail.cost(config))"


def _differences(config: ViTConfig, name: str) -> dict[str, Any]:
    """Return the fields that differ from a variant, which need not be valid itself, such as patches of 15 on 224 pixels."""
    _, variant_fields = parse_name(name)
    defaults = {field.name: field.default for field in fields(ViTConfig)} | variant_fields
    values = {field.name: getattr(config, field.name) for field in fields(ViTConfig)}
    short_values = {
        field: value[0] if field in ("image", "patch") and value[0] == value[1] else value for field, value in values.items()
    }
    return {field: short_values[field] for field, value in values.items() if value != defaults[field]}


def _named_config(name: str) -> ViTConfig:
    config = variant(name)
    if not isinstance(config, ViTConfig):
        raise VitrailError(f"{name} is not a Vision Transformer; try {DEFAULT_VARIANT}")
    return config
