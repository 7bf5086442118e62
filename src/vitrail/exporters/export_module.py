"""The module that is exported: uint8 images, or bands in float32, to logits and probabilities, with position tables resized to
dynamic image sizes.

A position table is resized by a product with one small matrix per axis (``layers/position.py``). Here the matrices are
written as arithmetic on the size, so that the graph needs no resize operator, and all backends agree.
b images, c channels, n positions of the new grid, o of the old one, d width.
"""

from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Num
from torch import Tensor, nn

from vitrail.data.transforms import scale_and_shift
from vitrail.errors import VitrailError
from vitrail.exporters.dynamic_stem import with_dynamic_padding
from vitrail.inference.predictor import require_preprocess
from vitrail.layers.position import Grid, PatchIndices, PositionEmbedding, PositionResize
from vitrail.models.build import Model, build_on_meta, get_encoder, with_encoder
from vitrail.models.config import ViTConfig
from vitrail.models.resnet_stem import ResNetStem
from vitrail.models.vit import ViT
from vitrail.tasks.registry import model_task


class ExportModule(nn.Module):
    """Maps images that are not normalised to the outputs that the model's task exports, or without a classifier to features."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        encoder = get_encoder(model)
        preprocess = require_preprocess(encoder)
        self.pixel_type = preprocess.pixel_type
        for name, value in zip(("scale", "shift"), scale_and_shift(preprocess), strict=True):
            self.register_buffer(name, value.clone())
        self.model = model
        self.task, self.has_outputs = model_task(encoder), encoder is not model or encoder.config.classes > 0

    def forward(self, images: Num[Tensor, "b height width c"]) -> tuple[Num[Tensor, "b ..."], ...]:
        normalised = rearrange(images, "b h w c -> b c h w").float() * self.scale - self.shift
        return tuple(self.named_outputs(self.model(normalised)).values())

    def named_outputs(self, outputs: Tensor) -> dict[str, Tensor]:
        """Return what the file computes, by name; the outputs of the model come first."""
        return self.task.export_outputs(outputs) if self.has_outputs else {"features": outputs}


def with_dynamic_positions(model: nn.Module) -> Any:
    """Return a model of the same weights for any image size that the patches divide, traceable by ``torch.export``."""
    encoder, config = get_encoder(model), get_encoder(model).config
    if not isinstance(config, ViTConfig):
        return model
    if config.position == "relative":
        raise VitrailError(
            "relative positions are offsets on one fixed grid, so the image size cannot be dynamic; leave --dynamic out"
        )
    if config.relative_bias and config.relative_bias.kind == "table":
        raise VitrailError(
            "relative_bias.kind='table' is resized to each grid by a rule that is no part of a graph, so the image size cannot "
            "be dynamic; leave --dynamic out"
        )
    if config.needs_whole_grid:
        raise VitrailError(
            "windows and relative positions along the axes are laid out for one grid, so the image size cannot be dynamic; "
            "leave --dynamic out"
        )
    if type(encoder) is not ViT:
        raise VitrailError("a model with speedups has one fixed image size; leave --dynamic out, or the speedups")
    flexible_encoder = _to_flexible(encoder)
    assert isinstance(flexible_encoder, ViT)
    flexible_encoder.positions = nn.ModuleList(
        _DynamicPositionEmbedding(embedding)
        for embedding in flexible_encoder.positions
        if isinstance(embedding, PositionEmbedding)
    )
    if isinstance(flexible_encoder.stem, ResNetStem):
        flexible_encoder.add_module("stem", with_dynamic_padding(flexible_encoder.stem))
    return with_encoder(model, flexible_encoder)


def to_flexible(model: nn.Module) -> Any:
    """Return a model of the same weights for any image size that the patches divide."""
    return with_encoder(model, _to_flexible(get_encoder(model)))


def _to_flexible(encoder: Model) -> Model:
    if not isinstance(encoder.config, ViTConfig):
        return encoder
    flexible_encoder = build_on_meta(replace(encoder.config, flexible=True))
    flexible_encoder.load_state_dict(encoder.state_dict(), assign=True)
    flexible_encoder.preprocess, flexible_encoder.class_names, flexible_encoder.metadata = (
        encoder.preprocess,
        encoder.class_names,
        encoder.metadata,
    )
    return flexible_encoder.eval()


class _DynamicPositionEmbedding(nn.Module):
    """``PositionEmbedding`` for an image size that is known only when the graph runs."""

    def __init__(self, embedding: PositionEmbedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(
        self, x: Float[Tensor, "b t d"], grid: Grid, patch_indices: PatchIndices | None = None
    ) -> Float[Tensor, "b t d"]:
        assert patch_indices is None
        table = self.embedding.table()
        sides = list(zip(table.shape[:2], grid, strict=True))
        unchanged = [torch.full((1,), new) == old for old, new in sides]
        rows, columns = (
            interpolation_matrix(old, new, self.embedding.resize, unchanged[0] & unchanged[1]) for old, new in sides
        )
        resized_columns = columns @ table.float()  # old rows, new columns, d
        patches = (rows @ resized_columns.flatten(1)).unflatten(1, (columns.shape[0], table.shape[2])).flatten(0, 1)
        rows_to_add: list[Tensor] = [] if self.embedding.prefix is None else [self.embedding.prefix]
        if self.embedding.unpositioned:
            rows_to_add.append(patches.new_zeros(self.embedding.unpositioned, table.shape[2]))
        return x + torch.cat([*rows_to_add, patches])


def interpolation_matrix(old: int, new: int, rule: PositionResize, unchanged: Tensor | None = None) -> Float[Tensor, "n o"]:
    """Return the matrix that interpolates ``old`` values to ``new`` positions; ``new`` may be symbolic.

    ``unchanged``: whether both sides of the grid are, since DINO's rule changes an equal side with the other.
    """
    position, sides = torch.arange(new).float(), torch.full((1,), new).float()
    if rule == "dino":
        sides = sides + (0.1 if unchanged is None else 0.1 * (~unchanged).float())
    step = old / sides
    if rule == "official":
        return _linear_weights(position * _align_corners_step(old, new), old)
    if rule == "segmenter":
        return _linear_weights(((position + 0.5) * step - 0.5).clamp(0, old - 1), old)
    if rule in ("timm", "siglip2"):
        return _antialiased_weights((position + 0.5) * step, step.clamp(min=1), old, cubic=rule == "timm")
    return _cubic_weights(
        position * _align_corners_step(old, new) if rule == "torchvision" else (position + 0.5) * step - 0.5, old
    )


def _align_corners_step(old: int, new: int) -> Float[Tensor, " 1"]:
    """Return the step of align-corners interpolation; a single position is the first one."""
    return (old - 1) / (torch.full((1,), new).float() - 1).clamp(min=1)


def _linear_weights(positions: Float[Tensor, " n"], old: int) -> Float[Tensor, "n o"]:
    """Return the weights of linear interpolation between two neighbours."""
    return (1 - (positions[:, None] - torch.arange(old)).abs()).clamp(min=0)


def _antialiased_weights(
    centres: Float[Tensor, " n"], width: Float[Tensor, " 1"], old: int, cubic: bool
) -> Float[Tensor, "n o"]:
    """Return the weights of a triangle or Keys' cubic with a = -1/2, widened when downsampling and truncated at the border."""
    distance = (torch.arange(old) + 0.5 - centres[:, None]).abs() / width
    weights = _keys_kernel(distance, -0.5) if cubic else (1 - distance).clamp(min=0)
    return weights / weights.sum(dim=1, keepdim=True)


def _cubic_weights(positions: Float[Tensor, " n"], old: int) -> Float[Tensor, "n o"]:
    """Return the weights of Keys' cubic with a = -3/4 over four neighbours, with the border value repeated."""
    first, fraction = positions.floor(), positions - positions.floor()
    weights = torch.zeros(1, old)
    for offset in (-1, 0, 1, 2):
        neighbour = (first + offset).clamp(0, old - 1)
        hit = (neighbour[:, None] == torch.arange(old)).float()
        weights = weights + hit * _keys_kernel((fraction - offset).abs(), -0.75)[:, None]
    return weights


def _keys_kernel(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    """Compute Keys' (1981) cubic convolution kernel, zero from 2 on."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
