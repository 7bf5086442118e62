"""Position embeddings: each kind computed a second way, and what resizing may and may not change."""

import math

import pytest
import torch
from einops import rearrange
from torch.nn import functional as F
from torch.testing import assert_close

from tests.small_models import small_config, small_vit
from vitrail.layers import position
from vitrail.layers.attention import Attention
from vitrail.layers.position import (
    Grid,
    Learned1d,
    PositionEmbedding,
    PositionResize,
    RelativeKeys,
    resize_table,
    sincos1d,
    sincos2d,
)
from vitrail.models.config import Position

KINDS: list[Position] = ["learned1d", "learned2d", "learned2d-sum", "sincos1d", "sincos2d", "sincos2d-mae", "sincos2d-moco"]
IN_ATTENTION: list[Position] = ["relative", "rotary"]
RULES: list[PositionResize] = ["official", "timm", "huggingface", "torchvision", "dino", "segmenter"]


def shuffled(images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    patches = rearrange(images, "b c (h p) (w q) -> (h w) b c p q", p=6, q=5)
    return rearrange(patches[order], "(h w) b c p q -> b c (h p) (w q)", h=2)


def test_without_positions_the_class_token_ignores_the_order_of_patches() -> None:
    model, images = small_vit(position="none"), torch.randn(2, 3, 12, 15)
    assert_close(model(shuffled(images, torch.tensor([3, 1, 5, 0, 4, 2]))), model(images))


@pytest.mark.parametrize("pool", ["cls", "gap", "map"])
@pytest.mark.parametrize("kind", [*KINDS, *IN_ATTENTION])
def test_each_kind_of_position_makes_the_order_matter(kind: Position, pool: str) -> None:
    model, images = small_vit(position=kind, pool=pool), torch.randn(2, 3, 12, 15)
    changed = (model(shuffled(images, torch.tensor([3, 1, 5, 0, 4, 2]))) - model(images)).abs().max()
    assert changed > 1e-3


@pytest.mark.parametrize("at", ["input", "every-layer", "every-layer-shared"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_added_where_it_should_be(kind: Position, at: str) -> None:
    """Written out: patches, prefix tokens, the layer's table before the layer."""
    model, images = small_vit(position=kind, position_at=at, registers=2), torch.randn(2, 3, 12, 15)
    learned = kind.startswith("learned")
    assert len(model.positions) == (4 if at == "every-layer" and learned else 1)
    prefix = torch.stack([model.cls, *model.registers])  # type: ignore[list-item,misc]
    x = torch.cat([prefix.expand(2, 3, 24), model.embed_patches(images)], dim=1)
    for layer, block in enumerate(model.blocks):
        if layer == 0 or at != "input":
            table = model.positions[layer if at == "every-layer" and learned else 0]
            first = table.prefix if learned else torch.zeros(1, 24)
            x = x + torch.cat([first, torch.zeros(2, 24), table.table().flatten(0, 1)])  # type: ignore[operator,list-item]
        x = block(x)
    assert_close(model.encode(model.embed_patches(images), (2, 3)), model.norm(x))


def test_sincos1d_is_the_original_transformers() -> None:
    table = sincos1d((2, 3), 8).flatten(0, 1)
    for index in range(6):
        for channel in range(4):
            angle = index / 10_000 ** (2 * channel / 8)
            assert_close(table[index, 2 * channel].item(), math.sin(angle), rtol=0, atol=1e-6)
            assert_close(table[index, 2 * channel + 1].item(), math.cos(angle), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("convention", "last", "rows_first"), [("big_vision", 2, False), ("mae", 3, False), ("moco", 3, True)])
def test_sincos2d_has_three_conventions(convention: str, last: int, rows_first: bool) -> None:
    table = sincos2d((2, 4), 12, convention)  # type: ignore[arg-type]
    for row in range(2):
        for column in range(4):
            halves = [
                [f(index / 10_000 ** (i / last)) for f in (math.sin, math.cos) for i in range(3)] for index in (column, row)
            ]
            first, second = reversed(halves) if rows_first else halves
            assert_close(table[row, column], torch.tensor([*first, *second]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_resizing_to_its_own_grid_changes_nothing(rule: PositionResize) -> None:
    table = torch.randn(3, 5, 7)
    assert_close(resize_table(table, (3, 5), rule), table, rtol=0, atol=0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("grid", [(6, 5), (3, 9), (2, 3), (7, 11)])
def test_resizing_keeps_a_constant_and_does_not_mix_channels(rule: PositionResize, grid: Grid) -> None:
    table = torch.zeros(3, 5, 2)
    table[..., 0] = 4.0
    assert_close(resize_table(table, grid, rule), torch.tensor([4.0, 0.0]).expand(*grid, 2))


@pytest.mark.parametrize("grid", [(6, 5), (3, 9), (2, 3), (24, 17)])
def test_the_official_rule_is_scipys_zoom(grid: Grid) -> None:
    zoom = pytest.importorskip("scipy.ndimage").zoom
    table = torch.randn(4, 5, 3)
    reference = zoom(table.double().numpy(), (grid[0] / 4, grid[1] / 5, 1), order=1)
    assert_close(resize_table(table, grid, "official"), torch.from_numpy(reference).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", [(6, 5), (4, 9), (2, 3), (24, 17)])
def test_the_rule_of_dino_adds_a_tenth_of_a_patch_to_both_sides(grid: Grid) -> None:
    """By-hand: each new row is at (row + 0.5) * old / (new + 0.1) - 0.5, also along a side that stays (DINO, DINOv2)."""
    table = torch.randn(4, 5, 3)
    factors = ((grid[0] + 0.1) / 4, (grid[1] + 0.1) / 5)
    reference = F.interpolate(rearrange(table, "h w d -> 1 d h w"), scale_factor=factors, mode="bicubic")
    assert_close(resize_table(table, grid, "dino"), rearrange(reference, "1 d h w -> h w d"), rtol=0, atol=1e-5)


def test_prefix_tokens_keep_their_rows_at_another_grid() -> None:
    add = PositionEmbedding(Learned1d((2, 3), 8), 8, prefix=3, prefix_positions=2, resize="timm")
    x = add(torch.zeros(1, 3 + 20, 8), (4, 5))[0]
    assert add.prefix is not None
    assert_close(x[:2], add.prefix)
    assert_close(x[2], torch.zeros(8))
    assert_close(x[3:], resize_table(add.table(), (4, 5), "timm").flatten(0, 1))


def test_resize_matrices_are_cached_and_the_table_is_never_stale() -> None:
    add = PositionEmbedding(Learned1d((2, 3), 8), 8, prefix=0, prefix_positions=0, resize="timm")
    weight = add.table.weight
    assert isinstance(weight, torch.nn.Parameter)
    with torch.inference_mode():
        once = add.table_at((4, 5))
    before = position._resize_matrix.cache_info().hits
    weight.data.mul_(2)  # which changes no version counter
    assert_close(add.table_at((4, 5)), 2 * once)
    assert position._resize_matrix.cache_info().hits == before + 2
    add.table_at((4, 5)).sum().backward()  # with matrices first computed in inference mode
    assert_close(weight.grad, torch.full((2, 3, 8), 20 / 6), rtol=0.5, atol=0)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "dino"])
@pytest.mark.parametrize("grid", [(6, 5), (3, 9), (2, 3), (7, 11), (1, 1)])
def test_two_small_matrices_are_the_interpolation(rule: PositionResize, grid: Grid) -> None:
    table = torch.randn(3, 5, 7)
    mode = "bilinear" if rule in ("official", "segmenter") else "bicubic"
    options = {"antialias": True} if rule == "timm" else {"align_corners": rule not in ("huggingface", "segmenter")}
    whole = torch.nn.functional.interpolate(rearrange(table, "h w d -> 1 d h w"), grid, mode=mode, **options)
    assert_close(resize_table(table, grid, rule), rearrange(whole, "1 d h w -> h w d"), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tables_are_resized_too(dtype: torch.dtype) -> None:
    table = torch.randn(2, 3, 4)
    assert_close(
        resize_table(table.to(dtype), (4, 4), "timm").float(), resize_table(table, (4, 4), "timm"), rtol=0.02, atol=0.02
    )


def test_relative_keys_written_out() -> None:
    relative, q = RelativeKeys(tokens=5, heads=2, head_width=3), torch.randn(4, 2, 5, 3)
    bias = relative(q)
    for query in range(5):
        for key in range(5):
            offset = query - key
            expected = (q[:, :, query] * relative.keys[:, 4 - offset]).sum(-1) / 3**0.5
            assert_close(bias[:, :, query, key], expected)


def test_relative_attention_depends_only_on_the_offset() -> None:
    """With equal content everywhere, the weight of a key relative to the query's own depends only on the offset."""
    attend = Attention(6, 2, relative=RelativeKeys(5, 2, 3)).eval()
    torch.nn.init.normal_(attend.relative.keys)  # type: ignore[union-attr,arg-type]
    recorded: list[torch.Tensor] = []
    attend.weights.recorders.append(recorded.append)
    attend(torch.randn(1, 1, 6).expand(1, 5, 6))
    ratio = recorded[0] / recorded[0].diagonal(dim1=-2, dim2=-1)[..., None]
    for offset in range(-3, 4):
        along = ratio.diagonal(offset, dim1=-2, dim2=-1)
        assert_close(along, along[..., :1].expand_as(along))
    assert ratio[0, 0, 0, 1] != ratio[0, 0, 1, 0]  # before is not after


def test_position_prefix_decides_which_prefix_tokens_have_a_row() -> None:
    rows = {covers: small_config(position_prefix=covers, registers=2).prefix_positions for covers in ("none", "cls", "all")}
    assert rows == {"none": 0, "cls": 1, "all": 3}
    assert small_config(position_prefix="all", registers=2, pool="gap").prefix_positions == 2
