"""Numbers as colours: even steps, the right place, the right size."""

import numpy as np
import pytest
from PIL import Image

from vitrail.report.heat import BAR, colours, filter_sheet, overlay, patched, path, scaled, tiles, wall


def oklab(rgb: np.ndarray) -> np.ndarray:
    """The other way round, written anew."""
    value = rgb / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    lms = (
        linear
        @ np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        ).T
    )
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.cbrt(lms) @ np.array(to_lab).T


def test_equal_steps_look_equal_and_get_lighter() -> None:
    seen = oklab(path()[::8].astype(np.float64))
    steps = np.linalg.norm(np.diff(seen, axis=0), axis=1)
    assert steps.std() / steps.mean() < 0.05
    assert (np.diff(seen[:, 0]) > 0).all()


def test_the_ends_are_the_ends_and_what_is_no_number_is_dark() -> None:
    shown = colours(np.array([0.0, 1.0, -3.0, 7.0, np.nan]))
    assert (shown[0] == path()[0]).all()
    assert (shown[1] == path()[-1]).all()
    assert (shown[2] == path()[0]).all()
    assert (shown[3] == path()[-1]).all()
    assert (shown[4] == path()[0]).all()


def test_scaled_goes_from_0_to_1_and_flat_is_0() -> None:
    assert scaled(np.array([[2.0, 4.0, 3.0]])).tolist() == [[0, 1, 0.5]]
    assert scaled(np.full((2, 3), 5.0)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_the_brightest_patch_lies_where_the_map_is_highest() -> None:
    values = np.zeros((2, 3))
    values[1, 2] = 1
    made = overlay(Image.new("RGB", (30, 20), (128, 128, 128)), values, side=90)
    assert made.size == (90 + BAR, 60)
    pixels = np.asarray(made.convert("L"), np.float64)[:60, :90]
    cells = pixels.reshape(2, 30, 3, 30).mean(axis=(1, 3))
    assert cells.argmax() == 5
    assert np.ptp(cells.flatten()[:5]) < 1


def test_lines_lie_between_patches() -> None:
    made = np.asarray(patched(Image.new("RGB", (30, 20)), (2, 3), side=90)).max(axis=2)
    assert set(np.flatnonzero(made[5])) == {30, 60}
    assert set(np.flatnonzero(made[:, 5])) == {30}


def test_a_wall_has_a_column_a_layer_and_a_row_a_head() -> None:
    maps = np.zeros((4, 3, 2, 5))
    maps[3, 1, 0, 4] = 1
    made = np.asarray(wall(maps, side=50).convert("L"), np.float64)
    assert made.shape == (18 + 3 * 22 + 2, 28 + 4 * 52 + 2)
    column, row = 28 + 3 * 52, 18 + 1 * 22
    assert made[row : row + 10, column + 40 : column + 50].min() > 200
    assert made[row + 10 : row + 20, column : column + 40].max() < 30


def test_tiles_of_a_large_grid_are_fewer() -> None:
    similarity = np.ones((6, 30, 6, 30))
    made = tiles(similarity, most=10, side=30)
    assert made.size == (10 * 32 + 2 + BAR, 2 * 8 + 2)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_filters_of_any_number_of_channels_can_be_shown(channels: int) -> None:
    filters = np.random.default_rng(0).random((9, channels, 6, 5))
    made = np.asarray(filter_sheet(filters, columns=4, side=12))
    assert made.shape == (3 * 16 + 4, 4 * 14 + 4, 3)
    shown = filters[5] if channels == 3 else filters[5].mean(0)[None].repeat(3, axis=0)
    assert (made[20 + 2, 18] == np.round(255 * shown[:, 1, 0])).all()  # the second row of pixels of the sixth
