"""A model as a graph from pixels to probabilities: normalising inside, and where any size goes in, positions that follow it.

A position table is brought to another grid by a product with one small matrix a side (``layers/position.py``). Here the
matrices are written out as arithmetic on the size, so that a graph needs no operator that resizes, and all engines agree.
b pictures, c channels, n places of the new grid, o of the old one, d width.
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
    """Pixels in; logits and probabilities out, or of a model without a classifier its features."""

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
    """The same weights in a model that takes any size the patches divide, with positions that a graph can follow."""
    config = model.config
    if not isinstance(config, ViTConfig):
        return model
    if config.position == "relative":
        raise VitrailError(
            "relative positions count along one fixed raster, so the picture's size cannot be left open; leave --dynamic out"
        )
    if type(model) is not ViT:
        raise VitrailError("what was made faster is made for one size; leave --dynamic out, or what makes it faster")
    free = flexible(model)
    assert isinstance(free, ViT)
    free.positions = nn.ModuleList(_Following(add) for add in free.positions if isinstance(add, AddPosition))
    if isinstance(free.stem, Root):
        free.add_module("stem", follow(free.stem))
    return free


def flexible(model: Model) -> Model:
    """The same weights in a model that takes any size the patches divide."""
    if not isinstance(model.config, ViTConfig):
        return model
    free = skeleton(replace(model.config, flexible=True))
    free.load_state_dict(model.state_dict(), assign=True)
    free.preprocess, free.labels, free.facts = model.preprocess, model.labels, model.facts
    return free.eval()


class _Following(nn.Module):
    """What ``AddPosition`` does, at a size that only the graph's run will tell."""

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
    """What interpolating ``old`` values at ``new`` places does to each of them; ``new`` may be a symbol."""
    place, step = torch.arange(new).float(), old / torch.full((1,), new).float()
    if how == "official":
        return _tents(place * _aligned(old, new), old)
    if how == "timm":
        return _antialiased((place + 0.5) * step, step.clamp(min=1), old)
    return _cubic(place * _aligned(old, new) if how == "torchvision" else (place + 0.5) * step - 0.5, old)


def _aligned(old: int, new: int) -> Float[Tensor, " 1"]:
    """The step at which the corners stay corners; a single place is the first one."""
    return (old - 1) / (torch.full((1,), new).float() - 1).clamp(min=1)


def _tents(at: Float[Tensor, " n"], old: int) -> Float[Tensor, "n o"]:
    """Between two neighbours on a straight line."""
    return (1 - (at[:, None] - torch.arange(old)).abs()).clamp(min=0)


def _antialiased(centre: Float[Tensor, " n"], widen: Float[Tensor, " 1"], old: int) -> Float[Tensor, "n o"]:
    """Keys' cubic with a = -1/2, made wider where the picture gets smaller; past the rim there is nothing."""
    weights = _keys((torch.arange(old) + 0.5 - centre[:, None]).abs() / widen, -0.5)
    return weights / weights.sum(dim=1, keepdim=True)


def _cubic(at: Float[Tensor, " n"], old: int) -> Float[Tensor, "n o"]:
    """Keys' cubic with a = -3/4 over four neighbours; past the rim is what is at the rim."""
    first, share = at.floor(), at - at.floor()
    made = torch.zeros(1, old)
    for tap in (-1, 0, 1, 2):
        neighbour = (first + tap).clamp(0, old - 1)
        hit = (neighbour[:, None] == torch.arange(old)).float()
        made = made + hit * _keys((share - tap).abs(), -0.75)[:, None]
    return made


def _keys(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    """Keys (1981): cubic convolution, 0 from 2 on."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
