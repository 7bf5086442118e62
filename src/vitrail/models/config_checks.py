"""Checks of model configs: an invalid one is rejected with a value that would work. Torch-free."""

from math import lcm, prod
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.models.config import ViTConfig


def format_size(pair: tuple[int, ...]) -> str:
    return "x".join(map(str, pair))


def at_most(settings: Any, prefix: str = "", **limits: int) -> None:
    """Reject values beyond any use, so that an untrusted file cannot exhaust the memory."""
    for name, limit in limits.items():
        value = getattr(settings, name)
        if value is not None and any(item > limit for item in (value if isinstance(value, tuple) else (value,))):
            raise VitrailError(f"{prefix}{name} must be at most {limit:,}, got {str(value)[:40]}; try {prefix}{name}={limit}")


def at_least(settings: Any, prefix: str = "", **limits: int) -> None:
    for name, limit in limits.items():
        value = getattr(settings, name)
        items = value if isinstance(value, tuple) else (value,)
        if value is not None and any(item < limit for item in items):
            valid = ",".join(str(max(limit, item)) for item in items)
            got = ",".join(map(str, items))
            raise VitrailError(f"{prefix}{name} must be at least {limit}, got {got}; try {prefix}{name}={valid}")


def nearest_multiple(value: int, of: int) -> int:
    return max(of, round(value / of) * of)


def check_stages(name: str, stages: tuple[int, ...]) -> None:
    if len(stages) > 6 or max(stages, default=0) > 1000:
        raise VitrailError(f"{name} must be at most 6 stages of 1000 units, got {str(stages)[:40]}; try {name}=3,4,6,3")


def check_groups(name: str, width: int) -> None:
    if width < 1 or width % 32:
        raise VitrailError(
            f"{name} must be a multiple of the 32 groups of a norm, got {width}; try {nearest_multiple(width, 32)}"
        )


