"""Boxes on images: a frame touches nothing of its box, labels stay readable, and what has no room is left out."""

import numpy as np
import pytest
from numpy import ndarray
from PIL import Image, ImageColor

from vitrail.plot.box_image import draw_boxes
from vitrail.plot.class_colours import class_colour

GREY = 128


def painted(page: Image.Image, colour: str) -> ndarray:
    """Return the pixels of exactly this colour."""
    return (np.asarray(page) == ImageColor.getrgb(colour)[:3]).all(-1)


def blank(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (GREY, GREY, GREY))


def extent(pixels: ndarray) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


@pytest.mark.parametrize("scale", [1.0, 3.0, 0.5])
def test_a_frame_is_around_its_box(scale: float) -> None:
    box = np.array([[20.0, 40, 60, 70]])
    image = blank(160, 120)
    page = draw_boxes(image, box, np.array([1]), scale=scale)
    width = round(0.9 + 160 * scale / 350)
    left, top, right, bottom = (box[0] * scale).astype(int).tolist()
    assert page.size == (160 * scale, 120 * scale)
    assert extent(painted(page, class_colour(1))) == (left - width, top - width, right + width, bottom + width)
    inside = np.asarray(page)[top + 1 : bottom - 1, left + 1 : right - 1]  # without the line along the frame
    assert (inside == GREY).all()
    assert np.array_equal(np.asarray(image), np.asarray(blank(160, 120))), "the image itself was painted"


@pytest.mark.parametrize(
    "box",
    [[0, 0, 160, 120], [-30, -30, 200, 190], [159, 50, 160, 51], [80, 60, 80, 60], [158, 118, 170, 130], [300, 300, 310, 320]],
)
def test_a_frame_is_seen_wherever_its_box_is(box: list[float]) -> None:
    """At the border of the image, beyond it, and if the box has no pixel."""
    page = draw_boxes(blank(160, 120), np.array([box], float), np.array([0]), ["cat"])
    left, top, right, bottom = extent(painted(page, class_colour(0)))
    assert right - left >= 3
    assert bottom - top >= 3
    assert (left, top) >= (0, 0)
    assert right <= 160
    assert bottom <= 120


def test_labels_do_not_overlap_and_the_highest_scores_have_theirs() -> None:
    """With room for a few labels only, each text that is drawn is as if it were alone."""
    boxes = np.repeat([[30.0, 40, 120, 100]], 30, axis=0)
    scores = np.linspace(0.1, 0.9, 30)
    page = draw_boxes(blank(160, 120), boxes, np.arange(30), [f"class {label}" for label in range(30)], scores=scores)
    alone = draw_boxes(
        blank(160, 120), boxes[-1:], np.array([29]), [f"class {label}" for label in range(30)], scores=scores[-1:]
    )
    left, top, right, bottom = extent(painted(alone, class_colour(29)))
    assert bottom - top > 60 + 2, "no label above the frame"
    label = slice(top, 38), slice(left, right)
    assert np.array_equal(np.asarray(page)[label], np.asarray(alone)[label])
    with_label = sum(painted(page, class_colour(number)).sum() > 50 for number in range(30))
    assert 2 <= with_label < 30


def test_a_label_has_room_beside_a_frame_that_is_as_high_as_the_image() -> None:
    names = ["window"]
    page = draw_boxes(blank(200, 90), np.array([[60.0, 0, 90, 90]]), np.array([0]), names)
    frame = draw_boxes(blank(200, 90), np.array([[60.0, 0, 90, 90]]), np.array([0]))
    assert painted(page, class_colour(0)).sum() > painted(frame, class_colour(0)).sum() + 100


def test_dashes_and_own_colours() -> None:
    boxes, labels = np.array([[20.0, 20, 70, 60], [90, 20, 150, 110]]), np.array([0, 0])
    page = draw_boxes(blank(160, 120), boxes, labels, dashed=np.array([False, True]), colours=["#102030", "#fefdfc"])
    solid, dashed = painted(page, "#102030"), painted(page, "#fefdfc")
    assert not painted(page, class_colour(0)).any()
    assert solid.sum() == 2 * (52 + 40)
    assert 0.4 < dashed.sum() / (2 * (62 + 90)) < 0.7
    assert extent(dashed)[:2] == (89, 19)


def test_no_boxes_leave_the_image_as_it_is() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (31, 17, 3), np.uint8))
    page = draw_boxes(image, np.zeros((0, 4)), np.zeros(0, np.int64), ["cat"])
    assert np.array_equal(np.asarray(page), np.asarray(image))
    assert draw_boxes(image.convert("L"), np.zeros((0, 4)), np.zeros(0, np.int64)).mode == "RGB"
