"""Heat maps have uniform colours, and cells at the right position and size."""

import math

import numpy as np
import pytest
from PIL import Image

from vitrail.plot.colormap import apply_colormap, colormap, min_max
from vitrail.plot.heatmap import COLOUR_BAR_WIDTH, attention_grid, filter_grid, heatmap_grid, heatmap_row, overlay, patch_grid


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Convert sRGB to OKLab, written independently."""
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
    colours = oklab(colormap()[::8].astype(np.float64))
    steps = np.linalg.norm(np.diff(colours, axis=0), axis=1)
    assert steps.std() / steps.mean() < 0.05
    assert (np.diff(colours[:, 0]) > 0).all()


def test_values_are_clipped_to_the_colour_map_and_nan_is_dark() -> None:
    printed = apply_colormap(np.array([0.0, 1.0, -3.0, 7.0, np.nan]))
    assert (printed[0] == colormap()[0]).all()
    assert (printed[1] == colormap()[-1]).all()
    assert (printed[2] == colormap()[0]).all()
    assert (printed[3] == colormap()[-1]).all()
    assert (printed[4] == colormap()[0]).all()


def test_min_max_scales_to_0_and_1_and_a_constant_to_0() -> None:
    assert min_max(np.array([[2.0, 4.0, 3.0]])).tolist() == [[0, 1, 0.5]]
    assert min_max(np.full((2, 3), 5.0)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_the_brightest_patch_is_where_the_map_is_highest() -> None:
    values = np.zeros((2, 3))
    values[1, 2] = 1
    built = overlay(Image.new("RGB", (30, 20), (128, 128, 128)), values, side=90)
    assert built.size == (90 + COLOUR_BAR_WIDTH, 60)
    pixels = np.asarray(built.to_image(1, standalone=False).convert("L"), np.float64)[:60, :90]
    cells = pixels.reshape(2, 30, 3, 30).mean(axis=(1, 3))
    assert cells.argmax() == 5
    assert np.ptp(cells.flatten()[:5]) < 1


def test_the_colour_bar_matches_the_overlay_on_grey() -> None:
    built = np.asarray(
        overlay(Image.new("RGB", (30, 20), (128,) * 3), np.array([[0.0, 1.0]]), side=90).to_image(1, standalone=False)
    )
    for column, height in ((20, 59), (70, 0)):
        assert np.abs(built[30, column].astype(int) - built[height, 90 + 12].astype(int)).max() <= 4


def test_lines_lie_between_patches_and_marked_ones_have_a_frame() -> None:
    drawing = patch_grid(Image.new("RGB", (30, 20)), (2, 3), side=90)
    built = np.asarray(drawing.to_image(1, standalone=False)).max(axis=2)
    assert set(np.flatnonzero(built[5])) <= {29, 30, 59, 60}
    assert set(np.flatnonzero(built[:, 5])) <= {29, 30}
    framed = np.asarray(patch_grid(Image.new("RGB", (30, 20)), (2, 3), marked=[(1, 2)], side=90).to_image(1, standalone=False))
    red = (framed[..., 0] > 150) & (framed[..., 2] < 60)
    assert red[45, 59:62].any()
    assert not red[5, 59:62].any()


def test_an_attention_grid_has_a_column_per_layer_and_a_row_per_head() -> None:
    maps = np.zeros((4, 3, 2, 5))
    maps[3, 1, 0, 4] = 1
    drawing = attention_grid(maps, layers=[0, 2, 5, 7], heads=[1, 4, 6], side=50)
    built = np.asarray(drawing.to_image(1, standalone=False).convert("L"), np.float64)
    gap = 10 / 3
    assert built.shape == (math.ceil(18 + 3 * (20 + gap)), math.ceil(50 + 4 * (50 + gap)))
    column, row = round(50 + 3 * (50 + gap)), round(18 + 20 + gap)
    assert built[row + 2 : row + 9, column + 42 : column + 48].min() > 200
    assert built[row + 12 : row + 18, column + 2 : column + 38].max() < 30
    assert built[row + 5, column - 2] > 240  # background between them
    svg = drawing.to_svg()
    assert all(text in svg for text in ("layer 7", "head 6", "<title>layer 7, head 4: 0 to 1</title>"))


def test_a_large_grid_is_subsampled() -> None:
    built = heatmap_grid(np.ones((6, 30, 6, 30)), max_tiles=10, side=30)
    assert built.size == (50 + 10 * 31 + COLOUR_BAR_WIDTH, 60)
    assert "row 0" in built.to_svg()
    assert ">27<" in built.to_svg()


def test_a_row_of_heat_maps_states_its_ranges_and_wraps() -> None:
    maps = np.arange(26 * 6.0).reshape(26, 2, 3)
    built = heatmap_row(maps, [f"layer {number}" for number in range(26)], "norms")
    assert built.size[0] <= 1000
    assert ">150 to 155<" in built.to_svg()
    same = heatmap_row(np.full((2, 3, 3), 0.5), ["a", "b"], "similarity", (0.0, 1.0))
    pixels = np.asarray(same.to_image(1, standalone=False))
    assert (pixels[40, 20] == colormap()[127]).all()  # in the middle of the colour map, not at its end


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_filters_of_any_number_of_channels_can_be_drawn(channels: int) -> None:
    filters = np.random.default_rng(0).random((9, channels, 6, 5))
    built = np.asarray(filter_grid(filters, columns=4, side=12).to_image(1, standalone=False))
    assert built.shape == (3 * 16 + 4, 4 * 14 + 4, 3)
    printed = filters[5] if channels == 3 else filters[5].mean(0)[None].repeat(3, axis=0)
    assert (built[20 + 2, 18] == np.round(255 * printed[:, 1, 0])).all()  # the second row of pixels of the sixth
