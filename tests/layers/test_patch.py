"""A patch embedding is a convolution and a matrix product at once."""

import torch
from einops import rearrange
from torch.testing import assert_close

from vitrail.layers.patch import PatchEmbed


def test_convolving_equals_flattening_and_multiplying() -> None:
    embed, images = PatchEmbed(channels=2, width=11, patch=(4, 3)), torch.randn(5, 2, 8, 15)
    flat = rearrange(images, "b c (h p) (w q) -> b (h w) (c p q)", p=4, q=3)
    assert_close(embed(images), torch.nn.functional.linear(flat, embed.project.weight.flatten(1), embed.project.bias))


def test_a_patch_sees_its_own_pixels_only_and_the_order_is_the_raster() -> None:
    embed, images = PatchEmbed(channels=1, width=3, patch=(2, 2)), torch.zeros(1, 1, 4, 6)
    images[0, 0, 2:4, 2:4] = 1  # the second row, the second column
    changed = (embed(images) - embed(torch.zeros_like(images))).abs().sum(-1)[0] > 0
    assert changed.nonzero().flatten().tolist() == [4]
