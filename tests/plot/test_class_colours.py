"""Colours of classes differ to every kind of eye, never change with the number of classes, and mark ignored pixels."""

import numpy as np
import pytest
from numpy import ndarray

from vitrail.plot.class_colours import FIRST_COLOURS, IGNORED_COLOURS, class_colour, class_colours, overlay
from vitrail.plot.colormap import colormap, rgb_to_oklab

COLOUR_VISION = {  # linear RGB as it looks without one kind of cone, after Machado, Oliveira and Fernandes (2009)
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def with_vision(rgb: ndarray, vision: str) -> ndarray:
    """Return sRGB colours as they look with this colour vision."""
    value = rgb / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.array(COLOUR_VISION[vision]).T, 0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * curved).astype(np.uint8)


def smallest_distance(rgb: ndarray) -> float:
    """Return the distance in OKLab of the two colours that look most alike."""
    lab = rgb_to_oklab(rgb)
    distances = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    return float(distances[~np.eye(len(lab), dtype=bool)].min())


@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_first_eight_colours_differ_with_every_colour_vision(vision: str) -> None:
    assert smallest_distance(with_vision(class_colours(8), vision)) > 0.07


@pytest.mark.parametrize(("count", "distance"), [(21, 0.07), (60, 0.05), (256, 0.02)])
def test_many_colours_differ(count: int, distance: float) -> None:
    assert smallest_distance(class_colours(count)) > distance


def test_more_classes_do_not_change_the_colours() -> None:
    many = class_colours(700)
    for count in (1, 2, 8, 9, 150, 256, 257):
        np.testing.assert_array_equal(class_colours(count), many[:count])
    assert class_colours(40_000).shape == (40_000, 3)
    assert class_colour(1) == "#e69f00"
    assert tuple(many[1]) == FIRST_COLOURS[1]
    assert class_colour(300) == "#{:02x}{:02x}{:02x}".format(*many[300].tolist())
    assert class_colour(-1) == "#{:02x}{:02x}{:02x}".format(*IGNORED_COLOURS[0])


def test_overlay_blends_each_pixel_with_the_colour_of_its_class() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (13, 17, 3), np.uint8)
    mask = rng.integers(-1, 11, (13, 17)).astype(np.int16)
    opaque = overlay(image, mask, 1.0)
    known = mask >= 0
    np.testing.assert_array_equal(opaque[known], class_colours(11)[mask[known]])
    assert {tuple(colour) for colour in opaque[~known].tolist()} == set(IGNORED_COLOURS)
    np.testing.assert_array_equal(overlay(image, mask, 0.0), image)
    half = overlay(image, mask).astype(int)
    assert np.abs(2 * half - opaque - image).max() <= 1


def test_a_mask_without_any_class_is_only_stripes() -> None:
    opaque = overlay(np.zeros((5, 7, 3), np.uint8), np.full((5, 7), -1), 1.0)
    assert {tuple(colour) for colour in opaque.reshape(-1, 3).tolist()} == set(IGNORED_COLOURS)


def test_oklab_of_black_white_and_the_colour_map() -> None:
    np.testing.assert_allclose(
        rgb_to_oklab(np.array([[0, 0, 0], [255, 255, 255]], np.uint8)), [[0, 0, 0], [1, 0, 0]], atol=1e-6
    )
    assert (np.diff(rgb_to_oklab(colormap())[:, 0]) > 0).all()
