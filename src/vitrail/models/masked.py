"""Masked image modelling: masked patch prediction (Dosovitskiy et al. 2021, B.1.2), MAE (He et al. 2022) and SimMIM (Xie et
al. 2022), each around an ordinary Vision Transformer.

The masked patches follow from noise that the caller passes: its lowest numbers in each image decide. Each module returns its
predictions for the masked patches only, and their indices.

b images, n patches of an image, m of them masked, v visible, t tokens, d width, k values predicted per patch.
"""

from math import prod

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from vitrail.layers.attention import Attention
from vitrail.layers.block import Block
from vitrail.layers.initial import dense
from vitrail.layers.mlp import MLP
from vitrail.layers.position import AddPosition, Fixed, Grid, sincos2d
from vitrail.models.masking import Masking, check_masking, check_unit
from vitrail.models.settings import ViTConfig
from vitrail.models.vit import ViT, zero_head

MASKED, SWAPPED = 0.8, 0.9  # of the corrupted patches, 80 % become the mask token, 10 % another patch, 10 % stay
Guess = tuple[Float[Tensor, "b m k"], Int[Tensor, "b m"]]


class Masked(nn.Module):
    """A masked image model: an encoder, and a decoder that is discarded after pre-training."""

    def __init__(self, encoder: ViT, masking: Masking) -> None:
        super().__init__()
        check_masking(masking, encoder.config)
        self.encoder = encoder
        self.masking = masking

    @property
    def config(self) -> ViTConfig:
        return self.encoder.config

    def rest(self) -> dict[str, Tensor]:
        """Return all weights except the encoder's."""
        return {name: weight for name, weight in self.state_dict().items() if not name.startswith("encoder.")}


class InPlace(Masked):
    """Masking that keeps every token in the encoder; a masked token predicts its patch from its own output."""

    def __init__(self, encoder: ViT, masking: Masking) -> None:
        super().__init__(encoder, masking)
        self.mask = mask_token(encoder.config.width)
        self.predict = _predictor(encoder.config, masking)


class MaskedPatch(InPlace):
    """Masked patch prediction: corrupted patch embeddings become the mask token, another patch, or stay."""

    def forward(self, images: Float[Tensor, "b c height width"], noise: Float[Tensor, "b slots"]) -> Guess:
        grid = self.encoder.grid(images)
        x = self.encoder.patches(images)
        order, fate, other = noise.unflatten(1, (3, prod(grid))).unbind(1)
        places = lowest(order, self.masking.hidden(grid))
        encoded = self.encoder.encode(self._corrupt(x, places, fate.gather(1, places), other.gather(1, places)), grid)
        return self.predict(take(encoded[:, self.config.prefix :], places)), places

    def _corrupt(
        self,
        x: Float[Tensor, "b n d"],
        places: Int[Tensor, "b m"],
        fate: Float[Tensor, "b m"],
        other: Float[Tensor, "b m"],
    ) -> Float[Tensor, "b n d"]:
        patches = x.shape[1]
        elsewhere = (places + 1 + (other * (patches - 1)).long().clamp(max=patches - 2)) % patches  # never the patch itself
        swapped = torch.where((fate < SWAPPED)[..., None], take(x, elsewhere), take(x, places))
        corrupted = torch.where((fate < MASKED)[..., None], self.mask, swapped)
        return x.scatter(1, repeat(places, "b m -> b m d", d=x.shape[2]), corrupted.to(x.dtype))


