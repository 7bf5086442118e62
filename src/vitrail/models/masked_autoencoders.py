"""Masked image modelling: masked patch prediction (Dosovitskiy et al. 2021, B.1.2), MAE (He et al. 2022) and SimMIM (Xie et
al. 2022), each around an ordinary Vision Transformer.

The masked patches follow from noise that the caller passes: its lowest numbers in each image decide. Each module returns its
predictions for the masked patches only, and their indices.

b images, n patches of an image, m of them masked, v visible, t tokens, d width, k values predicted per patch.
"""

from math import prod

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.layers.attention import Attention
from vitrail.layers.block import Block
from vitrail.layers.mlp import MLP
from vitrail.layers.norm import norm_layer
from vitrail.layers.position import FixedTable, Grid, PositionEmbedding, sincos2d
from vitrail.layers.token_merging import gather_tokens
from vitrail.layers.weight_init import xavier_linear
from vitrail.models.config import ViTConfig
from vitrail.models.masking_config import Masking, check_mask_unit, check_masking
from vitrail.models.vit import ViT
from vitrail.models.vit_parts import zero_head

MASK_BELOW, SWAP_BELOW = 0.8, 0.9  # of the corrupted patches, 80 % become the mask token, 10 % another patch, 10 % stay
PatchPredictions = tuple[Float[Tensor, "b m k"], Int[Tensor, "b m"]]


class MaskedModel(nn.Module):
    """A masked image model: an encoder, and a decoder that is discarded after pre-training."""

    def __init__(self, encoder: ViT, masking: Masking) -> None:
        super().__init__()
        check_masking(masking, encoder.config)
        self.encoder = encoder
        self.masking = masking

    @property
    def config(self) -> ViTConfig:
        return self.encoder.config


class InPlaceMasking(MaskedModel):
    """Masking that keeps every token in the encoder; a masked token predicts its patch from its own output."""

    def __init__(self, encoder: ViT, masking: Masking) -> None:
        super().__init__(encoder, masking)
        self.mask = mask_token(encoder.config.width)
        self.predict = _prediction_head(encoder.config, masking)


class MaskedPatch(InPlaceMasking):
    """Masked patch prediction: corrupted patch embeddings become the mask token, another patch, or stay."""

    def forward(self, images: Float[Tensor, "b c height width"], noise: Float[Tensor, "b slots"]) -> PatchPredictions:
        grid = self.encoder.grid(images)
        x = self.encoder.embed_patches(images)
        order, fate, other = noise.unflatten(1, (3, prod(grid))).unbind(1)
        indices = lowest_k(order, self.masking.num_masked(grid))
        encoded = self.encoder.encode(self._corrupt(x, indices, fate.gather(1, indices), other.gather(1, indices)), grid)
        return self.predict(gather_tokens(encoded, self.config.prefix_tokens + indices)), indices

    def _corrupt(
        self,
        x: Float[Tensor, "b n d"],
        indices: Int[Tensor, "b m"],
        fate: Float[Tensor, "b m"],
        other: Float[Tensor, "b m"],
    ) -> Float[Tensor, "b n d"]:
        patches = x.shape[1]
        other_indices = (
            indices + 1 + (other * (patches - 1)).long().clamp(max=patches - 2)
        ) % patches  # never the patch itself
        swapped = torch.where((fate < SWAP_BELOW)[..., None], gather_tokens(x, other_indices), gather_tokens(x, indices))
        corrupted = torch.where((fate < MASK_BELOW)[..., None], self.mask, swapped)
        return x.scatter(1, repeat(indices, "b m -> b m d", d=x.shape[2]), corrupted.to(x.dtype))


