"""The heads of detection, a row each: the model, its loss, and the boxes that its outputs stand for.

b images, l predictions of each, m objects of an image; what the channels of a map of rows by columns are is up to the head.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.decode import ImageSize
from vitrail.models.config import Pair
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Detection
from vitrail.tasks.box_decoding import Detections, decode_boxes
from vitrail.tasks.box_loss import box_loss, centre_targets, heat_loss
from vitrail.tasks.detection_model import DenseDetector
from vitrail.tasks.detection_queries import QueryDetector, decode_queries
from vitrail.tasks.set_loss import set_losses

ClassWeights = Float[Tensor, " k"] | None
# From the output for an image, its objects, the size of the input, the settings and class weights: of classes and of boxes
ImageLosses = Callable[[Tensor, Tensor, ImageSize, Detection, ClassWeights], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class DetectionHead:
    """The model of a head, what it returns to be trained (l b channels rows columns), its losses, and its detections."""

    build: Callable[[ViT, Detection], nn.Module]
    train_outputs: Callable[[nn.Module, Tensor], Tensor]
    losses: ImageLosses
    decode: Callable[[Tensor, Detection, Pair], Detections]  # from outputs, the settings and the stride of the patches
    class_loss_name: str


def _build_dense(encoder: ViT, config: Detection) -> nn.Module:
    return DenseDetector(
        encoder,
        config.classes,
        config.head_layers(encoder.config.depth),
        upscale_blocks=config.num_upscale_blocks(encoder.config.patch_stride),
        map_width=config.map_width,
    )


def _build_queries(encoder: ViT, config: Detection) -> nn.Module:
    query_blocks = config.num_query_blocks(encoder.config.depth)
    return QueryDetector(encoder, config.classes, config.queries, query_blocks, config.query_positions)


def _decode_dense(outputs: Float[Tensor, "b channels rows columns"], config: Detection, stride: Pair) -> Detections:
    rows, columns = outputs.shape[2:]
    steps = config.num_upscale_blocks(stride)
    size = rows * stride[0] >> steps, columns * stride[1] >> steps  # that of an exported file may be dynamic
    return decode_boxes(outputs, size, config.max_detections)


def _dense_losses(
    output: Tensor, objects: Tensor, size: ImageSize, config: Detection, class_weights: ClassWeights
) -> tuple[Tensor, Tensor]:
    targets = centre_targets(objects, config.classes, (output.shape[1], output.shape[2]), size)
    return heat_loss(output[:-4], targets, class_weights), box_loss(output[-4:], targets, size)


def _query_losses(
    output: Tensor, objects: Tensor, size: ImageSize, config: Detection, class_weights: ClassWeights
) -> tuple[Tensor, Tensor]:
    return set_losses(output, objects, size, config.box_weight, class_weights)


HEADS = {
    "dense": DetectionHead(_build_dense, lambda model, images: model(images)[None], _dense_losses, _decode_dense, "heat_loss"),
    "queries": DetectionHead(
        _build_queries,
        lambda model, images: model(images, True),
        _query_losses,
        lambda outputs, config, _: decode_queries(outputs, config.max_detections),
        "class_loss",
    ),
}
