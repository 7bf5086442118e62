"""A Vision Transformer that finds objects by queries, each of which predicts the class and the box of one object, or that there
is none (DETR, Carion et al. 2020). They follow the patches in the last blocks; in all, that is YOLOS (Fang et al. 2021).

b images, l predictions, q queries, d width, o classes and none; the model's input is height by width.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.decode import ImageSize
from vitrail.models.config import ViTConfig
from vitrail.models.vit import AttentionPositions, ViT
from vitrail.tasks.box_decoding import Detections
from vitrail.tasks.segmentation_eomt import with_queries


class QueryBoxes(NamedTuple):
    """Predictions of all queries: the logits of the classes, of which the last is none, and a box."""

    classes: Float[Tensor, "b q o"]
    boxes: Float[Tensor, "b q 4"]  # centre (x, y), width and height as fractions of the input


class BoxQueries(nn.Module):
    """The queries, and two MLPs that predict a class and a box from each."""

    def __init__(self, width: int, classes: int, queries: int, layers_with_positions: int = 0) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width))
        shape = (layers_with_positions, queries, width)
        self.positions = nn.Parameter(torch.zeros(shape)) if layers_with_positions else None
        self.classes = ThreeLayers(width, classes + 1)
        self.boxes = ThreeLayers(width, 4)

    def forward(self, queries: Float[Tensor, "b q d"]) -> QueryBoxes:
        return QueryBoxes(self.classes(queries).float(), self.boxes(queries).float().sigmoid())


class QueryDetector(nn.Module):
    """An encoder with detection queries in its last blocks."""

    def __init__(
        self, encoder: ViT, classes: int, queries: int = 100, query_blocks: int = 4, query_positions: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.query_blocks = query_blocks
        layers_with_positions = query_blocks - 1 if query_positions else 0
        self.head = BoxQueries(encoder.config.width, classes, queries, layers_with_positions)

    @property
    def config(self) -> ViTConfig:
        return self.encoder.config

    def forward(
        self, images: Float[Tensor, "b c height width"], every_block: bool = False
    ) -> Float[Tensor, "*l b channels rows columns"]:
        """Return the outputs: a row for each query, of one column, with o logits and then its box in pixels of the input.

        To train, with ``every_block``, return those after each block of the queries.
        """
        if every_block:
            return torch.stack([self._outputs(queries, images) for queries in self._queries(images)])
        *_, last = self._queries(images)
        return self._outputs(last, images)

    def predict(self, images: Float[Tensor, "b c height width"]) -> QueryBoxes:
        """Return what the queries predict after the last block."""
        *_, last = self._queries(images)
        predicted: QueryBoxes = self.head(self.encoder.norm(last))
        return predicted

    def _queries(self, images: Float[Tensor, "b c height width"]) -> Iterator[Float[Tensor, "b q d"]]:
        """Yield the queries after each of their blocks."""
        encoder, head, first = self.encoder, self.head, self.config.depth - self.query_blocks
        grid, positions = encoder.grid(images), AttentionPositions()
        x = encoder.add_prefix_tokens(encoder.embed_patches(images))
        queries: Tensor = repeat(head.queries, "q d -> b q d", b=x.shape[0])
        count = queries.shape[1]
        for layer in range(self.config.depth):
            x = encoder.enter_layer(layer, x, grid)
            positions = encoder.attention_positions(layer, grid, x.device, positions)
            if layer < first:
                x = encoder.run_layer(layer, x, positions)
                continue
            if head.positions is not None and layer > first:
                queries = queries + head.positions[layer - first - 1]
            tokens = encoder.run_layer(layer, torch.cat([x, queries], dim=1), with_queries(positions, count, None))
            x, queries = tokens[:, :-count], tokens[:, -count:]
            yield queries

    def _outputs(
        self, queries: Float[Tensor, "b q d"], images: Float[Tensor, "b c height width"]
    ) -> Float[Tensor, "b channels rows columns"]:
        predicted: QueryBoxes = self.head(self.encoder.norm(queries))
        boxes = to_edges(predicted.boxes) * input_scale(predicted.boxes, (images.shape[2], images.shape[3]))
        return rearrange(torch.cat([predicted.classes, boxes], dim=-1), "b q channels -> b channels q 1")


def decode_queries(outputs: Float[Tensor, "b channels rows columns"], max_detections: int = 100) -> Detections:
    """Return the detections of each image: the most probable class of every query but none, and its box."""
    scores, labels = outputs[:, :-4, :, 0].softmax(1)[:, :-1].max(1)
    scores, order = scores.topk(min(max_detections, scores.shape[1]))
    boxes = outputs[:, -4:, :, 0].mT.gather(1, order[..., None].expand(-1, -1, 4))
    return Detections(boxes, scores, labels.gather(1, order))


def to_edges(boxes: Float[Tensor, "*b 4"]) -> Float[Tensor, "*b 4"]:
    """Return left, top, right and bottom of boxes with centre, width and height."""
    centres, sizes = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centres - sizes / 2, centres + sizes / 2], dim=-1)


def to_centres(boxes: Float[Tensor, "*b 4"]) -> Float[Tensor, "*b 4"]:
    """Return centre, width and height of boxes with left, top, right and bottom."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(first + last) / 2, last - first], dim=-1)


def input_scale(like: Tensor, size: ImageSize) -> Float[Tensor, " 4"]:
    """Return the pixels that 1 stands for in each number of a box."""
    return like.new_tensor((size[1], size[0], size[1], size[0]))


class ThreeLayers(nn.Sequential):
    """An MLP with two hidden layers."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
        self.outputs = outputs
