"""Relative positions along the axes (Li et al. 2022, MViTv2 and ViTDet): the score of two patches is increased by the products
of the query with an embedding of how many rows they are apart, and with one of how many columns.

All heads share the embeddings, which are those of a grid and are interpolated for another. b images or windows, h heads, n
patches, q queries, e keys, k width of a head; y, x the place of a query and v, u that of a key.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.position import Grid


class RelativeAxes(nn.Module):
    """Embeddings of the offset, query minus key, along each axis; initially zero."""

    def __init__(self, grid: Grid, head_width: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(2 * grid[0] - 1, head_width))
        self.columns = nn.Parameter(torch.zeros(2 * grid[1] - 1, head_width))

    def forward(self, q: Float[Tensor, "b h n k"], grid: Grid) -> Float[Tensor, "b h n n"]:
        """Return what is added to the scores of all patches of a grid."""
        rows, columns = self._at(grid)
        q = rearrange(q, "b h (y x) k -> b h y x k", y=grid[0])
        down = einsum(q, rows[_offsets(grid[0], q.device)], "b h y x k, y v k -> b h y x v")
        right = einsum(q, columns[_offsets(grid[1], q.device)], "b h y x k, x u k -> b h y x u")
        return rearrange(down[..., None] + right[..., None, :], "b h y x v u -> b h (y x) (v u)")

    def pairs(
        self, q: Float[Tensor, "b h q k"], grid: Grid, queries: Int[Tensor, "q 2"], keys: Int[Tensor, "e 2"]
    ) -> Float[Tensor, "b h q e"]:
        """Return what is added to the scores of some queries and keys by their places; nothing for tokens without a place."""
        result = q.new_zeros(*q.shape[:3], len(keys))
        for axis, table in enumerate(self._at(grid)):
            offsets = (queries[:, None, axis] - keys[:, axis] + grid[axis] - 1).clamp(0, len(table) - 1)
            result = result + (q @ table.mT.to(q.dtype)).gather(-1, offsets.expand(*q.shape[:2], -1, -1))
        return result * ((queries[:, None] >= 0) & (keys >= 0)).all(-1)

    def _at(self, grid: Grid) -> list[Float[Tensor, "_ k"]]:
        return [resize_axis(table, 2 * side - 1) for table, side in zip((self.rows, self.columns), grid, strict=True)]


def resize_axis(table: Float[Tensor, "_ k"], offsets: int) -> Float[Tensor, "_ k"]:
    """Interpolate embeddings linearly to so many offsets; unchanged if there are as many."""
    if len(table) == offsets:
        return table
    return F.interpolate(table.mT[None].float(), offsets, mode="linear")[0].mT.to(table.dtype)


def _offsets(side: int, device: torch.device) -> Int[Tensor, "y v"]:
    """Return the index of the offset of each pair of places along an axis."""
    places = torch.arange(side, device=device)
    return places[:, None] - places + side - 1
