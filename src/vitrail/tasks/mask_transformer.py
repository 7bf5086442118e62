"""The mask transformer of Segmenter (Strudel et al. 2021, section 3.2).

A token for each class passes through a few blocks together with the patch tokens; the logit of a class for a patch is the
cosine of the angle between the two, normalised over the classes.

b images, n patches, t tokens of the decoder, d width of the encoder, e width of the decoder, k classes.
"""

from collections.abc import Sequence

import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.attention import Attention
from vitrail.layers.block import Block
from vitrail.layers.mlp import MLP, Gelu
from vitrail.layers.norm import norm_layer
from vitrail.layers.position import Grid
from vitrail.layers.weight_init import xavier_linear
from vitrail.models.config import Pair
from vitrail.tasks.dense import upsample_patches

NORM_EPS = 1e-5  # the authors', whatever the encoder's


class MaskTransformer(nn.Module):
    """Logits of every pixel from patch tokens, by the similarity of each patch to a token for each class."""

    def __init__(
        self,
        width: int,
        classes: int,
        patch: Pair,
        *,
        depth: int,
        decoder_width: int,
        heads: int,
        gelu: Gelu = "exact",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.embed = xavier_linear(nn.Linear(width, decoder_width))
        self.cls = nn.Parameter(torch.empty(classes, decoder_width))  # a token for each class of pixels
        nn.init.trunc_normal_(self.cls, std=0.02)
        norm = norm_layer(eps=NORM_EPS)
        self.blocks = nn.ModuleList(
            Block(
                decoder_width,
                Attention(decoder_width, heads, dropout=dropout),
                MLP(decoder_width, 4 * decoder_width, gelu=gelu, dropout=dropout),
                norm=norm,
            )
            for _ in range(depth)
        )
        self.norm = norm(decoder_width)
        self.project_patches = _projection(decoder_width)
        self.project_classes = _projection(decoder_width)
        self.mask_norm = norm(classes)

    def forward(self, layers: Sequence[Float[Tensor, "b n d"]], grid: Grid) -> Float[Tensor, "b k height width"]:
        (patches,) = layers
        classes = repeat(self.cls, "k e -> b k e", b=patches.shape[0])
        x = torch.cat([self.embed(patches), classes], dim=1)
        for block in self.blocks:
            x = block(x)
        return upsample_patches(self.mask_norm(self._similarity(self.norm(x))), grid, self.patch)

    def _similarity(self, x: Float[Tensor, "b t e"]) -> Float[Tensor, "b n k"]:
        """Return the cosine between each patch and each class, which are the last tokens."""
        patches, classes = x.tensor_split([-self.cls.shape[0]], dim=1)
        patches = F.normalize(self.project_patches(patches), dim=-1)
        classes = F.normalize(self.project_classes(classes), dim=-1)
        return patches @ classes.mT


def _projection(width: int) -> nn.Linear:
    """Return a linear map that keeps the length of vectors on average."""
    linear = nn.Linear(width, width, bias=False)
    nn.init.normal_(linear.weight, std=width**-0.5)
    return linear
