"""A patch embedding is a convolution and a matrix product at once."""

import torch
from torch.testing import assert_close

from vitrail.layers.patch import PatchEmbed


def test_a_patch_sees_its_own_pixels_only_and_the_order_is_the_raster() -> None:
    embed, images = PatchEmbed(channels=1, width=3, patch=(2, 2)), torch.zeros(1, 1, 4, 6)
    images[0, 0, 2:4, 2:4] = 1  # the second row, the second column
    changed = (embed(images) - embed(torch.zeros_like(images))).abs().sum(-1)[0] > 0
    assert changed.nonzero().flatten().tolist() == [4]


def test_patches_are_a_convolution_and_lie_in_order() -> None:
    embed = PatchEmbed(3, 10, (4, 5))
    images = torch.randn(2, 3, 8, 15, generator=torch.Generator().manual_seed(0))
    by_convolution = torch.nn.functional.conv2d(images, embed.project.weight, embed.project.bias, stride=(4, 5))
    made = embed(images)
    assert_close(made, by_convolution.flatten(2).mT)
    assert made.is_contiguous()
