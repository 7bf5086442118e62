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
from vitrail.models.config import Pair, ViTConfig
from vitrail.models.vit import ViT


class LinearHead(nn.Module):
    """One linear layer from a token to the logits of all pixels of its patch, so that edges within a patch can be predicted."""

    def __init__(self, width: int, classes: int, patch: Pair, num_layers: int = 1) -> None:
        super().__init__()
        self.patch = patch
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(num_layers))
        self.linear = nn.Linear(num_layers * width, classes * patch[0] * patch[1])
        nn.init.zeros_(self.linear.weight)  # a zero head starts every class with the same probability
        nn.init.zeros_(self.linear.bias)

    def forward(self, layers: Sequence[Float[Tensor, "b n d"]], grid: Grid) -> Float[Tensor, "b k height width"]:
        x = torch.cat([norm(tokens) for norm, tokens in zip(self.norms, layers, strict=True)], dim=-1)
        p, q = self.patch
        return rearrange(self.linear(x), "b (y x) (k p q) -> b k (y p) (x q)", y=grid[0], p=p, q=q)


class LinearSegmenter(nn.Module):
    """Logits of every pixel, from the patch tokens of some blocks."""

    def __init__(self, encoder: ViT, classes: int, layers: Sequence[int] = ()) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = tuple(layers) or (encoder.config.depth,)
        self.head = LinearHead(encoder.config.width, classes, encoder.config.patch_stride, len(self.layers))

    @property
    def config(self) -> ViTConfig:
        return self.encoder.config

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k height width"]:
        grid = self.encoder.grid(images)
        layers = self.encoder.encode_layers(self.encoder.embed_patches(images), grid, self.layers)
        prefix = self.config.prefix_tokens
        return self.head([self.encoder.norm(tokens)[:, prefix:] for tokens in layers], grid)
