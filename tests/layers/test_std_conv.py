"""Standardised convolutions with TensorFlow's padding."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from vitrail.layers.std_conv import StdConv2d, pad_same, standardise


def test_kernels_have_mean_zero_and_standard_deviation_one() -> None:
    weight = torch.randn(4, 3, 2, 5) * 7 + 1
    for rule in ("std", "variance"):
        kernels = standardise(weight, rule, 1e-9).flatten(1)
        assert_close(kernels.mean(1), torch.zeros(4), rtol=0, atol=1e-6)
        assert_close(kernels.std(1, correction=0), torch.ones(4))


def test_the_two_rules_differ_by_where_epsilon_stands() -> None:
    weight = torch.randn(4, 3, 2, 5)
    centred = weight - weight.mean((1, 2, 3), keepdim=True)
    deviation = weight.std((1, 2, 3), keepdim=True, correction=0)
    assert_close(standardise(weight, "std", 0.5), centred / (deviation + 0.5))
    assert_close(standardise(weight, "variance", 0.5), centred / (deviation**2 + 0.5).sqrt())


@pytest.mark.parametrize("side", [7, 8, 9])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
def test_same_padding_rounds_up_and_puts_the_odd_remainder_last(side: int, kernel: int, stride: int) -> None:
    ones = torch.ones(1, 1, side, side + 4)
    padded = pad_same(ones, kernel, stride)
    out = F.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=stride)
    assert out.shape[2:] == (-(-side // stride), -(-(side + 4) // stride))
    before, after = (padded[0, 0].sum(1) == 0).long()[: kernel // 2 + 1].sum(), padded.shape[2] - side
    assert before == after // 2


def test_a_convolution_pads_and_standardises() -> None:
    conv, x = StdConv2d(3, 4, 3, stride=2, pad="same", rule="std", eps=1e-5), torch.randn(2, 3, 8, 6)
    expected = F.conv2d(F.pad(x, (0, 1, 0, 1)), standardise(conv.weight, "std", 1e-5), stride=2)
    assert_close(conv(x), expected)
