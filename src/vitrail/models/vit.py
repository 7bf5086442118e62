"""The Vision Transformer (Dosovitskiy et al. 2021): z0 = [class; x E] + E_pos, L blocks, y = LN(zL), a head.

b batch, c channels, n patches, t tokens, d width, f width of the representation.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.layers.attention import Attention
from vitrail.layers.block import Block, BranchNormBlock, PostNormBlock
from vitrail.layers.mlp import MLP, SwiGLU
from vitrail.layers.patch_embed import PatchEmbed
from vitrail.layers.pool import AttentionPool, AveragePool, ClassAndAveragePool, ClassPool
from vitrail.layers.position import (
    FixedTable,
    Grid,
    Learned1d,
    Learned2d,
    PatchIndices,
    PositionEmbedding,
    RelativeKeys,
    Rotary,
    Rotation,
    sincos1d,
    sincos2d,
)
from vitrail.layers.tap import is_recording, pause_recording
from vitrail.layers.token_merging import gather_tokens
from vitrail.layers.weight_init import lecun_normal_
from vitrail.models.config import ViTConfig, check_image_size, check_images, format_size
from vitrail.models.resnet_stem import ResNetStem


class ViT(nn.Module):
    """A Vision Transformer: images to logits. ``features`` stops before the head, ``encode`` before pooling."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        c = self.config = config
        self.preprocess: Preprocess | None = None  # how to preprocess images, if known
        self.class_names: tuple[str, ...] | None = None  # names of the classes, if known
        self.load_report: Any = None  # how the tensors of its file were used
        self.metadata: dict[str, Any] = {}  # from its file: recipe, dataset, metrics
        self.activation_checkpointing = False  # recompute each block in the backward pass instead of saving its activations
        self.stem = nn.Identity() if c.stem is None else ResNetStem(c.channels, c.stem)
        self.embed = PatchEmbed(c.stem.channels if c.stem else c.channels, c.width, c.patch, bias=c.patch_bias)
        self.cls = nn.Parameter(torch.zeros(c.width)) if c.has_class_token else None
        self.registers = nn.Parameter(torch.empty(c.registers, c.width)) if c.registers else None
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)  # unlike one class token, equal registers would stay equal
        tables = len({table for table in c.layers_with_position if table is not None})
        self.positions = nn.ModuleList(_position(c) for _ in range(tables))
        self.rotary = Rotary(c.position_grid or c.grid, c.width // c.heads, c.prefix_tokens) if c.position == "rotary" else None
        self.dropout = nn.Dropout(c.dropout)
        self.embed_norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.embed_norm else nn.Identity()
        self.blocks = nn.ModuleList(_block(c, layer) for layer in range(c.depth))
        last: nn.Module = nn.Identity() if c.norm == "post" else nn.LayerNorm(c.width, eps=c.norm_eps)
        self.norm = last if c.final_norm == "tokens" else nn.Identity()
        self.pooled_norm = last if c.final_norm == "pooled" else nn.Identity()
        self.pool = _pool(c)
        self.head = _head(c)

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
        return self.head(self.features(images))

    def features(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b f"]:
        """Return the representation of each image: y in the paper."""
        grid, patch_indices, x = self.grid(images), self.kept_patches(images), self.embed_patches(images)
        return self.encode_and_pool(x if patch_indices is None else gather_tokens(x, patch_indices), grid, patch_indices)

    def embed_patches(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        return self.embed(self.stem(images))

    def kept_patches(self, images: Float[Tensor, "b c height width"]) -> PatchIndices | None:
        """Return the indices of the patches to process; None: all. Subclasses that drop patches override it."""
        return None

    def encode_and_pool(
        self, x: Float[Tensor, "b n d"], grid: Grid, patch_indices: PatchIndices | None = None
    ) -> Float[Tensor, "b f"]:
        """Encode embedded patches and pool them to the input of the head."""
        return self.pooled_norm(self.pool(self.encode(x, grid, patch_indices)))

    def encode(
        self, x: Float[Tensor, "b n d"], grid: Grid, patch_indices: PatchIndices | None = None
    ) -> Float[Tensor, "b t d"]:
        """Prepend the class token and the registers to the patches, add positions, run the blocks and the last norm.

        ``patch_indices``: which patches of the grid these are, a row per image; None: all, in order.
        """
        x = self.add_prefix_tokens(x)
        rotation = None if self.rotary is None else self.rotary(grid, x.device, patch_indices)
        for layer, (table, block) in enumerate(zip(self.config.layers_with_position, self.blocks, strict=True)):
            x = x if table is None else self.positions[table](x, grid, patch_indices)
            x = self.embed_norm(self.dropout(x)) if layer == 0 else x
            x = self._run_block(block, x, rotation)
        return self.norm(x)

    def add_prefix_tokens(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b t d"]:
        prefix = [token for token in (self.cls, self.registers) if token is not None]
        if not prefix:
            return x
        return torch.cat([*(repeat(token, "... d -> b (...) d", b=x.shape[0]) for token in prefix), x], dim=1)

    def grid(self, images: Float[Tensor, "b c height width"]) -> Grid:
        """Return rows and columns of patches in these images, or raise an error that names a valid size."""
        check_images(tuple(images.shape), self.config.channels)
        size = images.shape[2], images.shape[3]
        if self.config.flexible:
            check_image_size(self.config, size)
        elif size != self.config.image:
            raise VitrailError(
                f"images must be {format_size(self.config.image)}, got {format_size(size)}; "
                f"resize them to {format_size(self.config.image)}, or build the model with flexible=True"
            )
        return size[0] // self.config.patch_stride[0], size[1] // self.config.patch_stride[1]

    def _run_block(self, block: nn.Module, x: Float[Tensor, "b t d"], rotation: Rotation | None) -> Float[Tensor, "b t d"]:
        # recorded values are stored anyway
        if self.activation_checkpointing and torch.is_grad_enabled() and not is_recording(block):
            options: dict[str, Any] = (
                {} if torch.compiler.is_compiling() else {"context_fn": lambda: (nullcontext(), pause_recording(block))}
            )
            return checkpoint(block, x, rotation, use_reentrant=False, **options)
        return block(x, rotation)


def _block(c: ViTConfig, layer: int) -> Block:
    head_width = c.width // c.heads
    attention = Attention(
        c.width,
        c.heads,
        bias=c.qkv_bias,
        norm_eps=c.norm_eps if c.qk_norm else None,
        dropout=c.dropout,
        weights_dropout=c.attention_dropout,
        relative=RelativeKeys(c.tokens, c.heads, head_width) if c.position == "relative" else None,
    )
    gated = c.mlp_kind == "swiglu"
    mlp = SwiGLU(c.width, c.mlp, dropout=c.dropout) if gated else MLP(c.width, c.mlp, gelu=c.gelu, dropout=c.dropout)
    block_class = {"pre": Block, "post": PostNormBlock, "branch": BranchNormBlock}[c.norm]
    return block_class(
        c.width,
        attention,
        mlp,
        norm_eps=c.norm_eps,
        layer_scale=c.layer_scale,
        stochastic_depth=c.stochastic_depth * layer / max(1, c.depth - 1),
    )


def _position(c: ViTConfig) -> PositionEmbedding:
    table_grid = c.position_grid or c.grid
    tables: dict[str, Callable[[], nn.Module]] = {
        "learned1d": lambda: Learned1d(c.grid, c.width),
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


def _pool(c: ViTConfig) -> nn.Module:
    match c.pool:
        case "cls":
            return ClassPool()
        case "gap":
            return AveragePool(c.prefix_tokens)
        case "cls+gap":
            return ClassAndAveragePool(c.prefix_tokens)
        case "map":
            return AttentionPool(c.width, c.heads, c.mlp, prefix=c.prefix_tokens, norm_eps=c.norm_eps, gelu=c.gelu)


def _head(c: ViTConfig) -> nn.Module:
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