class SimMIM(InPlaceMasking):
    """SimMIM: mask tokens in place of patches, in squares of several, and a linear layer from outputs to pixels."""

    def forward(self, images: Float[Tensor, "b c height width"], noise: Float[Tensor, "b slots"]) -> PatchPredictions:
        grid = self.encoder.grid(images)
        x = self.encoder.embed_patches(images)
        masked = self._draw_mask(noise, grid)
        encoded = self.encoder.encode(torch.where(masked[..., None], self.mask.to(x.dtype), x), grid)
        indices = lowest_k(1 - masked.float(), self.masking.num_masked(grid))  # all masked patches in raster order
        return self.predict(gather_tokens(encoded, self.config.prefix_tokens + indices)), indices

    def _draw_mask(self, noise: Float[Tensor, "b units"], grid: Grid) -> Bool[Tensor, "b n"]:
        check_mask_unit(self.masking, grid)  # a flexible encoder may get another grid than its own
        unit = self.masking.mask_unit
        count = self.masking.num_masked(grid) // unit**2
        units = torch.zeros_like(noise, dtype=torch.bool).scatter(1, lowest_k(noise, count), True)
        return repeat(units, "b (y x) -> b (y i x j)", y=grid[0] // unit, i=unit, j=unit)


class MAE(MaskedModel):
    """MAE: the encoder processes only the visible patches; a light decoder gets a mask token for each of the others."""

    def __init__(self, encoder: ViT, masking: Masking) -> None:
        super().__init__(encoder, masking)
        self.decoder = Decoder(encoder.config, masking)

    def forward(self, images: Float[Tensor, "b c height width"], noise: Float[Tensor, "b slots"]) -> PatchPredictions:
        grid = self.encoder.grid(images)
        order = lowest_k(noise, noise.shape[1])
        num_visible = prod(grid) - self.masking.num_masked(grid)
        visible, masked = order[:, :num_visible], order[:, num_visible:]  # the lowest noise is visible, as the authors have it
        encoded = self.encoder.encode(gather_tokens(self.encoder.embed_patches(images), visible), grid, visible)
        return self.decoder(encoded, visible, masked, grid), masked


class Decoder(nn.Module):
    """MAE's decoder: fewer and narrower blocks over all positions."""

    def __init__(self, config: ViTConfig, masking: Masking) -> None:
        super().__init__()
        width, heads = masking.decoder_width, masking.decoder_heads
        self.prefix = config.prefix_tokens
        self.embed = xavier_linear(nn.Linear(config.width, width))
        self.mask = mask_token(width)
        table = FixedTable(sincos2d(config.grid, width, "mae"))
        self.positions = PositionEmbedding(table, width, prefix=config.prefix_tokens, prefix_positions=0, resize="huggingface")
        self.blocks = nn.ModuleList(
            Block(width, Attention(width, heads), MLP(width, 4 * width, gelu=config.gelu), norm=norm_layer(eps=config.norm_eps))
            for _ in range(masking.decoder_depth)
        )
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.predict = xavier_linear(nn.Linear(width, masking.target_dim(config)))

    def forward(
        self, x: Float[Tensor, "b t d"], visible: Int[Tensor, "b v"], masked: Int[Tensor, "b m"], grid: Grid
    ) -> Float[Tensor, "b m k"]:
        x = self.embed(x)
        masks = repeat(self.mask.to(x.dtype), "d -> b m d", b=x.shape[0], m=masked.shape[1])
        x = self.positions(torch.cat([x, masks], dim=1), grid, torch.cat([visible, masked], dim=1))
        for block in self.blocks:
            x = block(x)
        return self.predict(self.norm(x[:, self.prefix + visible.shape[1] :]))


MASKED_MODELS: dict[str, type[MaskedModel]] = {"masked-patch": MaskedPatch, "mae": MAE, "simmim": SimMIM}


def build_masked_model(encoder: ViT, masking: Masking) -> MaskedModel:
    return MASKED_MODELS[masking.method](encoder, masking)


def mask_token(width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(width), std=0.02))


def lowest_k(noise: Float[Tensor, "b n"], count: int) -> Int[Tensor, "b m"]:
    """Return the indices of the lowest numbers of each row; ties go to the first."""
    return noise.argsort(dim=1, stable=True)[:, :count]


def _prediction_head(config: ViTConfig, masking: Masking) -> nn.Module:
    target_dim = masking.target_dim(config)
    return (
        xavier_linear(nn.Linear(config.width, target_dim))
        if masking.target == "pixels"
        else zero_head(config.width, target_dim)
    )
