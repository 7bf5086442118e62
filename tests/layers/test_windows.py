"""Windows and relative positions along the axes: an exact restriction of full attention, by several routes."""

from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from vitrail.layers.attention import Attention
from vitrail.layers.norm import norm_layer
from vitrail.layers.relative_axes import RelativeAxes, resize_axis
from vitrail.layers.rotary import Rotary
from vitrail.layers.tap import record_activations
from vitrail.layers.windows import Windows, place_tokens

B, D, H = 2, 24, 3
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "qk-norm": {"qk_norm": norm_layer()},
    "axes": {"relative": (2, 2)},
}


def make_attention(relative: tuple[int, int] | None = None, **changes: Any) -> Attention:
    axes = None if relative is None else RelativeAxes(relative, D // H)
    attention = Attention(D, H, relative=axes, **changes).eval()
    for weight in attention.parameters():
        weight.data.add_(0.3 * torch.randn_like(weight))
    return attention.double()


def random_tokens(tokens: int, **options: Any) -> Tensor:
    return torch.randn(B, tokens, D, dtype=torch.float64, **options)


def hide(visible: Tensor) -> Tensor:
    """Return a bias by which keys are not seen."""
    return torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, float("-inf"))[None]


def same_window(first: int, second: int, grid: tuple[int, int], side: int) -> bool:
    return all(one // side == other // side for one, other in zip(divmod(first, grid[1]), divmod(second, grid[1]), strict=True))


@pytest.mark.parametrize(("prefix", "behind"), [(0, 0), (2, 0), (1, 3)])
def test_windows_are_full_attention_with_a_mask(prefix: int, behind: int) -> None:
    grid, side = (4, 6), 2
    tokens, patches = prefix + 24 + behind, range(prefix, prefix + 24)
    visible = torch.tensor(
        [
            [
                query not in patches or key not in patches or same_window(query - prefix, key - prefix, grid, side)
                for key in range(tokens)
            ]
            for query in range(tokens)
        ]
    )
    windowed = make_attention(window=side, prefix=prefix)
    full = Attention(D, H).double().eval()
    full.load_state_dict(windowed.state_dict())
    x = random_tokens(tokens)
    assert_close(windowed(x, grid=grid), full(x, bias=hide(visible)), rtol=0, atol=1e-10)
    assert torch.equal(Windows(side, grid, prefix).visible(tokens, x.device), visible)


@pytest.mark.parametrize("relative", [None, (3, 3)], ids=["plain", "axes"])
@pytest.mark.parametrize("prefix", [0, 2])
def test_a_window_of_the_whole_grid_is_global_attention(relative: tuple[int, int] | None, prefix: int) -> None:
    windowed, x = make_attention(relative, window=3, prefix=prefix), random_tokens(prefix + 9)
    full = make_attention(relative, prefix=prefix)
    full.load_state_dict(windowed.state_dict())
    expected = full(x, grid=(3, 3))
    assert_close(windowed(x, grid=(3, 3)), expected, rtol=0, atol=1e-10)
    with record_activations(windowed, "weights"):
        assert_close(windowed(x, grid=(3, 3)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("grid", [(4, 6), (5, 3), (1, 7)], ids=["divisible", "padded", "one row"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_path_equals_the_explicit_one_in_values_and_gradients(kind: str, grid: tuple[int, int], prefix: int) -> None:
    attend, patches = make_attention(**KINDS[kind], window=2, prefix=prefix), grid[0] * grid[1]
    rotation = Rotary(grid, D // H, prefix=prefix)(grid, torch.device("cpu"))
    rotation = tuple(F.pad(part, (0, 0, 0, 1), value=value) for part, value in zip(rotation, (1.0, 0.0), strict=True))
    x, weight = random_tokens(prefix + patches + 1, requires_grad=True), random_tokens(prefix + patches + 1)
    inputs = [x, *attend.parameters()]
    fused = attend(x, rotation, grid=grid)
    expected = torch.autograd.grad((fused * weight).sum(), inputs)
    with record_activations(attend, "weights") as recorded:
        explicit = attend(x, rotation, grid=grid)
    assert_close(explicit, fused, rtol=0, atol=1e-10)
    for got, wanted in zip(torch.autograd.grad((explicit * weight).sum(), inputs), expected, strict=True):
        assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    (weights,), sums = recorded["weights"], recorded["weights"][0].sum(-1)
    assert weights.shape == (B, H, prefix + patches + 1, prefix + patches + 1)
    is_padded = grid[0] % 2 > 0 or grid[1] % 2 > 0
    assert (sums < 1.00001).all()
    assert (sums.min() < 0.9999) == is_padded  # what is missing is the weight of the padding


def test_nothing_passes_from_one_window_to_another() -> None:
    attend, x, grid = make_attention(window=2), random_tokens(24), (4, 6)
    changed = x.clone()
    changed[:, 9] += 1  # in the second row and the second window from the left
    differs = ((attend(x, grid=grid) - attend(changed, grid=grid)).abs().amax((0, 2)) > 1e-7).nonzero()[:, 0].tolist()
    assert differs == [patch for patch in range(24) if same_window(patch, 9, grid, 2)] == [2, 3, 8, 9]


def test_windows_do_not_know_their_order() -> None:
    """Without positions, windows may change places, and so may the patches within one."""
    attend, grid = make_attention(window=2), (4, 6)
    x = random_tokens(24)
    order = torch.arange(24).reshape(2, 2, 3, 2).flip(0).roll(1, 2).flip(3).reshape(24)  # of windows, and within each
    assert_close(attend(x[:, order], grid=grid), attend(x, grid=grid)[:, order], rtol=0, atol=1e-10)


def test_patches_are_put_back_where_they_were() -> None:
    for grid in ((4, 6), (5, 3), (1, 1)):
        windows, patches = Windows(3, grid, 0), torch.randn(B, H, grid[0] * grid[1], 8)
        parts = windows.partition(patches, torch.full((H, 8), 7.0))
        assert parts.shape == (B * windows.count, H, 9, 8)
        assert (parts == 7).sum() == B * H * 8 * (9 * windows.count - patches.shape[2])
        assert torch.equal(windows.merge(parts).transpose(1, 2), patches)
        assert len(windows.pads(patches.device)) == 9 * windows.count - patches.shape[2]


def test_relative_axes_multiply_the_query_with_the_offsets_of_rows_and_columns() -> None:
    axes, (rows, columns) = RelativeAxes((3, 4), 8), (3, 4)
    for weight in axes.parameters():
        torch.nn.init.normal_(weight)
    q = torch.randn(B, H, rows * columns, 8)
    added = axes(q, (rows, columns))
    for (query, (y, x)), (key, (v, u)) in product(enumerate(product(range(3), range(4))), repeat=2):
        expected = q[:, :, query] @ (axes.rows[y - v + 2] + axes.columns[x - u + 3])
        assert_close(added[:, :, query, key], expected)
    places = place_tokens((rows, columns), 2, 15, q.device)
    assert places[:3].tolist() == [[-1, -1], [-1, -1], [0, 0]]
    some = F.pad(q, (0, 0, 2, 1))[:, :, [1, 5, 14]]
    pairs = axes.pairs(some, (rows, columns), places[[1, 5, 14]], places)
    assert_close(pairs[:, :, 1, 2:14], added[:, :, 3])
    assert not pairs[:, :, [0, 2]].any()
    assert not pairs[..., [0, 1, 14]].any()


def test_relative_axes_add_nothing_at_first_and_are_interpolated_for_another_grid() -> None:
    axes, q = RelativeAxes((3, 4), 8), torch.randn(B, H, 10, 8)
    assert not axes(q, (2, 5)).any()
    axes.columns.data[:] = torch.arange(-3.0, 4)[:, None]
    added = axes(q, (2, 5)).unflatten(2, (2, 5)).unflatten(4, (2, 5)) / q.sum(-1).unflatten(2, (2, 5))[..., None, None]
    along = added[0, 0, 0, 2, 0]  # of a query in the middle, from left to right
    assert_close(along, -along.flip(0))
    assert all(first > second for first, second in pairwise(along.tolist()))
    assert resize_axis(axes.columns, 7) is axes.columns
