"""Corruptions do what they claim, to every image the same whatever its batch, and nothing at severity 0."""

import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from scipy import ndimage  # type: ignore[import-untyped]
from torch import Tensor
from torch.testing import assert_close

from tests.data.images import make_image
from vitrail.errors import VitrailError
from vitrail.evaluation.corruptions import (
    DROP_STREAM,
    SHUFFLE_STREAM,
    Corruption,
    add_noise,
    cell_edges,
    check_grid,
    corruption_suite,
    draw_noise,
    draw_permutations,
    draw_positions,
    drop_cells,
    gaussian_blur,
    jpeg_compress,
    occlude,
    reduce_contrast,
    shuffle_cells,
    shuffle_grids,
)

GRID = (3, 4)
SIZE = (24, 20)  # 8 x 5 pixels per cell
ALL = {each.name: each for each in corruption_suite(GRID)}


def random_images(count: int, mode: str = "RGB", size: tuple[int, int] = SIZE) -> Tensor:
    arrays = [np.asarray(make_image(number, size, mode)).reshape(*size, -1) for number in range(count)]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def image_indices(count: int) -> ndarray:
    return np.arange(100, 100 + count)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_every_severity_returns_bytes_of_the_same_shape_and_leaves_the_original(kind: Corruption, mode: str) -> None:
    before = random_images(3, mode)
    original = before.clone()
    versions = list(kind.iter_severities(before, image_indices(3), 0))
    assert len(versions) == len(kind.captions) == len(kind.strengths)
    for after in versions:
        assert (after.shape, after.dtype) == (before.shape, torch.uint8)
    assert not torch.equal(versions[-1], before)
    assert torch.equal(before, original)


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_an_image_depends_on_the_seed_and_not_on_its_batch(kind: Corruption) -> None:
    whole, keys = random_images(5), image_indices(5)
    together = list(kind.iter_severities(whole, keys, 7))
    for row in (4, 1):
        alone = kind.iter_severities(whole[row : row + 1], keys[row : row + 1], 7)
        assert all(torch.equal(one[0], all_of_them[row]) for one, all_of_them in zip(alone, together, strict=True))
    samples = kind.name in ("noise", "drop", "occlude", "shuffle")
    assert torch.equal(together[0], next(kind.iter_severities(whole, keys, 8))) != samples
    one, other = next(kind.iter_severities(whole[[0, 0]], keys[:2], 0))
    assert torch.equal(one, other) != samples


@pytest.mark.parametrize("name", ["noise", "blur", "contrast", "jpeg", "drop", "occlude"])
def test_a_higher_severity_is_more_of_the_same(name: str) -> None:
    before = random_images(8, size=(48, 44))
    errors = [(after.double() - before).square().mean() for after in ALL[name].iter_severities(before, image_indices(8), 0)]
    assert all(lower < higher for lower, higher in pairwise(errors))


def test_noise_has_its_standard_deviation_and_is_clipped() -> None:
    grey = torch.full((2, 3, 200, 190), 128, dtype=torch.uint8)
    samples = draw_noise(0, image_indices(2), grey.shape[1:])
    for deviation in (0.02, 0.08, 0.12):
        noise = (add_noise(grey, samples, deviation).double() - 128) / 255
        assert noise.std().item() == pytest.approx(deviation, rel=0.01)
        assert abs(noise.mean().item()) < 0.001
    assert_close(
        add_noise(grey * 0, samples, 0.1).double().mean() / 255,
        torch.tensor(0.1 / (2 * np.pi) ** 0.5).double(),
        rtol=0.02,
        atol=0,
    )
    assert torch.equal(add_noise(grey, samples, 0.0), grey)


@pytest.mark.parametrize("size", [(24, 20), (120, 150)])
def test_blur_is_scipys_and_shrinks_with_the_image(size: tuple[int, int]) -> None:
    before = random_images(2, size=size)
    for deviation in (1.0, 3.0, 6.0, 40.0):
        sigma = deviation * min(size) / 224
        expected = ndimage.gaussian_filter(before.double().numpy(), (0, 0, sigma, sigma), mode="nearest")
        blurred = gaussian_blur(before, deviation).numpy()
        assert np.abs(blurred - expected).max() < 0.501
    assert torch.equal(gaussian_blur(before, 0.0), before)


