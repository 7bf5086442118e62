"""Rotary positions (Su et al. 2021): queries and keys are rotated by their place, so that their product depends on the offset.

In 2-D, half of the channel pairs of a head turn with the row and half with the column (axial; Heo et al. 2024, EVA-02, DINOv3),
or every pair turns with both, at learned rates (mixed; Heo et al. 2024). Prefix tokens are not rotated.

b batch, h heads, t tokens, n patches, m kept patches, k width of a head, f channel pairs.
"""

import math
from typing import Literal

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.position import Grid, PatchIndices

Rotation = tuple[Float[Tensor, "... t k"], Float[Tensor, "... t k"]]  # cosines and sines
Coordinates = Literal["centre", "scaled", "index", "normalised"]


class Rotary(nn.Module):
    """Axial rotary positions: the fastest pair turns by one radian per unit, the slowest by nearly 1 / ``base``.

    ``coordinates`` of a patch are its index; its index or its centre, rescaled to the grid the model was built for; or its
    centre from -1 to 1, in full turns (DINOv3).
    """

    def __init__(
        self,
        grid: Grid,
        head_width: int,
        prefix: int,
        *,
        base: float = 100.0,
        coordinates: Coordinates = "centre",
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.head_width = head_width
        self.prefix = prefix
        self.base = base
        self.coordinates: Coordinates = coordinates
        self.offset = offset  # added to the index

    def forward(self, grid: Grid, device: torch.device, patch_indices: PatchIndices | None = None) -> Rotation:
        angle = self.angles(grid, device, patch_indices)
        return angle.cos(), angle.sin()

    def angles(self, grid: Grid, device: torch.device, patch_indices: PatchIndices | None = None) -> Float[Tensor, "... t k"]:
        """Return the rotation angles of each token, equal for the two channels of a pair."""
        angle = repeat(self._pair_angles(*self._places(grid, device)), "... f -> ... (f two)", two=2)
        if patch_indices is not None:
            angle = angle[..., patch_indices, :]
            angle = rearrange(angle, "h b m k -> b h m k" if angle.ndim == 4 else "b m k -> b 1 m k")  # 1: as in every head
        return F.pad(angle, (0, 0, self.prefix, 0))

    def _places(self, grid: Grid, device: torch.device) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return row and column of each patch."""
        rows, columns = (
            place_on_axis(side, base_side, self.coordinates, self.offset, device)
            for side, base_side in zip(grid, self.grid, strict=True)
        )
        return repeat(rows, "h -> (h w)", w=grid[1]), repeat(columns, "w -> (h w)", h=grid[0])

    def _pair_angles(self, rows: Float[Tensor, " n"], columns: Float[Tensor, " n"]) -> Float[Tensor, "... n f"]:
        count = self.head_width // 4
        frequencies = self.base ** -(torch.arange(count, device=rows.device) / count)
        return torch.cat([torch.outer(rows, frequencies), torch.outer(columns, frequencies)], dim=-1)


class MixedRotary(Rotary):
    """Rotary positions of one layer with learned frequencies: each pair of each head has one for rows and one for columns."""

    def __init__(
        self, grid: Grid, head_width: int, prefix: int, heads: int, *, base: float = 10.0, coordinates: Coordinates = "index"
    ) -> None:
        super().__init__(grid, head_width, prefix, base=base, coordinates=coordinates)
        self.frequencies = nn.Parameter(torch.empty(2, heads, head_width // 2))  # rows, then columns
        count = head_width // 4
        magnitude = base ** -(torch.arange(count) / count)
        direction = 2 * math.pi * torch.rand(heads, 1)  # of each head; the second half of its pairs is perpendicular to it
        directions = torch.cat([direction.expand(-1, count), direction.expand(-1, count) + math.pi / 2], dim=1)
        self.frequencies.data = torch.stack([directions.sin(), directions.cos()]) * magnitude.repeat(2)

    def _pair_angles(self, rows: Float[Tensor, " n"], columns: Float[Tensor, " n"]) -> Float[Tensor, "h n f"]:
        return einsum(torch.stack([rows, columns]), self.frequencies.float(), "two n, two h f -> h n f")


def place_on_axis(
    side: int, base_side: int, coordinates: Coordinates, offset: float, device: torch.device
) -> Float[Tensor, " n"]:
    """Return the coordinates of the patches along one side of a grid."""
    index = torch.arange(side, device=device) + offset
    match coordinates:
        case "centre":
            return (index + 0.5) * (base_side / side) - 0.5
        case "scaled":
            return index * (base_side / side)
        case "normalised":
            return 2 * math.pi * (2 * (index + 0.5) / side - 1)
    return index


def rotate(x: Float[Tensor, "b h t k"], rotation: Rotation) -> Float[Tensor, "b h t k"]:
    cosine, sine = rotation
    first, second = x[..., 0::2], x[..., 1::2]
    quarter_turn = torch.stack([-second, first], dim=-1).flatten(-2)
    return (x * cosine + quarter_turn * sine).to(x.dtype)
