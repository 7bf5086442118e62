"""The cost model reproduces Table 6, and products with padding are counted as by a convolution of ones."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.pretraining_compute import (
    JFT_IMAGES,
    TABLE,
    TOLERANCE,
    TableRow,
    build_result,
    count_row,
    padding_macs,
    to_exaflops,
)
from vitrail.lab.trials import JobResult
from vitrail.layers.std_conv import StdConv2d, pad_same
from vitrail.models.build import build
from vitrail.models.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig
from vitrail.models.variants import variant

MISMATCHES = {("R50+L/16", 7)}  # in the paper it is not half of fourteen epochs


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.model}-{row.epochs}")
def test_a_row_of_the_table_is_reproduced_within_three_percent(row: TableRow) -> None:
    assert (abs(count_row(row).relative_difference) <= TOLERANCE) == ((row.model, row.epochs) not in MISMATCHES)


@pytest.mark.parametrize("row", [row for row in TABLE if "+" not in row.model and "x" not in row.model])
def test_a_transformer_has_no_padding(row: TableRow) -> None:
    one = count_row(row)
    assert one.padding_macs == 0
    assert one.exaflops_with_padding == one.exaflops


def test_with_padding_every_resnet_is_three_to_five_percent_too_high() -> None:
    off = [
        one.exaflops_with_padding / one.paper_row.exaflops - 1 for row in TABLE if "x" in row.model for one in [count_row(row)]
    ]
    assert len(off) == 7
    assert all(0.03 < share < 0.055 for share in off)
    assert all(abs(count_row(row).relative_difference) < 0.015 for row in TABLE if "x" in row.model)


@pytest.mark.parametrize(
    "config",
    [
        ResNetConfig(stages=(2, 1, 2), width=32, image=(37, 50), classes=3),
        ViTConfig(width=24, depth=1, mlp=16, heads=3, patch=(1, 1), image=(32, 48), classes=3, stem=StemConfig((1, 2), 32)),
        ViTConfig(width=24, depth=1, mlp=16, heads=3, patch=(8, 4), image=(32, 48), classes=3),
    ],
    ids=["resnet", "hybrid", "vit"],
)
def test_padded_products_equal_those_missing_in_a_convolution_of_ones(config: ModelConfig) -> None:
    model, result = build(config), []

    def count_taps(conv: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(conv, StdConv2d)
        side, kernel, stride = inputs[0].shape[2:], conv.kernel_size[0], conv.stride[0]
        ones = torch.ones(1, 1, *side)
        padded = pad_same(ones, kernel, stride) if conv.pad == "same" else F.pad(ones, (kernel // 2,) * 4)
        taps = F.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=stride)
        result.append(conv.in_channels * conv.out_channels * int(taps.numel() * kernel**2 - taps.sum()))

    for module in model.modules():
        if isinstance(module, StdConv2d):
            module.register_forward_pre_hook(count_taps)
    model(torch.zeros(1, 3, *config.image))
    assert padding_macs(config) == sum(result)
    assert (padding_macs(config) > 0) == bool(result)


def test_an_epoch_costs_as_much_as_a_run_on_as_many_images() -> None:
    macs = count_row(TABLE[1]).macs
    row = JobResult({}, "", JFT_IMAGES // 1000, 1000, 0, macs)
    assert row.flops == pytest.approx(to_exaflops(macs, 1) * 1e18)


def test_the_page_names_every_model_and_the_row_that_does_not_match() -> None:
    result = build_result(ExperimentOptions("none"), [])
    assert f"{len(TABLE) - len(MISMATCHES)} of {len(TABLE)} rows" in result.summary
    assert "R50x1+ViT-L/16 (7 epochs) does not match" in result.summary
    html = "".join(part for part in result.parts if isinstance(part, str))
    assert all(paper_row.paper in html for paper_row in TABLE)
    assert html.count("does not match") == len(MISMATCHES)
    assert "1.94 times the compute" in html
    assert [row["model"] for row in result.numbers["rows"]] == [paper_row.model for paper_row in TABLE]


def test_every_model_of_the_table_is_a_variant() -> None:
    assert all(variant(row.model) for row in TABLE)
