"""A Vision Transformer that finds objects: a heat map of their centres, and a box at each of its cells.

The tokens of the patches become a finer map, as the simple feature pyramid of ViTDet does it (Li et al. 2022): each step turns
a token into four. On that map, every cell predicts how likely it is the centre of an object of each class, and the box of that
object (CenterNet; Zhou et al. 2019). There are no anchors.

b images, n patches, d width, c width of the map, k classes.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.position import Grid
from vitrail.models.config import Pair
from vitrail.models.vit import ViT
from vitrail.tasks.patch_token_model import PatchTokenModel

PRIOR = 0.01  # probability of every class at every cell before training, so that empty cells do not dominate (Lin et al. 2017)
MAX_LOG_SIZE = 8.0  # of a box in cells: its exponential stays finite


class Upsampling(nn.Module):
    """One step to twice the resolution: a linear layer from each cell to four, as a transposed convolution of stride 2."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 4 * out_width)
        self.norm = nn.LayerNorm(out_width, eps=1e-6)
        self.activation = nn.GELU()

    def forward(self, x: Float[Tensor, "b y x c"]) -> Float[Tensor, "b y2 x2 e"]:
        return self.activation(self.norm(rearrange(self.linear(x), "b y x (p q c) -> b (y p) (x q) c", p=2, q=2)))


class CentreHead(nn.Module):
    """A finer map of the patch tokens and, at each of its cells, k heat map logits and the distances to the edges of a box."""

    def __init__(
        self, width: int, classes: int, patch: Pair, *, num_layers: int = 1, upscale_blocks: int, map_width: int
    ) -> None:
        super().__init__()
        self.patch = patch
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(num_layers))
        widths = [map_width << steps for steps in range(upscale_blocks, -1, -1)]
        self.project = nn.Linear(num_layers * width, widths[0])
        self.upsampling = nn.Sequential(*(Upsampling(*pair) for pair in pairwise(widths)))
        self.neighbours = nn.Conv2d(map_width, map_width, 3, padding=1)
        self.norm = nn.LayerNorm(map_width, eps=1e-6)
        self.activation = nn.GELU()
        self.heat = nn.Linear(map_width, classes)
        self.boxes = nn.Linear(map_width, 4)
        nn.init.normal_(self.heat.weight, std=0.01)
        nn.init.constant_(self.heat.bias, -torch.log(torch.tensor(1 / PRIOR - 1)).item())
        nn.init.normal_(self.boxes.weight, std=0.01)
        nn.init.zeros_(self.boxes.bias)
        with torch.no_grad():
            self.boxes.bias[2:] = 1.5  # sides of four to five cells

    def forward(self, layers: Sequence[Float[Tensor, "b n d"]], grid: Grid) -> Float[Tensor, "b channels rows columns"]:
        x = torch.cat([norm(tokens) for norm, tokens in zip(self.norms, layers, strict=True)], dim=-1)
        x = self.upsampling(rearrange(self.project(x), "b (y x) c -> b y x c", y=grid[0]))
        near = rearrange(self.neighbours(rearrange(x, "b y x c -> b c y x")), "b c y x -> b y x c")
        x = self.activation(self.norm(x + near))
        heat, boxes = (rearrange(part, "b y x k -> b k y x") for part in (self.heat(x), self.boxes(x).float()))
        scale = 1 << len(self.upsampling)
        offset, sizes = boxes[:, :2], boxes[:, 2:].clamp(max=MAX_LOG_SIZE).exp() / 2
        cell = sizes.new_tensor((self.patch[1] / scale, self.patch[0] / scale)).repeat(2)[:, None, None]  # width and height
        return torch.cat([heat.float(), torch.cat([sizes - offset, sizes + offset], dim=1) * cell], dim=1)


class DenseDetector(PatchTokenModel):
    """A detection model with a centre head on the patch tokens of some blocks."""

    def __init__(self, encoder: ViT, classes: int, layers: Sequence[int] = (), *, upscale_blocks: int, map_width: int) -> None:
        config = encoder.config
        head = CentreHead(
            config.width,
            classes,
            config.patch_stride,
            num_layers=max(len(layers), 1),
            upscale_blocks=upscale_blocks,
            map_width=map_width,
        )
        super().__init__(encoder, head, layers)
