"""A patch embedding is both a convolution and a matrix product."""

import torch
from torch.testing import assert_close

from vitrail.layers.patch_embed import PatchEmbed


def test_a_token_depends_on_its_patch_only_and_the_order_is_the_raster() -> None:
    embed, images = PatchEmbed(channels=1, width=3, patch=(2, 2)), torch.zeros(1, 1, 4, 6)
    images[0, 0, 2:4, 2:4] = 1  # the second row, the second column
    changed = (embed(images) - embed(torch.zeros_like(images))).abs().sum(-1)[0] > 0
    assert changed.nonzero().flatten().tolist() == [4]


def test_patches_are_a_convolution_and_contiguous() -> None:
    embed = PatchEmbed(3, 10, (4, 5))
    images = torch.randn(2, 3, 8, 15, generator=torch.Generator().manual_seed(0))
    by_convolution = torch.nn.functional.conv2d(images, embed.project.weight, embed.project.bias, stride=(4, 5))
    tokens = embed(images)
    assert_close(tokens, by_convolution.flatten(2).mT)
    assert tokens.is_contiguous()
