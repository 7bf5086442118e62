"""A bias of the attention scores by the offset between two patches, one for each head.

A learned table of offsets (BEiT; Bao et al. 2022, after Shaw et al. 2018), or a small MLP of the logarithms of rows and columns
(Liu et al. 2022, Swin V2). The bias of a layer, or one for all.

b batch, h heads, t tokens, m kept patches; a table of a grid has (2 rows - 1, 2 columns - 1) offsets, query minus key.
"""

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.position import Grid, PatchIndices

OffsetResize = Literal["timm", "huggingface"]


class OffsetBias(nn.Module):
    """A learned bias for each offset, initially zero, and three for the class token: as the query, as the key, as both."""

    def __init__(self, grid: Grid, heads: int, *, class_token: bool, resize: OffsetResize = "timm") -> None:
        super().__init__()
        self.resize: OffsetResize = resize
        self.table = nn.Parameter(torch.zeros(heads, 2 * grid[0] - 1, 2 * grid[1] - 1))
        self.class_token = nn.Parameter(torch.zeros(heads, 3)) if class_token else None

    def forward(self, grid: Grid, patch_indices: PatchIndices | None = None) -> Float[Tensor, "... h t t"]:
        bias = look_up_offsets(resize_offsets(self.table, grid, self.resize), grid, patch_indices)
        if self.class_token is None:
            return bias
        query, key, both = rearrange(self.class_token, "h three -> three h 1 1")
        bias = torch.cat([key.expand(*bias.shape[:-1], 1), bias], dim=-1)
        first = torch.cat([both, query.expand(-1, 1, bias.shape[-1] - 1)], dim=-1)
        return torch.cat([first.expand(*bias.shape[:-2], 1, -1), bias], dim=-2)


class OffsetMLP(nn.Module):
    """The bias as a function of the offset: an MLP of sign(o) log(1 + |o|) for rows and columns. Prefix tokens have none."""

    def __init__(self, heads: int, hidden: int, *, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.up, self.down = nn.Linear(2, hidden), nn.Linear(hidden, heads)

    def forward(self, grid: Grid, patch_indices: PatchIndices | None = None) -> Float[Tensor, "... h t t"]:
        weight = self.up.weight
        rows, columns = (torch.arange(1 - side, side, device=weight.device, dtype=weight.dtype) for side in grid)
        offsets = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)
        hidden = F.relu(self.up(offsets.sign() * offsets.abs().log1p()))
        bias = look_up_offsets(rearrange(self.down(hidden), "y x h -> h y x"), grid, patch_indices)
        return F.pad(bias, (self.prefix, 0, self.prefix, 0))


def look_up_offsets(
    table: Float[Tensor, "h y x"], grid: Grid, patch_indices: PatchIndices | None = None
) -> Float[Tensor, "... h n n"]:
    """Return the entry of each pair of patches, of all in the grid or of those kept in each image."""
    patches = torch.arange(grid[0] * grid[1], device=table.device) if patch_indices is None else patch_indices
    rows = patches // grid[1]
    columns = patches - rows * grid[1]  # ONNX has no remainder by a size that is known only at run time
    down, right = (place[..., :, None] - place[..., None, :] for place in (rows, columns))
    index = (down + grid[0] - 1) * table.shape[2] + right + grid[1] - 1
    bias = table.flatten(1).index_select(1, index.flatten()).unflatten(1, index.shape)
    return bias if patch_indices is None else rearrange(bias, "h b q k -> b h q k")


def resize_offsets(table: Float[Tensor, "h y x"], grid: Grid, rule: OffsetResize) -> Float[Tensor, "h v u"]:
    """Interpolate a table to the offsets of another grid, by the rule of the library it comes from.

    Hugging Face interpolates bilinearly. timm, after BEiT's authors, takes the old offsets to lie ever further apart, in a
    geometric progression that reaches the largest new one, and interpolates linearly between them.
    """
    size = (2 * grid[0] - 1, 2 * grid[1] - 1)
    if table.shape[1:] == size:
        return table
    if rule == "huggingface":
        return F.interpolate(table[None].float(), size, mode="bilinear")[0].to(table.dtype)
    rows, columns = (_geometric_matrix(old, new, table.device) for old, new in zip(table.shape[1:], size, strict=True))
    return (rows @ table.float() @ columns.mT).to(table.dtype)


def _geometric_matrix(old: int, new: int, device: torch.device) -> Float[Tensor, "new old"]:
    """Matrix of the linear interpolation from ``old`` offsets in a geometric progression to ``new`` ones at equal distances."""
    half = old // 2
    ratio = _progression_ratio(half, new // 2)
    steps = torch.cumsum(ratio ** torch.arange(half, dtype=torch.float64), dim=0)
    places = torch.cat([-steps.flip(0), torch.zeros(1), steps]).float()
    wanted = torch.arange(new, dtype=torch.float32) - new // 2
    right = torch.bucketize(wanted, places).clamp(1, old - 1)
    weight = (wanted - places[right - 1]) / (places[right] - places[right - 1])
    weight = weight.clamp(0, 1)  # beyond the last offset: as at the last
    matrix = torch.zeros(new, old)
    each = torch.arange(new)
    matrix[each, right - 1] += 1 - weight
    matrix[each, right] += weight
    return matrix.to(device)


def _progression_ratio(terms: int, reach: int) -> float:
    """Return the ratio from 1.01 to 1.5 with which this many terms of a geometric progression reach a sum, by bisection."""
    low, high = 1.01, 1.5
    ratio = low
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if (1 - ratio**terms) / (1 - ratio) > reach:
            high = ratio
        else:
            low = ratio
    return ratio