def test_contrast_keeps_the_mean_and_scales_the_deviation() -> None:
    before = random_images(3)
    after = reduce_contrast(before, 0.3).double()
    assert_close(after.mean((2, 3)), before.double().mean((2, 3)), atol=0.1, rtol=0)
    assert_close(after.std((2, 3)), 0.3 * before.double().std((2, 3)), atol=0.3, rtol=0)
    assert torch.equal(reduce_contrast(before, 1.0), before)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_is_pillows(mode: str) -> None:
    for quality in (25, 7):
        stream = io.BytesIO()
        make_image(1, SIZE, mode).save(stream, "JPEG", quality=quality)
        with Image.open(stream) as read:
            expected = np.asarray(read).reshape(*SIZE, -1)
        assert np.array_equal(jpeg_compress(random_images(2, mode), quality)[1].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("size", [SIZE, (25, 23)])
def test_exactly_the_rounded_number_of_cells_is_dropped_and_more_at_each_severity(size: tuple[int, int]) -> None:
    white = torch.full((6, 1, *size), 255, dtype=torch.uint8)
    order = draw_permutations(0, DROP_STREAM, image_indices(6), 12)
    before = torch.zeros(6, 3, 4, dtype=torch.bool)
    for fraction in (0.0, 0.1, 0.3, 0.5, 0.9, 1.0):
        after = drop_cells(white, order, GRID, fraction)
        rows, columns = cell_edges(size[0], 3).tolist(), cell_edges(size[1], 4).tolist()
        cells = torch.stack([after[:, 0, top, left] == 0 for top in rows[:-1] for left in columns[:-1]], 1).view(-1, 3, 4)
        again = torch.full_like(white, 255)
        for one, row, column in cells.nonzero().tolist():
            again[one, :, rows[row] : rows[row + 1], columns[column] : columns[column + 1]] = 0
        assert torch.equal(after, again)
        assert (cells.sum((1, 2)) == round(fraction * 12)).all()
        assert (cells >= before).all()
        before = cells


def test_an_occlusion_is_one_block_of_its_fraction_anywhere() -> None:
    white = torch.full((400, 1, 40, 50), 255, dtype=torch.uint8)
    corners = set()
    for fraction in (0.09, 0.49, 1.0):
        black = (occlude(white, draw_positions(0, image_indices(400)), fraction) == 0)[:, 0]
        high, wide = round(fraction**0.5 * 40), round(fraction**0.5 * 50)
        assert (black.sum((1, 2)) == high * wide).all()
        rows, columns = black.any(2), black.any(1)
        assert ((rows.sum(1) == high) & (columns.sum(1) == wide)).all()
        for row, column in zip(rows.int().argmax(1).tolist(), columns.int().argmax(1).tolist(), strict=True):
            corners.add((fraction, row, column))
    tops = {row for fraction, row, _ in corners if fraction == 0.49}
    assert tops == set(range(40 - 28 + 1))  # every position is as likely
    assert torch.equal(occlude(white, draw_positions(0, image_indices(400)), 0.0), white)


def test_a_shuffle_moves_whole_cells_and_loses_none() -> None:
    before = random_images(5)
    order = draw_permutations(3, SHUFFLE_STREAM, image_indices(5), 12)
    after = shuffle_cells(before, order, GRID)
    for one in range(5):
        for target, source in enumerate(order[one].tolist()):
            to, of = ((cell // 4 * 8, cell % 4 * 5) for cell in (target, source))
            assert torch.equal(
                after[one, :, to[0] : to[0] + 8, to[1] : to[1] + 5], before[one, :, of[0] : of[0] + 8, of[1] : of[1] + 5]
            )
    assert torch.equal(after.flatten(2).sort().values, before.flatten(2).sort().values)
    back = shuffle_cells(after, order.argsort(1), GRID)
    assert torch.equal(back, before)
    assert torch.equal(shuffle_cells(before, draw_permutations(0, SHUFFLE_STREAM, image_indices(5), 1), (1, 1)), before)


def test_cells_that_do_not_divide_the_image_are_stretched_by_a_pixel() -> None:
    before = torch.arange(25 * 23, dtype=torch.int64).remainder(251).byte().view(1, 1, 25, 23)
    same = torch.arange(12)[None]
    assert torch.equal(shuffle_cells(before, same, GRID), before)
    order = draw_permutations(1, SHUFFLE_STREAM, image_indices(1), 12)
    after = shuffle_cells(before, order, GRID)
    rows, columns = cell_edges(25, 3).tolist(), cell_edges(23, 4).tolist()
    for target, source in enumerate(order[0].tolist()):
        to = after[0, 0, rows[target // 4] : rows[target // 4 + 1], columns[target % 4] : columns[target % 4 + 1]]
        of = before[0, 0, rows[source // 4] : rows[source // 4 + 1], columns[source % 4] : columns[source % 4 + 1]]
        assert set(to.flatten().tolist()) <= set(of.flatten().tolist())


def test_orders_are_permutations_and_differ_for_another_number_of_cells() -> None:
    order = draw_permutations(0, SHUFFLE_STREAM, image_indices(50), 9)
    assert torch.equal(order.sort(1).values, torch.arange(9).expand(50, 9))
    assert len({tuple(row) for row in order.tolist()}) == 50
    assert not torch.equal(draw_permutations(0, SHUFFLE_STREAM, image_indices(50), 10)[:, :9], order)


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ((4, 4), [(2, 2), (4, 4)]),
        ((14, 14), [(2, 2), (7, 7), (14, 14)]),
        ((24, 24), [(2, 2), (4, 4), (6, 6), (8, 8), (24, 24)]),
        ((2, 3), [(2, 3)]),
        ((4, 6), [(2, 3), (4, 6)]),
        ((7, 7), [(7, 7)]),
        ((1, 1), []),
    ],
)
def test_shuffles_go_from_coarse_to_the_grid_in_whole_cells(grid: tuple[int, int], expected: list[tuple[int, int]]) -> None:
    assert shuffle_grids(grid) == expected
    assert ("shuffle" in [each.name for each in corruption_suite(grid)]) == bool(expected)


def test_cells_smaller_than_a_pixel_are_refused() -> None:
    check_grid((28, 28), (28, 28))
    with pytest.raises(VitrailError, match="got 40x14 for images of 28x28; try 28x14"):
        check_grid((40, 14), (28, 28))
    with pytest.raises(VitrailError, match="got 0x3 for images of 28x28; try 1x3"):
        check_grid((0, 3), (28, 28))