class SimMIM(InPlace):
    """SimMIM: mask tokens in place of patches, in squares of several, and a linear layer from outputs to pixels."""

    def forward(self, images: Float[Tensor, "b c height width"], noise: Float[Tensor, "b slots"]) -> Guess:
        grid = self.encoder.grid(images)
        x = self.encoder.patches(images)
        hidden = self._spread(noise, grid)
        encoded = self.encoder.encode(torch.where(hidden[..., None], self.mask.to(x.dtype), x), grid)
        places = lowest(1 - hidden.float(), self.masking.hidden(grid))  # all masked patches in raster order
        return self.predict(take(encoded[:, self.config.prefix :], places)), places

    def _spread(self, noise: Float[Tensor, "b units"], grid: Grid) -> Bool[Tensor, "b n"]:
        check_unit(self.masking, grid)  # a flexible encoder may get another grid than its own
        unit = self.masking.unit
        count = self.masking.hidden(grid) // unit**2
        units = torch.zeros_like(noise, dtype=torch.bool).scatter(1, lowest(noise, count), True)
        return repeat(units, "b (y x) -> b (y i x j)", y=grid[0] // unit, i=unit, j=unit)


class MAE(Masked):
    """MAE: the encoder processes only the visible patches; a light decoder gets a mask token for each of the others."""

    def __init__(self, encoder: ViT, masking: Masking) -> None:
        super().__init__(encoder, masking)
        self.decoder = Decoder(encoder.config, masking)

    def forward(self, images: Float[Tensor, "b c height width"], noise: Float[Tensor, "b slots"]) -> Guess:
        grid = self.encoder.grid(images)
        order = lowest(noise, noise.shape[1])
        seen = prod(grid) - self.masking.hidden(grid)
        visible, hidden = order[:, :seen], order[:, seen:]  # the lowest noise stays visible, as in the authors' code
        encoded = self.encoder.encode(take(self.encoder.patches(images), visible), grid, visible)
        return self.decoder(encoded, visible, hidden, grid), hidden


class Decoder(nn.Module):
    """MAE's decoder: fewer and narrower blocks over all positions."""

    def __init__(self, config: ViTConfig, masking: Masking) -> None:
        super().__init__()
        width, heads = masking.decoder_width, masking.decoder_heads
        self.prefix = config.prefix
        self.embed = dense(nn.Linear(config.width, width))
        self.mask = mask_token(width)
        table = Fixed(sincos2d(config.grid, width, "mae"))
        self.positions = AddPosition(table, width, prefix=config.prefix, covered=0, resize="huggingface")
        self.blocks = nn.ModuleList(
            Block(width, Attention(width, heads), MLP(width, 4 * width, gelu=config.gelu), epsilon=config.epsilon)
            for _ in range(masking.decoder_depth)
        )
        self.norm = nn.LayerNorm(width, eps=config.epsilon)
        self.predict = dense(nn.Linear(width, masking.numbers(config)))

    def forward(
        self, x: Float[Tensor, "b t d"], visible: Int[Tensor, "b v"], hidden: Int[Tensor, "b m"], grid: Grid
    ) -> Float[Tensor, "b m k"]:
        x = self.embed(x)
        masks = repeat(self.mask.to(x.dtype), "d -> b m d", b=x.shape[0], m=hidden.shape[1])
        x = self.positions(torch.cat([x, masks], dim=1), grid, torch.cat([visible, hidden], dim=1))
        for block in self.blocks:
            x = block(x)
        return self.predict(self.norm(x[:, self.prefix + visible.shape[1] :]))


KINDS: dict[str, type[Masked]] = {"masked-patch": MaskedPatch, "mae": MAE, "simmim": SimMIM}


def masked(encoder: ViT, masking: Masking) -> Masked:
    return KINDS[masking.method](encoder, masking)


def mask_token(width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(width), std=0.02))


def lowest(noise: Float[Tensor, "b n"], count: int) -> Int[Tensor, "b m"]:
    """Return the indices of the lowest numbers of each row; ties go to the first."""
    return noise.argsort(dim=1, stable=True)[:, :count]


def take(x: Shaped[Tensor, "b n d"], places: Int[Tensor, "b m"]) -> Shaped[Tensor, "b m d"]:
    return x.gather(1, repeat(places, "b m -> b m d", d=x.shape[2]))


def _predictor(config: ViTConfig, masking: Masking) -> nn.Module:
    numbers = masking.numbers(config)
    return dense(nn.Linear(config.width, numbers)) if masking.target == "pixels" else zero_head(config.width, numbers)
