"""EoMT (Kerssies et al. 2025): a Vision Transformer whose last blocks also have queries, each of which predicts a mask and its
class.

The queries follow the patches as tokens like any other, so that what is added to the encoder is the queries, and small layers
that turn tokens into masks. b images, n patches, t tokens, q queries, l query blocks, d width, k classes, o of them and
none, y by x the grid of the masks, which is finer than that of the patches.
"""

from collections.abc import Collection
from typing import NamedTuple

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.position import Grid
from vitrail.models.config import Pair, ViTConfig
from vitrail.models.cost.eomt import num_upscale_blocks
from vitrail.models.vit import AttentionPositions, ViT
from vitrail.tasks.query_segments import SegmentMap, find_segments

SCORE_EPS = 1e-6  # the smallest score of a class, whose logarithm is finite


class QueryLogits(NamedTuple):
    """The prediction of every query: its class, the last one of which is none, and its mask. Axes before b are the blocks."""

    classes: Float[Tensor, "*l b q o"]
    masks: Float[Tensor, "*l b q y x"]


class ScaleBlock(nn.Sequential):
    """Twice the resolution: a transposed convolution, GELU, a depthwise convolution, and a norm of the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.gelu = nn.GELU()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.norm = ChannelNorm(width)


class ChannelNorm(nn.LayerNorm):
    """Layer norm of the channels of each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return rearrange(super().forward(rearrange(x, "b d y x -> b y x d")), "b y x d -> b d y x")


