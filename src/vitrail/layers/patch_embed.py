"""Patch embedding: an image as a sequence of patches (Dosovitskiy et al. 2021, equation 1).

b batch, c channels, p and q the two sides of a patch, n patches, d width.
"""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.norm import NormLayer
from vitrail.layers.weight_init import lecun_normal_


class PatchEmbed(nn.Module):
    """Flatten every patch and multiply by E; optionally normalise the pixels of a patch before and its embedding after."""

    def __init__(
        self,
        channels: int,
        width: int,
        patch: tuple[int, int],
        *,
        bias: bool = True,
        pixel_norm: NormLayer | None = None,
        norm: NormLayer | None = None,
    ) -> None:
        super().__init__()
        self.pixel_norm = nn.Identity() if pixel_norm is None else PixelNorm(channels, patch, pixel_norm)
        self.project = PatchConv2d(channels, width, kernel_size=patch, stride=patch, bias=bias)
        lecun_normal_(self.project.weight)
        if self.project.bias is not None:
            nn.init.zeros_(self.project.bias)
        self.norm = nn.Identity() if norm is None else norm(width)

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        return self.norm(self.project(self.pixel_norm(images)))


class PatchConv2d(nn.Conv2d):
    """Convolution with stride equal to kernel, computed as a matrix product so that tokens are contiguous in memory."""

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        p, q = self.kernel_size
        flat = rearrange(images, "b c (y p) (x q) -> b (y x) (c p q)", p=p, q=q)
        return F.linear(flat, rearrange(self.weight, "d c p q -> d (c p q)"), self.bias)


class PixelNorm(nn.Module):
    """Normalise all values of a patch together, before they are embedded."""

    def __init__(self, channels: int, patch: tuple[int, int], norm: NormLayer) -> None:
        super().__init__()
        self.patch = patch
        self.norm = norm(channels * patch[0] * patch[1])

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b c height width"]:
        p, q = self.patch
        flat = self.norm(rearrange(images, "b c (y p) (x q) -> b y x (c p q)", p=p, q=q))
        return rearrange(flat, "b y x (c p q) -> b c (y p) (x q)", p=p, q=q)
