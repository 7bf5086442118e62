"""An encoder with a head on its patch tokens, for outputs that belong to places of the image. b images, n patches, d width."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.models.config import ViTConfig
from vitrail.models.vit import ViT


class PatchTokenModel(nn.Module):
    """A head on the patch tokens of some blocks, which are normalised: its outputs, from their list and the grid."""

    def __init__(self, encoder: ViT, head: nn.Module, layers: Sequence[int] = ()) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = tuple(layers) or (encoder.config.depth,)
        self.head: Any = head

    @property
    def config(self) -> ViTConfig:
        return self.encoder.config

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k rows columns"]:
        grid, prefix = self.encoder.grid(images), self.config.prefix_tokens
        layers = self.encoder.encode_layers(self.encoder.embed_patches(images), grid, self.layers)
        for index in range(len(layers)):  # in place of those without the norm, which need not be kept
            layers[index] = self.encoder.norm(layers[index])[:, prefix:]
        outputs: Tensor = self.head(layers, grid)
        return outputs
