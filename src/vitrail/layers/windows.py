"""Windows on the grid of patches (Li et al. 2022, ViTDet): squares side by side, and each patch attends to those in its own.

A grid that is no multiple of the side is padded below and on the right by tokens of zeros, to which the patches of their
windows attend as to others, as ViTDet has it. ViTDet has patches only; other tokens, before or behind them, are what Longformer
(Beltagy et al. 2020) calls global: they attend to all tokens but the padding, and every patch attends to them.

b images, w windows of all of them, h heads, t tokens, n patches, o other tokens, s patches of a window, k width of a head, q
queries, e keys, of which the padding is last.
"""

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.layers.position import Grid


@dataclass(frozen=True)
class Windows:
    """Windows of so many patches on a side, on a grid that so many other tokens precede."""

    side: int
    grid: Grid
    prefix: int

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns that are added to the grid."""
        return -self.grid[0] % self.side, -self.grid[1] % self.side

    @property
    def count(self) -> int:
        """Number of windows in an image."""
        rows, columns = (-(-length // self.side) for length in self.grid)
        return rows * columns

    def partition(self, patches: Float[Tensor, "b h n k"], padding: Float[Tensor, "h k"]) -> Float[Tensor, "w h s k"]:
        """Return the patches of each window; in memory the heads of a patch stay together, which the kernel's output keeps."""
        x, (down, right) = rearrange(patches, "b h (y x) k -> b h y x k", y=self.grid[0]), self.padding
        if right:
            x = torch.cat([x, repeat(padding, "h k -> b h y x k", b=x.shape[0], y=x.shape[2], x=right)], dim=3)
        if down:
            x = torch.cat([x, repeat(padding, "h k -> b h y x k", b=x.shape[0], y=down, x=x.shape[3])], dim=2)
        x = rearrange(x, "b h (y i) (x j) k -> (b y x) (i j) h k", i=self.side, j=self.side)
        return rearrange(x, "w s h k -> w h s k")

    def merge(self, windows: Float[Tensor, "w h s k"]) -> Float[Tensor, "b n h k"]:
        """Return the patches of each image, without the padding."""
        rows, columns = (-(-length // self.side) for length in self.grid)
        x = rearrange(windows, "(b y x) h (i j) k -> b (y i) (x j) h k", y=rows, x=columns, i=self.side)
        return rearrange(x[:, : self.grid[0], : self.grid[1]], "b y x h k -> b (y x) h k")

    def visible(self, tokens: int, device: torch.device) -> Bool[Tensor, "t e"]:
        """Return to which keys each token attends."""
        own = torch.cat(
            [self._windows_of(place_tokens(self.grid, self.prefix, tokens, device)), self._windows_of(self.pads(device))]
        )
        queries, is_pad = own[:tokens, None], torch.arange(len(own), device=device) >= tokens
        return (queries == own) | (own < 0) | ((queries < 0) & ~is_pad)

    def pads(self, device: torch.device) -> Int[Tensor, "pads 2"]:
        """Return row and column of each token of the padding."""
        rows, columns = (length + more for length, more in zip(self.grid, self.padding, strict=True))
        places = torch.cartesian_prod(torch.arange(rows, device=device), torch.arange(columns, device=device))
        return places[(places[:, 0] >= self.grid[0]) | (places[:, 1] >= self.grid[1])]

    def _windows_of(self, places: Int[Tensor, "t 2"]) -> Int[Tensor, " t"]:
        """Return the window of each place, -1 of a token without one."""
        windows = places // self.side
        return torch.where(places[:, 0] < 0, -1, windows[:, 0] * -(-self.grid[1] // self.side) + windows[:, 1])


def place_tokens(grid: Grid, prefix: int, tokens: int, device: torch.device) -> Int[Tensor, "t 2"]:
    """Return row and column of each token, -1 of those that are no patches."""
    patches = torch.cartesian_prod(torch.arange(grid[0], device=device), torch.arange(grid[1], device=device))
    places = torch.full((tokens, 2), -1, device=device)
    places[prefix : prefix + len(patches)] = patches
    return places