def check_positive(prefix: str = "", **values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise VitrailError(f"{prefix}{name} must be above 0, got {value}; try {prefix}{name}=1e-6")


def check_rates(config: "ViTConfig") -> None:
    for name in ("dropout", "attention_dropout", "stochastic_depth"):
        if not 0 <= getattr(config, name) < 1:
            raise VitrailError(f"{name} must be at least 0 and below 1, got {getattr(config, name)}; try {name}=0.1")
    check_positive(norm_eps=config.norm_eps)


def check_heads(config: "ViTConfig") -> None:
    if config.width % config.heads:
        raise VitrailError(
            f"width must be a multiple of heads, got width={config.width}, heads={config.heads}; "
            f"try width={nearest_multiple(config.width, config.heads)} or heads={nearest_heads(config, 1)}"
        )
    if config.rotation and config.width // config.heads % 4:
        raise VitrailError(
            f"rotary rotates pairs along both axes, so the width of a head must be a multiple of 4, "
            f"got {config.width}/{config.heads} = {config.width // config.heads}; try {rotary_advice(config)}"
        )


def check_pool(config: "ViTConfig") -> None:
    pool = config.pool
    if pool.startswith("cls") and config.class_token is False:
        raise VitrailError(f"pool={pool!r} reads the class token, got class_token=False; try pool='gap'")
    if pool == "cls+register" and not config.registers:
        raise VitrailError("pool='cls+register' reads a register, got registers=0; try registers=1")
    if "+" in pool and config.final_norm == "pooled":
        raise VitrailError(f"pool={pool!r} pools normalised tokens, got final_norm='pooled'; try final_norm='tokens'")
    if pool != "map" and (config.pool_heads or config.pool_mlp or config.pool_prefix):
        raise VitrailError(f"pool_heads, pool_mlp and pool_prefix go with attention pooling, got pool={pool!r}; try pool='map'")
    if config.pool_heads and config.width % config.pool_heads:
        raise VitrailError(
            f"width must be a multiple of pool_heads, got width={config.width}, pool_heads={config.pool_heads}; "
            f"try pool_heads={config.heads}"
        )


def nearest_heads(config: "ViTConfig", unit: int) -> int | None:
    options = [heads for heads in range(1, config.width + 1) if config.width % (heads * unit) == 0]
    return min(options, key=lambda heads: abs(heads - config.heads), default=None)


def rotary_advice(config: "ViTConfig") -> str:
    heads = nearest_heads(config, 4)
    return f"heads={heads}" if heads else f"width={nearest_multiple(config.width, 4 * config.heads)}"


def check_position(config: "ViTConfig") -> None:
    kind = config.position
    if config.position_grid is not None and not config.uses_position_grid:
        other = f"rotary.coordinates={config.rotation.coordinates!r}" if config.rotation else f"position={kind!r}"
        raise VitrailError(
            f"position_grid goes with sin-cos tables and with rotary coordinates on a grid (centre or scaled), got {other}; "
            "try position_grid=none"
        )
    if config.rotary and kind == "rotary":
        raise VitrailError("position='rotary' has its own settings, got rotary as well; try position='none'")
    unit = {"learned2d": 2, "sincos1d": 2, "sincos2d": 4, "sincos2d-mae": 4, "sincos2d-moco": 4}.get(kind, 1)
    minimum = 8 if kind == "sincos2d" else unit  # big_vision's frequencies need two steps
    if config.width % unit or config.width < minimum:
        valid = max(nearest_multiple(config.width, lcm(unit, config.heads)), lcm(minimum, config.heads))
        raise VitrailError(
            f"position={kind!r} needs a width that is a multiple of {unit} and at least {minimum}, "
            f"got width={config.width}; try width={valid}"
        )
    if config.table_grid is not None and kind != "learned1d":
        raise VitrailError(f"table_grid goes with position='learned1d', got position={kind!r}; try table_grid=none")
    grid = config.position_grid or config.grid
    if kind.startswith("sincos") and prod(grid) * config.width > 2**26:
        raise VitrailError(
            f"a {kind} table of {format_size(grid)} positions is larger than any model needs; try a larger patch"
        )
    if config.relative_bias:
        check_relative_bias(config)
    if config.position_at != "input" and kind in ("none", "relative", "rotary"):
        raise VitrailError(
            f"position={kind!r} adds no table to the tokens, got position_at={config.position_at!r}; try position_at='input'"
        )
    if kind == "relative" and config.tokens < 2:
        raise VitrailError(
            f"position='relative' needs at least two tokens, got one patch of {format_size(config.patch_stride)} "
            f"in image={format_size(config.image)}; try image={format_size((2 * config.image[0], 2 * config.image[1]))}"
        )
    if kind == "relative" and config.flexible:
        raise VitrailError(
            "position='relative' counts offsets along one fixed raster, so it cannot take another size; "
            "try flexible=False, or position='rotary'"
        )


def check_windows(config: "ViTConfig") -> None:
    if config.global_blocks is not None and config.window is None:
        raise VitrailError(
            f"global_blocks are those without windows, got global_blocks={config.global_blocks} and no window; try window=14"
        )
    wrong = [block for block in config.global_blocks or () if not 1 <= block <= config.depth]
    if wrong:
        raise VitrailError(f"global_blocks must be from 1 to {config.depth}, got {wrong[0]}; try global_blocks={config.depth}")
    if (config.window is not None or config.relative_axes) and (config.relative_bias or config.position == "relative"):
        other = "relative_bias" if config.relative_bias else "position='relative'"
        raise VitrailError(
            f"{'window' if config.window else 'relative_axes'} does not go with {other}, whose offsets are those of the whole "
            "grid; try relative_axes=true alone, or position='rotary'"
        )


def check_relative_bias(config: "ViTConfig") -> None:
    assert config.relative_bias is not None
    if config.position == "relative":
        raise VitrailError("relative_bias and position='relative' both encode the offset between tokens; try position='none'")
    if config.relative_bias.kind == "table" and config.registers:
        raise VitrailError(
            f"relative_bias.kind='table' has entries for a class token and patches, got registers={config.registers}; "
            "try registers=0"
        )