class QueryHead(nn.Module):
    """The queries, and what predicts a class and a mask from each."""

    def __init__(self, width: int, classes: int, queries: int, upscale_blocks: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.classes = nn.Linear(width, classes + 1)
        self.masks = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.upscale = nn.Sequential(*(ScaleBlock(width) for _ in range(upscale_blocks)))

    def forward(self, queries: Float[Tensor, "b q d"], patches: Float[Tensor, "b n d"], grid: Grid) -> QueryLogits:
        pixels = self.upscale(rearrange(patches, "b (y x) d -> b d y x", y=grid[0]))
        return QueryLogits(self.classes(queries), einsum(self.masks(queries), pixels, "b q d, b d y x -> b q y x"))


class EoMT(nn.Module):
    """An encoder with queries in its last blocks."""

    def __init__(
        self, encoder: ViT, classes: int, queries: int = 100, query_blocks: int = 4, upscale_blocks: int | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.query_blocks = query_blocks
        config = encoder.config
        if upscale_blocks is None:
            upscale_blocks = num_upscale_blocks(config.patch_stride)
        self.head = QueryHead(config.width, classes, queries, upscale_blocks)

    @property
    def config(self) -> ViTConfig:
        return self.encoder.config

    def forward(
        self, images: Float[Tensor, "b c height width"], unmasked: Bool[Tensor, "b l q"] | None = None
    ) -> Tensor | QueryLogits:
        """Return the logarithm of the score of each class for each pixel, which is its logit (b k height width).

        To train, name with ``unmasked`` the queries that attend to all patches, those of each block; the others attend only
        to the patches inside their mask. Then the predictions before the first block of the queries, and after each of their
        blocks, are returned.
        """
        if unmasked is not None:
            classes, masks = zip(*self._predictions(images, unmasked), strict=True)
            return QueryLogits(torch.stack(classes), torch.stack(masks))
        size = images.shape[2], images.shape[3]
        return semantic_logits(self.query_logits(images), size)

    def query_logits(self, images: Float[Tensor, "b c height width"]) -> QueryLogits:
        """Return the class logits of each query (b q o) and those of its mask (b q y x)."""
        return self._predictions(images, None)[-1]

    def segments(self, images: Float[Tensor, "b c height width"], stuff: Collection[int] = ()) -> list[SegmentMap]:
        """Return the segments of each image, at the size of the input: things, and one for each class of ``stuff``."""
        size = images.shape[2], images.shape[3]
        logits = self.query_logits(images)
        return [find_segments(*each, size, stuff) for each in zip(logits.classes, logits.masks, strict=True)]

    def _predictions(
        self, images: Float[Tensor, "b c height width"], unmasked: Bool[Tensor, "b l q"] | None
    ) -> list[QueryLogits]:
        """Return the predictions after the last block and, in training, those before each block of the queries, first."""
        encoder, first = self.encoder, self.config.depth - self.query_blocks
        grid, positions = encoder.grid(images), AttentionPositions()
        x = encoder.add_prefix_tokens(encoder.embed_patches(images))
        outputs: list[QueryLogits] = []
        queries: Tensor = repeat(self.head.queries, "q d -> b q d", b=x.shape[0])
        for layer in range(self.config.depth):
            x = encoder.enter_layer(layer, x, grid)
            positions = encoder.attention_positions(layer, grid, x.device, positions)
            if layer < first:
                x = encoder.run_layer(layer, x, positions)
                continue
            mask = None
            if unmasked is not None:
                outputs.append(self._predict(x, queries, grid))
                mask = self._attention_mask(outputs[-1].masks.detach(), unmasked[:, layer - first], grid)
            tokens = torch.cat([x, queries], dim=1)
            tokens = encoder.run_layer(layer, tokens, with_queries(positions, queries.shape[1], mask))
            x, queries = tokens[:, : -queries.shape[1]], tokens[:, -queries.shape[1] :]
        return [*outputs, self._predict(x, queries, grid)]

    def _predict(self, x: Float[Tensor, "b t d"], queries: Float[Tensor, "b q d"], grid: Grid) -> QueryLogits:
        norm = self.encoder.norm
        predicted: QueryLogits = self.head(norm(queries), norm(x[:, self.config.prefix_tokens :]), grid)
        return predicted

    def _attention_mask(
        self, masks: Float[Tensor, "b q y x"], unmasked: Bool[Tensor, "b q"], grid: Grid
    ) -> Bool[Tensor, "b q t"]:
        """Return which tokens before the queries each of them attends to: those of the prefix, and patches in its mask."""
        inside = F.interpolate(masks.float(), grid, mode="bilinear").flatten(2) > 0
        return F.pad(inside | unmasked[..., None], (self.config.prefix_tokens, 0), value=True)


def with_queries(positions: AttentionPositions, queries: int, mask: Bool[Tensor, "b q t"] | None) -> AttentionPositions:
    """Return positions of tokens that queries follow, which have none, and which may attend to some of the tokens only."""
    rotation, bias, grid = positions
    if rotation is not None:
        rotation = F.pad(rotation[0], (0, 0, 0, queries), value=1.0), F.pad(rotation[1], (0, 0, 0, queries))
    if bias is not None:
        bias = F.pad(bias, (0, queries, 0, queries))
    if mask is None:
        return AttentionPositions(rotation, bias, grid)
    tokens = mask.shape[2]
    hidden = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, float("-inf"))
    hidden = F.pad(hidden, (0, queries, tokens, 0))[:, None]
    return AttentionPositions(rotation, hidden if bias is None else hidden + bias, grid)


def semantic_scores(logits: QueryLogits) -> Float[Tensor, "b k y x"]:
    """Return the score of each class for each pixel: the sum over the queries of the probabilities of their class and mask."""
    classes = logits.classes.float().softmax(-1)[..., :-1]
    return einsum(classes, logits.masks.float().sigmoid(), "b q k, b q y x -> b k y x")


def semantic_logits(logits: QueryLogits, size: Pair) -> Float[Tensor, "b k height width"]:
    """Return the logarithm of the scores at a size to which the masks are interpolated."""
    masks = F.interpolate(logits.masks.float(), size, mode="bilinear")
    return semantic_scores(QueryLogits(logits.classes, masks)).clamp(min=SCORE_EPS).log()
