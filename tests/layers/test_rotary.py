"""Rotary positions: what a rotation keeps, and the coordinates of every kind."""

import torch
from einops import rearrange
from torch.testing import assert_close

from vitrail.layers.rotary import Rotary, rotate


def test_rotary_products_depend_only_on_the_offset_in_both_directions() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    rotation = Rotary((3, 4), 8, prefix=2)((3, 4), q.device)
    rotated_q, rotated_k = (rotate(x.expand(1, 1, 14, 8), rotation) for x in (q, k))
    product = rearrange((rotated_q @ rotated_k.mT)[0, 0, 2:, 2:], "(r c) (s d) -> r c s d", r=3, s=3)
    assert_close(product[0, 0, 1, 2], product[1, 1, 2, 3])
    assert_close(product[0, 3, 2, 1], product[0, 2, 2, 0])
    assert abs(product[0, 0, 0, 1] - product[0, 0, 1, 0]) > 1e-3  # a step right is not a step down
    assert_close(rotated_q[:, :, :2], q.expand(1, 1, 2, 8))  # prefix tokens are not rotated
    assert_close(rotated_q.norm(dim=-1), q.norm(dim=-1).expand(1, 1, 14))


def test_rotary_rescales_its_positions_to_another_grid() -> None:
    rotary = Rotary((2, 3), 8, prefix=0)
    cosine, sine = rotary((4, 6), torch.device("cpu"))
    angle = torch.atan2(sine, cosine).reshape(4, 6, 8)
    assert_close(angle[:, 0, 0], torch.tensor([-0.25, 0.25, 0.75, 1.25]))  # the highest frequency rotates by one per row
    assert_close(angle[0, :, 4], torch.tensor([-0.25, 0.25, 0.75, 1.25, 1.75, 2.25]))
