"""Position embeddings of the paper (Dosovitskiy et al. 2021, D.4): tables added to the tokens, and relative ones in attention.

b batch, h heads, t tokens, m kept patches, k width of a head, d width; a table is (rows, columns, d).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

Grid = tuple[int, int]
PatchIndices = Int[Tensor, "b m"]  # raster indices of the patches kept in each image
PositionResize = Literal["official", "timm", "huggingface", "torchvision", "dino", "siglip2", "segmenter"]


class Learned1d(nn.Module):
    """One learned vector per position."""

    def __init__(self, grid: Grid, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*grid, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self) -> Float[Tensor, "rows columns d"]:
        return self.weight


class Learned2d(nn.Module):
    """One learned vector per column and per row: of half the width and concatenated (the paper), or of full width and added."""

    def __init__(self, grid: Grid, width: int, *, join: Literal["concatenate", "add"] = "concatenate") -> None:
        super().__init__()
        self.join = join
        part_width = width // 2 if join == "concatenate" else width
        self.columns = nn.Parameter(torch.empty(grid[1], part_width))
        self.rows = nn.Parameter(torch.empty(grid[0], part_width))
        for table in (self.columns, self.rows):
            nn.init.normal_(table, std=0.02)

    def forward(self) -> Float[Tensor, "rows columns d"]:
        x = repeat(self.columns, "w d -> h w d", h=self.rows.shape[0])
        y = repeat(self.rows, "h d -> h w d", w=self.columns.shape[0])
        return torch.cat([x, y], dim=-1) if self.join == "concatenate" else x + y


class FixedTable(nn.Module):
    """A fixed position table: computed, not learned, and not saved."""

    weight: Tensor

    def __init__(self, table: Float[Tensor, "rows columns d"]) -> None:
        super().__init__()
        self.register_buffer("weight", table, persistent=False)

    def forward(self) -> Float[Tensor, "rows columns d"]:
        return self.weight


def sincos1d(grid: Grid, width: int) -> Float[Tensor, "rows columns d"]:
    """Sine-cosine table along the raster (Vaswani et al. 2017): sines on even channels, cosines on odd ones."""
    index = torch.arange(grid[0] * grid[1], dtype=torch.float64, device="cpu")
    angle = torch.outer(index, _frequencies(width // 2, 10_000.0))
    both = rearrange(torch.stack([angle.sin(), angle.cos()]), "two n f -> n (f two)")
    return rearrange(both, "(h w) d -> h w d", h=grid[0]).float()


def sincos2d(grid: Grid, width: int, convention: Literal["big_vision", "mae", "moco"]) -> Float[Tensor, "rows columns d"]:
    """2-D sine-cosine table: the column on one half of the channels, the row on the other.

    big_vision's frequencies include the lowest one, MAE's and MoCo-v3's stop one step before; MoCo-v3 puts rows first.
    """
    count = width // 4
    frequencies = _frequencies(count, 10_000.0, last=count - 1 if convention == "big_vision" else count)
    rows, columns = (torch.outer(torch.arange(side, dtype=torch.float64, device="cpu"), frequencies) for side in grid)
    y = repeat(torch.cat([rows.sin(), rows.cos()], dim=-1), "h d -> h w d", w=grid[1])
    x = repeat(torch.cat([columns.sin(), columns.cos()], dim=-1), "w d -> h w d", h=grid[0])
    return torch.cat([y, x] if convention == "moco" else [x, y], dim=-1).float()


def _frequencies(count: int, slowest: float, last: int | None = None) -> Float[Tensor, " f"]:
    """Frequencies from 1 down to 1 / slowest. On the CPU even under ``torch.device("meta")``: fixed tables are not loaded."""
    return slowest ** -(torch.arange(count, dtype=torch.float64, device="cpu") / (count if last is None else last))


class PositionEmbedding(nn.Module):
    """Add a position table to the tokens, resized to the grid of the images.

    The first ``prefix_positions`` of the ``prefix`` tokens have learned rows of their own, independent of the grid.
    """

    def __init__(self, table: nn.Module, width: int, *, prefix: int, prefix_positions: int, resize: PositionResize) -> None:
        super().__init__()
        if isinstance(table, FixedTable):
            prefix_positions = 0  # a fixed table has no learned rows
        self.table = table
        self.resize: PositionResize = resize
        self.unpositioned = prefix - prefix_positions
        self.prefix = nn.Parameter(torch.empty(prefix_positions, width)) if prefix_positions else None
        if self.prefix is not None:
            nn.init.normal_(self.prefix, std=0.02)

    def forward(
        self, x: Float[Tensor, "b t d"], grid: Grid, patch_indices: PatchIndices | None = None
    ) -> Float[Tensor, "b t d"]:
        patches = rearrange(self.table_at(grid), "h w d -> (h w) d")
        before: list[Tensor] = [] if self.prefix is None else [self.prefix]
        if self.unpositioned:
            before.append(patches.new_zeros(self.unpositioned, patches.shape[-1]))
        if patch_indices is None:
            return x + (torch.cat([*before, patches]) if before else patches)
        rows = [repeat(row, "t d -> b t d", b=x.shape[0]) for row in before]
        return x + torch.cat([*rows, patches[patch_indices]], dim=1)

    def table_at(self, grid: Grid) -> Float[Tensor, "rows columns d"]:
        """Return the table resized to this grid."""
        return resize_table(self.table(), grid, self.resize)


def resize_table(table: Float[Tensor, "rows columns d"], grid: Grid, rule: PositionResize) -> Float[Tensor, "h w d"]:
    """Interpolate a table in 2-D by the rule of the library it comes from; unchanged if the grid is the same.

    Every rule is linear and separable, so it is a product with one small matrix for rows and one for columns. The matrices
    are cached; the table is not, so that it cannot go stale.
    """
    if table.shape[:2] == grid:
        return table
    matrix = _resize_matrix.__wrapped__ if torch.compiler.is_compiling() else _resize_matrix
    rows, columns = (matrix(old, new, rule, table.device) for old, new in zip(table.shape[:2], grid, strict=True))
    wide = einsum(columns, table.float(), "w c, r c d -> r w d")  # one axis at a time: far fewer products than both at once
    return einsum(rows, wide, "h r, r w d -> h w d").to(table.dtype)


@lru_cache(maxsize=64)
def _resize_matrix(old: int, new: int, rule: PositionResize, device: torch.device) -> Float[Tensor, "new old"]:
    """Interpolation matrix, from resizing the unit vectors. An ordinary tensor even if first computed in inference mode.

    The unit vectors form one image: torch's antialiased resize is wrong for an image one pixel wide.
    """
    with torch.inference_mode(False):
        units = torch.eye(old, device=device)
        if rule == "dino":  # DINO and DINOv2 add a tenth of a patch and give the factor, so that an equal side changes too
            return F.interpolate(units[None, None], scale_factor=((new + 0.1) / old, 1.0), mode="bicubic")[0, 0]
        if old == new:
            return units
        options: dict[str, Any] = {
            "official": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom(order=1)
            "timm": {"mode": "bicubic", "antialias": True},
            "huggingface": {"mode": "bicubic", "align_corners": False},
            "torchvision": {"mode": "bicubic", "align_corners": True},
            "siglip2": {"mode": "bilinear", "antialias": True},
            "segmenter": {"mode": "bilinear", "align_corners": False},
        }[rule]
        return F.interpolate(units[None, None], (new, old), **options)[0, 0]


class RelativeKeys(nn.Module):
    """The paper's relative positions: queries are also multiplied with an embedding of the offset, query minus key.

    Offsets count along the sequence, prefix tokens first, as in the learned 1-D table.
    The keys are stored from the largest offset to the smallest.
    """

    def __init__(self, tokens: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.empty(heads, 2 * tokens - 1, head_width))
        nn.init.normal_(self.keys, std=0.02)

    def forward(self, q: Float[Tensor, "b h t k"]) -> Float[Tensor, "b h t t"]:
        tokens = q.shape[2]
        logits = rearrange(q, "b h t k -> h (b t) k") @ self.keys.mT
        logits = rearrange(logits, "h (b t) offset -> b h (t offset)", t=tokens)
        # Row t starts t positions further left in the table: drop the first t - 1 entries, and let each row be one shorter.
        shifted = logits[..., tokens - 1 : -1].unflatten(-1, (tokens, 2 * tokens - 2))
        return shifted[..., :tokens] * q.shape[-1] ** -0.5

    def scores(
        self, q: Float[Tensor, "b h q k"], rows: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> Float[Tensor, "b h q t"]:
        """Return the same for some rows and heads, whose queries are given: token t of a row meets the key of their offset."""
        tokens = (self.keys.shape[1] + 1) // 2
        keys = self.keys if heads is None else self.keys[list(heads)]
        queries = torch.arange(tokens, device=q.device) if rows is None else torch.tensor(rows, device=q.device)
        offsets = torch.arange(tokens, device=q.device) + tokens - 1 - queries[:, None]
        products = q @ keys.mT.to(q.dtype) * q.shape[-1] ** -0.5
        return products.gather(-1, offsets.expand(*q.shape[:2], -1, -1))

    def row(self, head: int, query: int) -> Float[Tensor, "t k"]:
        """Return the relative keys of one query in one head, a row per token."""
        tokens = (self.keys.shape[1] + 1) // 2
        return self.keys[head, tokens - 1 - query : 2 * tokens - 1 - query]
