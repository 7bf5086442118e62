"""A Vision Transformer that predicts a class for every pixel: an encoder, and a head on its patch tokens.

b images, n patches, t tokens, d width, f width of the tokens of all layers that a head sees, k classes, p and q the sides of a
patch.
"""

from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.position import Grid
from vitrail.models.config import Pair
from vitrail.models.vit import ViT
from vitrail.tasks.dense import upsample_patches
from vitrail.tasks.mask_transformer import MaskTransformer
from vitrail.tasks.patch_token_model import PatchTokenModel


class LinearHead(nn.Module):
    """One linear layer from a token to the logits of all pixels of its patch, so that edges within a patch can be predicted."""

    def __init__(self, width: int, classes: int, patch: Pair, num_layers: int = 1) -> None:
        super().__init__()
        self.patch = patch
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(num_layers))
        self.linear = _zero_linear(num_layers * width, classes * patch[0] * patch[1])

    def forward(self, layers: Sequence[Float[Tensor, "b n d"]], grid: Grid) -> Float[Tensor, "b k height width"]:
        x = torch.cat([norm(tokens) for norm, tokens in zip(self.norms, layers, strict=True)], dim=-1)
        p, q = self.patch
        return rearrange(self.linear(x), "b (y x) (k p q) -> b k (y p) (x q)", y=grid[0], p=p, q=q)


class PatchLinearHead(nn.Module):
    """One linear layer from a token to the logits of its patch, which are interpolated (the linear decoder of Strudel et al.
    2021)."""

    def __init__(self, width: int, classes: int, patch: Pair, num_layers: int = 1) -> None:
        super().__init__()
        self.patch = patch
        self.linear = _zero_linear(num_layers * width, classes)

    def forward(self, layers: Sequence[Float[Tensor, "b n d"]], grid: Grid) -> Float[Tensor, "b k height width"]:
        return upsample_patches(self.linear(torch.cat(list(layers), dim=-1)), grid, self.patch)


class LinearSegmenter(PatchTokenModel):
    """A segmentation model with a linear head: from a token to the logits of its patch's pixels, or of its patch."""

    def __init__(self, encoder: ViT, classes: int, layers: Sequence[int] = (), subpatch: bool = True) -> None:
        head, config = LinearHead if subpatch else PatchLinearHead, encoder.config
        super().__init__(encoder, head(config.width, classes, config.patch_stride, max(len(layers), 1)), layers)


class MaskTransformerSegmenter(PatchTokenModel):
    """A segmentation model with a mask transformer: Segmenter (Strudel et al. 2021)."""

    def __init__(self, encoder: ViT, classes: int, depth: int, width: int, heads: int) -> None:
        config = encoder.config
        decoder = MaskTransformer(
            config.width,
            classes,
            config.patch_stride,
            depth=depth,
            decoder_width=width,
            heads=heads,
            gelu=config.gelu,
            dropout=config.dropout,
        )
        super().__init__(encoder, decoder)


def _zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer of zeros, so that every class starts with the same probability."""
    linear = nn.Linear(inputs, outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
