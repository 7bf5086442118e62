"""The Vision Transformer (Dosovitskiy et al. 2021): z0 = [class; x E] + E_pos, L blocks, y = LN(zL), a head.

b batch, c channels, n patches, t tokens, d width.
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
from vitrail.layers.block import Block, PostNormBlock
from vitrail.layers.initial import lecun_normal_
from vitrail.layers.merge import taken
from vitrail.layers.mlp import MLP
from vitrail.layers.patch import PatchEmbed
from vitrail.layers.pool import AttentionPool, AveragePool, ClassPool
from vitrail.layers.position import (
    AddPosition,
    Fixed,
    Grid,
    Learned1d,
    Learned2d,
    Places,
    RelativeKeys,
    Rotary,
    Rotation,
    sincos1d,
    sincos2d,
)
from vitrail.layers.tap import unwatched, watched
from vitrail.models.hybrid import Root
from vitrail.models.settings import ViTConfig, check_image, check_pictures, times


class ViT(nn.Module):
    """A Vision Transformer: images to logits. ``features`` stops before the head, ``encode`` before pooling."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        c = self.config = config
        self.preprocess: Preprocess | None = None  # how to preprocess images, if known
        self.labels: tuple[str, ...] | None = None  # names of the classes, if known
        self.report: Any = None  # how the tensors of its file were used
        self.facts: dict[str, Any] = {}  # from its file: recipe, dataset, metrics
        self.checkpointing = False  # recompute each block in the backward pass instead of saving its activations
        self.stem = nn.Identity() if c.stem is None else Root(c.channels, c.stem)
        self.embed = PatchEmbed(c.stem.channels if c.stem else c.channels, c.width, c.patch)
        self.cls = nn.Parameter(torch.zeros(c.width)) if c.has_class_token else None
        self.registers = nn.Parameter(torch.empty(c.registers, c.width)) if c.registers else None
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)  # unlike one class token, equal registers would stay equal
        tables = len({table for table in c.layers_with_position if table is not None})
        self.positions = nn.ModuleList(_position(c) for _ in range(tables))
        self.rotary = Rotary(c.position_grid or c.grid, c.width // c.heads, c.prefix) if c.position == "rotary" else None
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(_block(c, layer) for layer in range(c.depth))
        last: nn.Module = nn.Identity() if c.norm == "post" else nn.LayerNorm(c.width, eps=c.epsilon)
        self.norm = last if c.norm_at == "tokens" else nn.Identity()
        self.pooled_norm = last if c.norm_at == "pooled" else nn.Identity()
        self.pool = _pool(c)
        self.head = _head(c)

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
        return self.head(self.features(images))

    def features(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d"]:
        """Return the representation of each image: y in the paper."""
        grid, places, x = self.grid(images), self.places(images), self.patches(images)
        return self.gathered(x if places is None else taken(x, places), grid, places)

    def patches(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        return self.embed(self.stem(images))

    def places(self, images: Float[Tensor, "b c height width"]) -> Places | None:
        """Return the indices of the patches to process; None: all. Subclasses that drop patches override it."""
        return None

    def gathered(self, x: Float[Tensor, "b n d"], grid: Grid, places: Places | None = None) -> Float[Tensor, "b d"]:
        """Encode embedded patches and pool them to the input of the head."""
        return self.pooled_norm(self.pool(self.encode(x, grid, places)))

    def encode(self, x: Float[Tensor, "b n d"], grid: Grid, places: Places | None = None) -> Float[Tensor, "b t d"]:
        """Prepend the class token and the registers to the patches, add positions, run the blocks and the last norm.

        ``patch_indices``: which patches of the grid these are, a row per image; None: all, in order.
        """
        x = self.prepended(x)
        rotation = None if self.rotary is None else self.rotary(grid, x.device, places)
        for layer, (table, block) in enumerate(zip(self.config.layers_with_position, self.blocks, strict=True)):
            x = x if table is None else self.positions[table](x, grid, places)
            x = self.dropout(x) if layer == 0 else x
            x = self._run(block, x, rotation)
        return self.norm(x)

    def prepended(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b t d"]:
        before = [token for token in (self.cls, self.registers) if token is not None]
        if not before:
            return x
        return torch.cat([*(repeat(token, "... d -> b (...) d", b=x.shape[0]) for token in before), x], dim=1)

    def grid(self, images: Float[Tensor, "b c height width"]) -> Grid:
        """Return rows and columns of patches in these images, or raise an error that names a valid size."""
        check_pictures(tuple(images.shape), self.config.channels)
        size = images.shape[2], images.shape[3]
        if self.config.flexible:
            check_image(self.config, size)
        elif size != self.config.image:
            raise VitrailError(
                f"images must be {times(self.config.image)}, got {times(size)}; "
                f"resize them to {times(self.config.image)}, or build the model with flexible=True"
            )
        return size[0] // self.config.stride[0], size[1] // self.config.stride[1]

    def _run(self, block: nn.Module, x: Float[Tensor, "b t d"], rotation: Rotation | None) -> Float[Tensor, "b t d"]:
        if self.checkpointing and torch.is_grad_enabled() and not watched(block):  # recorded values are stored anyway
            again: dict[str, Any] = (
                {} if torch.compiler.is_compiling() else {"context_fn": lambda: (nullcontext(), unwatched(block))}
            )
            return checkpoint(block, x, rotation, use_reentrant=False, **again)
        return block(x, rotation)


def _block(c: ViTConfig, layer: int) -> Block:
    head_width = c.width // c.heads
    attention = Attention(
        c.width,
        c.heads,
        bias=c.qkv_bias,
        norm_epsilon=c.epsilon if c.qk_norm else None,
        dropout=c.dropout,
        weights_dropout=c.attention_dropout,
        relative=RelativeKeys(c.tokens, c.heads, head_width) if c.position == "relative" else None,
    )
    make = Block if c.norm == "pre" else PostNormBlock
    return make(
        c.width,
        attention,
        MLP(c.width, c.mlp, gelu=c.gelu, dropout=c.dropout),
        epsilon=c.epsilon,
        layer_scale=c.layer_scale,
        stochastic_depth=c.stochastic_depth * layer / max(1, c.depth - 1),
    )


def _position(c: ViTConfig) -> AddPosition:
    made_for = c.position_grid or c.grid
    tables: dict[str, Callable[[], nn.Module]] = {
        "learned1d": lambda: Learned1d(c.grid, c.width),
        "learned2d": lambda: Learned2d(c.grid, c.width),
        "learned2d-sum": lambda: Learned2d(c.grid, c.width, join="add"),
        "sincos1d": lambda: Fixed(sincos1d(made_for, c.width)),
        "sincos2d": lambda: Fixed(sincos2d(made_for, c.width, "big_vision")),
        "sincos2d-mae": lambda: Fixed(sincos2d(made_for, c.width, "mae")),
        "sincos2d-moco": lambda: Fixed(sincos2d(made_for, c.width, "moco")),
    }
    return AddPosition(tables[c.position](), c.width, prefix=c.prefix, covered=c.covered, resize=c.resize)


def _pool(c: ViTConfig) -> nn.Module:
    match c.pool:
        case "cls":
            return ClassPool()
        case "gap":
            return AveragePool(c.prefix)
        case "map":
            return AttentionPool(c.width, c.heads, c.mlp, prefix=c.prefix, epsilon=c.epsilon, gelu=c.gelu)


def _head(c: ViTConfig) -> nn.Module:
    if c.head == "linear":
        return zero_head(c.width, c.classes)
    hidden = nn.Linear(c.width, c.head_width or c.width)
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
