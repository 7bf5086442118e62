"""Boxes as people look at them: on thumbnails, in batches as the model sees them, and on the page of a dataset."""

from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray
from PIL import Image, ImageColor

from tests.data.box_images import HEIGHT, NAMES, WIDTH, some_objects, write_boxed
from vitrail import open_dataset
from vitrail.augment.policy import get_policy
from vitrail.config import override
from vitrail.data.dataset_check import check_dataset
from vitrail.data.sources.box_faults import BoxFault
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.objects import Objects, build_objects
from vitrail.data.sources.panes.dataset import PanesDataset
from vitrail.errors import VitrailError
from vitrail.plot.class_colours import class_colour
from vitrail.report import batch_sheet
from vitrail.report.batch_sheet import draw_batch
from vitrail.report.box_view import SIDE, box_caption, boxed_sheet
from vitrail.report.contact_sheet import CAPTION_HEIGHT, GAP
from vitrail.report.dataset_page import dataset_page


def extent(sheet: Image.Image, label: int) -> tuple[int, int, int, int]:
    """Return the corners of what has the colour of a class, without the legend."""
    pixels: ndarray = (np.asarray(sheet) == ImageColor.getrgb(class_colour(label))[:3]).all(-1)[:-30]
    rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


@pytest.mark.parametrize(("size", "scale"), [((40, 60), 2.0), ((400, 600), 0.2), ((80, 120), 1.0)])
def test_a_frame_is_where_the_box_is_on_a_thumbnail(size: tuple[int, int], scale: float) -> None:
    """Of a side of 120: small images enlarged in whole pixels, others resized to it."""
    image = Image.new("RGB", size[::-1], (128, 128, 128))
    box = np.array([[10, 20, 30, 35]]) * size[0] / 40
    sheet = boxed_sheet([image], [build_objects(box, [1])], NAMES, side=120)
    top = GAP + (120 - round(size[0] * scale)) / 2  # in the middle of its square
    left, upper, right, lower = (box[0] * scale).tolist()
    expected = GAP + left - 1, top + upper - 1, GAP + right + 1, top + lower + 1
    np.testing.assert_allclose(extent(sheet, 1), expected, atol=1)
    assert sheet.height == 120 + CAPTION_HEIGHT + 2 * GAP + 34  # with the legend


def test_a_sheet_of_images_without_boxes_has_no_legend() -> None:
    sheet = boxed_sheet([Image.new("RGB", (20, 30))] * 2, [build_objects([], [])] * 2, NAMES, columns=2, side=60)
    assert sheet.size == (2 * (60 + GAP) + GAP, 60 + CAPTION_HEIGHT + 2 * GAP)


def test_captions_count_the_boxes() -> None:
    assert [box_caption(NAMES, each) for each in some_objects()[:2]] == ["1 cat, 1 bird & wing", "no box"]
    crowd = build_objects(np.ones((6, 4)), [0, 0, 1, 2, 1, 1], np.array([True] + [False] * 5))
    assert box_caption(NAMES, crowd) == "3 small dog, 1 ignored, 1 cat, 1 more"


def test_the_page_of_a_dataset_has_its_boxes(tmp_path: Path) -> None:
    faults = (BoxFault(1, 3, "degenerate", (3.0, 4.0, 3.0, 9.0)),)
    tiny = build_objects([[10, 5, 11, 25], [20, 5, 50, 25], [20, 5, 50, 25]], [0, 1, 1])
    train = write_boxed(tmp_path / "a", [*some_objects(), tiny], faults)
    page = dataset_page(
        check_dataset(open_dataset({"train": train, "validation": write_boxed(tmp_path / "b", some_objects()[:2])}))
    )
    row = next(line for line in page.splitlines() if "bird &amp; wing</td>" in line)
    assert ">2</td>" in row
    assert row.count('class="number"') == 7  # boxes and images of two splits, and three sizes
    assert "Tiny boxes" in page
    assert f"{224 / WIDTH:.1f} to {224 / WIDTH:.1f}" in page
    assert f"{tmp_path / 'a/1.jpg'}, object 3</td><td></td><td>is degenerate, from 3, 4 to 3, 9" in page
    assert "has small dog twice, from 20, 5 to 50, 25" in page
    assert "2 boxes look wrong" in page
    assert "No image of validation has a box of the class small dog" in page
    assert HEIGHT < 224


@pytest.mark.parametrize("changes", [["hflip=1.0"], ["crop=scale-jitter", "hflip=0.0"], ["crop=random-resized", "hflip=1.0"]])
def test_a_batch_is_drawn_with_its_boxes_moved_as_its_images(changes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are white in the box of their figure are white in the box that is drawn, and nowhere else."""
    data = open_dataset("panes:train_size=12,size=32x48", columns=Columns(boxes=True))
    drawn: list[tuple[Image.Image, Objects]] = []

    def keep(images: list[Image.Image], objects: list[Objects], names: tuple[str, ...]) -> Image.Image:
        drawn.extend(zip(images, objects, strict=True))
        return boxed_sheet(images, objects, names)

    monkeypatch.setattr(batch_sheet, "boxed_sheet", keep)
    policy = override(get_policy("none"), changes)
    white_boxes(data.train, monkeypatch)
    draw_batch(data, "train", policy, (32, 48), 6, 0, 0)
    assert len(drawn) == 6
    for image, objects in drawn:
        figures = objects[(objects.labels == 0) & ~objects.crowd]
        is_white = np.asarray(image.convert("L")) > 200
        for left, top, right, bottom in figures.boxes.round().astype(int).tolist():
            assert is_white[top:bottom, left:right].mean() > 0.8
            is_white[max(top - 1, 0) : bottom + 1, max(left - 1, 0) : right + 1] = False
        assert not is_white.any() or not len(figures)


def white_boxes(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every image be white in the box of its figure, and black elsewhere."""

    def read(self: PanesDataset, index: int) -> ndarray:
        pixels = np.zeros((*self.size, 3), np.uint8)
        objects = self.objects(index)
        for left, top, right, bottom in objects.boxes[objects.labels == 0].astype(int).tolist():
            pixels[top:bottom, left:right] = 255
        return pixels

    monkeypatch.setattr(PanesDataset, "read", read)


def test_an_evaluation_batch_has_the_boxes_of_its_images() -> None:
    """Padded to a square: the boxes of 32 rows are 8 rows further down in 48."""
    data = open_dataset("panes:train_size=12,size=32x48", columns=Columns(boxes=True))
    sheet = draw_batch(data, "test", get_policy("none"), (48, 48), 2, 0, 0, fit="pad")
    assert sheet.labels == [box_caption(data.class_names, data.test.objects(index)) for index in sheet.indices]
    objects = data.test.objects(sheet.indices[0])
    figure = objects.boxes[objects.labels == 0][0]
    frame = extent(sheet.sheet.crop((0, 0, SIDE + 2 * GAP, SIDE + GAP + 34)), 0)
    scale, top = 4, GAP + (SIDE - 4 * 48) // 2
    np.testing.assert_allclose(frame[1] - top, scale * (figure[1] + 8) - 1, atol=2)


def test_boxes_are_not_mixed() -> None:
    data = open_dataset("panes:train_size=12,size=16", columns=Columns(boxes=True))
    with pytest.raises(VitrailError, match=r"masks and boxes cannot be mixed; try --set augment\.mixup=0"):
        draw_batch(data, "train", get_policy("strong2"), None, 4, 0, 0)
