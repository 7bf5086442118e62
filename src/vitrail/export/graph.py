"""The module that is exported: uint8 images to logits and probabilities, with position tables resized to dynamic image sizes.

A position table is resized by a product with one small matrix per axis (``layers/position.py``). Here the matrices are
written as arithmetic on the size, so that the graph needs no resize operator, and all backends agree.
b images, c channels, n positions of the new grid, o of the old one, d width.
"""

from dataclasses import replace

import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.data.prepare import constants
from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.export.engine import is_sigmoid
from vitrail.export.root import follow
from vitrail.layers.position import AddPosition, Grid, Places, Resize
from vitrail.models.build import Model, skeleton
from vitrail.models.hybrid import Root
from vitrail.models.settings import ViTConfig
from vitrail.models.vit import ViT


class Graph(nn.Module):
    """Maps uint8 images to logits and probabilities, or without a classifier to features."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        for name, value in zip(("scale", "shift"), constants(preprocess_of(model)), strict=True):
            self.register_buffer(name, value.clone())
        self.model = model
        self.sigmoid = is_sigmoid(model.facts)

    def forward(self, pictures: UInt8[Tensor, "b height width c"]) -> tuple[Float[Tensor, "b k"], ...]:
        images = rearrange(pictures, "b h w c -> b c h w").float() * self.scale - self.shift
        answers = self.model(images)
        if not self.model.config.classes:
            return (answers,)
        return answers, answers.sigmoid() if self.sigmoid else answers.softmax(dim=1)


def following(model: Model) -> Model:
    """Return a model of the same weights for any image size that the patches divide, traceable by ``torch.export``."""
    config = model.config
    if not isinstance(config, ViTConfig):
        return model
    if config.position == "relative":
        raise VitrailError(
            "relative positions are offsets on one fixed grid, so the image size cannot be dynamic; leave --dynamic out"
        )
    if type(model) is not ViT:
        raise VitrailError("a model with speedups has one fixed image size; leave --dynamic out, or the speedups")
    free = flexible(model)
    assert isinstance(free, ViT)
    free.positions = nn.ModuleList(_Following(add) for add in free.positions if isinstance(add, AddPosition))
    if isinstance(free.stem, Root):
        free.add_module("stem", follow(free.stem))
    return free


def flexible(model: Model) -> Model:
    """Return a model of the same weights for any image size that the patches divide."""
    if not isinstance(model.config, ViTConfig):
        return model
    free = skeleton(replace(model.config, flexible=True))
    free.load_state_dict(model.state_dict(), assign=True)
    free.preprocess, free.labels, free.facts = model.preprocess, model.labels, model.facts
    return free.eval()


class _Following(nn.Module):
    """``AddPosition`` for an image size that is known only when the graph runs."""

    def __init__(self, add: AddPosition) -> None:
        super().__init__()
        self.add = add

    def forward(self, x: Float[Tensor, "b t d"], grid: Grid, places: Places | None = None) -> Float[Tensor, "b t d"]:
        assert places is None
        table = self.add.table()
        rows, columns = (matrix(old, new, self.add.resize) for old, new in zip(table.shape[:2], grid, strict=True))
        wide = columns @ table.float()  # old rows, new columns, d
        patches = (rows @ wide.flatten(1)).unflatten(1, (columns.shape[0], table.shape[2])).flatten(0, 1)
        before: list[Tensor] = [] if self.add.prefix is None else [self.add.prefix]
        if self.add.bare:
            before.append(patches.new_zeros(self.add.bare, table.shape[2]))
        return x + torch.cat([*before, patches])


def matrix(old: int, new: int, how: Resize) -> Float[Tensor, "n o"]:
    """Return the matrix that interpolates ``old`` values to ``new`` positions; ``new`` may be symbolic."""
    place, step = torch.arange(new).float(), old / torch.full((1,), new).float()
    if how == "official":
        return _tents(place * _aligned(old, new), old)
    if how == "timm":
        return _antialiased((place + 0.5) * step, step.clamp(min=1), old)
    return _cubic(place * _aligned(old, new) if how == "torchvision" else (place + 0.5) * step - 0.5, old)


def _aligned(old: int, new: int) -> Float[Tensor, " 1"]:
    """Return the step of align-corners interpolation; a single position is the first one."""
    return (old - 1) / (torch.full((1,), new).float() - 1).clamp(min=1)


def _tents(at: Float[Tensor, " n"], old: int) -> Float[Tensor, "n o"]:
    """Return the weights of linear interpolation between two neighbours."""
    return (1 - (at[:, None] - torch.arange(old)).abs()).clamp(min=0)


def _antialiased(centre: Float[Tensor, " n"], widen: Float[Tensor, " 1"], old: int) -> Float[Tensor, "n o"]:
    """Return the weights of Keys' cubic with a = -1/2, widened when downsampling and truncated at the border."""
    weights = _keys((torch.arange(old) + 0.5 - centre[:, None]).abs() / widen, -0.5)
    return weights / weights.sum(dim=1, keepdim=True)


def _cubic(at: Float[Tensor, " n"], old: int) -> Float[Tensor, "n o"]:
    """Return the weights of Keys' cubic with a = -3/4 over four neighbours, with the border value repeated."""
    first, share = at.floor(), at - at.floor()
    made = torch.zeros(1, old)
    for tap in (-1, 0, 1, 2):
        neighbour = (first + tap).clamp(0, old - 1)
        hit = (neighbour[:, None] == torch.arange(old)).float()
        made = made + hit * _keys((share - tap).abs(), -0.75)[:, None]
    return made


def _keys(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    """Compute Keys' (1981) cubic convolution kernel, zero from 2 on."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
