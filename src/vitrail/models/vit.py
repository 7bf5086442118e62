"""The Vision Transformer (Dosovitskiy et al. 2021): z0 = [class; x E] + E_pos, L blocks, y = LN(zL), a head.

b batch, c channels, n patches, t tokens, d width, f width of the representation.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.layers.norm import norm_layer
from vitrail.layers.position import Grid, PatchIndices
from vitrail.layers.rotary import Rotation
from vitrail.layers.tap import is_recording, pause_recording
from vitrail.layers.token_merging import gather_tokens
from vitrail.models.config import ViTConfig, check_image_size, check_images, format_size
from vitrail.models.resnet_stem import ResNetStem
from vitrail.models.vit_parts import (
    build_block,
    build_head,
    build_patch_embed,
    build_pool,
    build_position,
    build_relative_bias,
    build_rotary,
)


class AttentionPositions(NamedTuple):
    """Positions inside the attention of a layer, which may serve several."""

    rotation: Rotation | None = None
    bias: Float[Tensor, "... t t"] | None = None  # of the scores
    grid: Grid | None = None  # of the patches, which windows and relative positions along its axes need


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
        self.embed = build_patch_embed(c)
        self.cls = nn.Parameter(torch.zeros(c.width)) if c.has_class_token else None
        self.registers = nn.Parameter(torch.empty(c.registers, c.width)) if c.registers else None
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)  # unlike one class token, equal registers would stay equal
        tables = len({table for table in c.layers_with_position if table is not None})
        self.positions = nn.ModuleList(build_position(c) for _ in range(tables))
        self.rotary = build_rotary(c)  # one for all layers or, with learned frequencies, one for each
        self.relative_bias = build_relative_bias(c)  # likewise
        self.dropout = nn.Dropout(c.dropout)
        norm = norm_layer(c.norm_kind, c.norm_eps)
        self.embed_norm = norm(c.width) if c.embed_norm else nn.Identity()
        self.blocks = nn.ModuleList(build_block(c, layer) for layer in range(c.depth))
        last: nn.Module = nn.Identity() if c.norm == "post" else norm(c.width)
        self.norm = last if c.final_norm == "tokens" else nn.Identity()
        self.pooled_norm = last if c.final_norm == "pooled" else nn.Identity()
        self.pool = build_pool(c)
        self.head = build_head(c)

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
        return self.norm(self.encode_layers(x, grid, (self.config.depth,), patch_indices)[0])

    def encode_layers(
        self,
        x: Float[Tensor, "b n d"],
        grid: Grid,
        layers: Sequence[int],
        patch_indices: PatchIndices | None = None,
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the outputs of some blocks, which are numbered from 1, without the last norm; 0: what the first one gets."""
        if patch_indices is not None and self.config.needs_whole_grid:
            raise VitrailError("windows and relative positions along the axes need all patches of the grid; leave none out")
        x = self.add_prefix_tokens(x)
        positions = AttentionPositions()
        outputs: list[Tensor] = []
        for layer in range(self.config.depth):
            x = self.enter_layer(layer, x, grid, patch_indices)
            if layer in layers:
                outputs.append(x)
            positions = self.attention_positions(layer, grid, x.device, positions, patch_indices)
            x = self.run_layer(layer, x, positions)
        return [*outputs, x] if len(self.blocks) in layers else outputs

    def enter_layer(
        self, layer: int, x: Float[Tensor, "b t d"], grid: Grid, patch_indices: PatchIndices | None = None
    ) -> Float[Tensor, "b t d"]:
        """Return what the block of a layer gets, numbered from 0: the tokens, with positions if they are added there."""
        table = self.config.layers_with_position[layer]
        x = x if table is None else self.positions[table](x, grid, patch_indices)
        return self.embed_norm(self.dropout(x)) if layer == 0 else x

    def attention_positions(
        self,
        layer: int,
        grid: Grid,
        device: torch.device,
        previous: AttentionPositions,
        patch_indices: PatchIndices | None = None,
    ) -> AttentionPositions:
        """Return the positions inside the attention of a layer: its own, or those of the layer before."""
        return AttentionPositions(
            self.rotary[layer](grid, device, patch_indices) if layer < len(self.rotary) else previous.rotation,
            self.relative_bias[layer](grid, patch_indices) if layer < len(self.relative_bias) else previous.bias,
            grid if self.config.needs_whole_grid else None,
        )

    def run_layer(self, layer: int, x: Float[Tensor, "b t d"], positions: AttentionPositions) -> Float[Tensor, "b t d"]:
        return self._run_block(self.blocks[layer], x, positions)

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

    def _run_block(
        self,
        block: nn.Module,
        x: Float[Tensor, "b t d"],
        positions: AttentionPositions,
    ) -> Float[Tensor, "b t d"]:
        rotation, bias, grid = positions
        # recorded values are stored anyway
        if self.activation_checkpointing and torch.is_grad_enabled() and not is_recording(block):
            options: dict[str, Any] = (
                {} if torch.compiler.is_compiling() else {"context_fn": lambda: (nullcontext(), pause_recording(block))}
            )
            return checkpoint(block, x, rotation, bias, None, grid, use_reentrant=False, **options)
        return block(x, rotation, bias, None, grid)
