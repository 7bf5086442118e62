"""The parts of a Vision Transformer, built as its config describes them."""

from collections.abc import Callable

from torch import nn

from vitrail.layers.attention import Attention
from vitrail.layers.block import Block, BranchNormBlock, PostNormBlock
from vitrail.layers.mlp import MLP, SwiGLU
from vitrail.layers.norm import norm_layer
from vitrail.layers.patch_embed import PatchEmbed
from vitrail.layers.pool import AttentionPool, AveragePool, ClassAndAveragePool, ClassAndRegisterPool, ClassPool
from vitrail.layers.position import FixedTable, Learned1d, Learned2d, PositionEmbedding, RelativeKeys, sincos1d, sincos2d
from vitrail.layers.relative_axes import RelativeAxes
from vitrail.layers.relative_bias import OffsetBias, OffsetMLP
from vitrail.layers.rotary import MixedRotary, Rotary
from vitrail.layers.weight_init import lecun_normal_
from vitrail.models.config import ViTConfig


def build_patch_embed(c: ViTConfig) -> PatchEmbed:
    norm = norm_layer(c.norm_kind, c.norm_eps)
    return PatchEmbed(
        c.stem.channels if c.stem else c.channels,
        c.width,
        c.patch,
        bias=c.patch_bias,
        pixel_norm=norm if c.patch_norm == "both" else None,
        norm=norm if c.patch_norm != "none" else None,
    )


def build_block(c: ViTConfig, layer: int) -> Block:
    norm = norm_layer(c.norm_kind, c.norm_eps)
    attention = Attention(
        c.width,
        c.heads,
        bias=c.qkv_bias,
        key_bias=c.key_bias,
        out_bias=c.out_bias,
        qk_norm=norm if c.qk_norm else None,
        out_norm=norm if c.attention_norm else None,
        dropout=c.dropout,
        weights_dropout=c.attention_dropout,
        relative=_build_relative(c, layer),
        window=c.windows[layer],
        prefix=c.prefix_tokens,
    )
    hidden_norm = norm if c.mlp_norm else None
    mlp = (
        SwiGLU(c.width, c.mlp, dropout=c.dropout, bias=c.out_bias, norm=hidden_norm)
        if c.mlp_kind == "swiglu"
        else MLP(c.width, c.mlp, gelu=c.gelu, dropout=c.dropout, bias=c.out_bias, norm=hidden_norm)
    )
    block_class = {"pre": Block, "post": PostNormBlock, "branch": BranchNormBlock}[c.norm]
    return block_class(
        c.width,
        attention,
        mlp,
        norm=norm,
        layer_scale=c.layer_scale,
        stochastic_depth=c.stochastic_depth * layer / max(1, c.depth - 1),
    )


def _build_relative(c: ViTConfig, layer: int) -> RelativeKeys | RelativeAxes | None:
    """Build the relative positions of a layer that are multiplied with its queries; none without them."""
    if c.relative_axes:
        window = c.windows[layer]
        return RelativeAxes(c.grid if window is None else (window, window), c.width // c.heads)
    return RelativeKeys(c.tokens, c.heads, c.width // c.heads) if c.position == "relative" else None


def build_rotary(c: ViTConfig) -> nn.ModuleList:
    """Build the rotary positions of all layers, or of each if their frequencies are learned; an empty list without any."""
    rotary, grid, head_width = c.rotation, c.position_grid or c.grid, c.width // c.heads
    if rotary is None:
        return nn.ModuleList()
    if not rotary.mixed:
        axial = Rotary(
            grid, head_width, c.prefix_tokens, base=rotary.base, coordinates=rotary.coordinates, offset=rotary.offset
        )
        return nn.ModuleList([axial])
    return nn.ModuleList(
        MixedRotary(grid, head_width, c.prefix_tokens, c.heads, base=rotary.base, coordinates=rotary.coordinates)
        for _ in range(c.depth)
    )


def build_relative_bias(c: ViTConfig) -> nn.ModuleList:
    """Build the bias of each layer, or one of all; an empty list without any."""
    relative = c.relative_bias
    if relative is None:
        return nn.ModuleList()
    count = 1 if relative.shared else c.depth
    if relative.kind == "mlp":
        return nn.ModuleList(OffsetMLP(c.heads, relative.hidden, prefix=c.prefix_tokens) for _ in range(count))
    return nn.ModuleList(
        OffsetBias(c.grid, c.heads, class_token=c.has_class_token, resize=relative.resize) for _ in range(count)
    )


def build_position(c: ViTConfig) -> PositionEmbedding:
    table_grid = c.position_grid or c.grid
    tables: dict[str, Callable[[], nn.Module]] = {
        "learned1d": lambda: Learned1d(c.table_grid or c.grid, c.width),
        "learned2d": lambda: Learned2d(c.grid, c.width),
        "learned2d-sum": lambda: Learned2d(c.grid, c.width, join="add"),
        "sincos1d": lambda: FixedTable(sincos1d(table_grid, c.width)),
        "sincos2d": lambda: FixedTable(sincos2d(table_grid, c.width, "big_vision")),
        "sincos2d-mae": lambda: FixedTable(sincos2d(table_grid, c.width, "mae")),
        "sincos2d-moco": lambda: FixedTable(sincos2d(table_grid, c.width, "moco")),
    }
    return PositionEmbedding(
        tables[c.position](), c.width, prefix=c.prefix_tokens, prefix_positions=c.prefix_positions, resize=c.position_resize
    )


def build_pool(c: ViTConfig) -> nn.Module:
    match c.pool:
        case "cls":
            return ClassPool()
        case "gap":
            return AveragePool(c.prefix_tokens)
        case "cls+gap":
            return ClassAndAveragePool(c.prefix_tokens)
        case "cls+register":
            return ClassAndRegisterPool()
        case "map":
            return AttentionPool(
                c.width,
                c.pool_heads or c.heads,
                c.pool_mlp or c.mlp,
                prefix=0 if c.pool_prefix else c.prefix_tokens,
                norm=norm_layer(c.norm_kind, c.norm_eps),
                gelu=c.gelu,
            )


def build_head(c: ViTConfig) -> nn.Module:
    if c.head == "linear":
        return zero_head(c.feature_width, c.classes)
    hidden = nn.Linear(c.feature_width, c.head_hidden or c.width)
    lecun_normal_(hidden.weight)
    nn.init.zeros_(hidden.bias)
    return nn.Sequential(hidden, nn.Tanh(), zero_head(hidden.out_features, c.classes))


def zero_head(width: int, classes: int) -> nn.Module:
    if classes == 0:
        return nn.Identity()
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)  # initially all classes are equally likely
    nn.init.zeros_(head.bias)
    return head
