"""Masks over images: the colours of the classes, a legend of those that occur, and batches moved as their images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.augment.policy import get_policy
from vitrail.config import override
from vitrail.data.dataset_check import check_dataset
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import IGNORED, DatasetSplits
from vitrail.plot.class_colours import class_colours
from vitrail.report.batch_sheet import draw_batch
from vitrail.report.dataset_page import dataset_page
from vitrail.report.mask_view import draw_legend, error_view, html_legend, mask_caption, mask_view

NAMES = ("sky", "tree")


@pytest.fixture(scope="module")
def panes() -> DatasetSplits:
    return vitrail.open_dataset("panes:train_size=30,size=24x32", columns=Columns(masks=True))


def test_a_large_mask_is_reduced_with_its_image() -> None:
    mask = np.zeros((900, 1200), np.int16)
    mask[:, 600:] = 1
    view = np.asarray(mask_view(Image.new("RGB", (1200, 900)), mask))
    assert view.shape == (384, 512, 3)
    assert (view[:, :255] == np.round(class_colours(2)[0] / 2)).all()
    assert (view[:, 257:] == np.round(class_colours(2)[1] / 2)).all()


def test_only_wrong_pixels_that_count_are_red() -> None:
    mask, predicted = np.zeros((20, 30), np.int16), np.zeros((20, 30), np.int16)
    predicted[:5], mask[2:3] = 1, IGNORED
    drawn = np.asarray(error_view(Image.new("RGB", (30, 20)), mask, predicted))
    is_red = drawn[..., 0] > drawn[..., 1] + 50
    assert is_red[[0, 1, 3, 4]].all()
    assert not is_red[2].any()
    assert not is_red[5:].any()


def test_a_caption_has_the_largest_classes() -> None:
    mask = np.array([[0, 0, 0, 1, IGNORED]], np.int16)
    assert mask_caption(NAMES, mask) == "sky: 60%, ignored: 20%, tree: 20%"


def test_a_legend_has_the_classes_that_occur() -> None:
    assert html_legend(NAMES, [1]).count("swatch") == 1
    assert "tree" in html_legend(NAMES, [1])
    assert "ignored" in html_legend(NAMES, [0], has_ignored=True)
    names = [f"a class of a long name {number}" for number in range(60)]
    assert "and 20 more" in html_legend(names, range(60))
    legend = draw_legend(names, range(60), True, 400)
    assert legend.width == 400
    assert legend.height > 300  # in rows
    colours = {tuple(colour) for colour in np.asarray(legend).reshape(-1, 3).tolist()}
    assert {tuple(colour) for colour in class_colours(40).tolist()} <= colours


def test_a_batch_is_drawn_with_its_masks_cropped_and_flipped_as_its_images(panes: DatasetSplits) -> None:
    policy = override(get_policy("none"), ["crop=scale-jitter", "hflip=1.0"])
    sheet = draw_batch(panes, "train", policy, None, 6, 0, 0)
    assert all("background" in label or "figure" in label or "ignored" in label for label in sheet.labels)
    plain = draw_batch(panes, "test", get_policy("none"), None, 4, 0, 0)
    fractions = [float((panes.test.mask(index) == 0).mean()) for index in plain.indices]
    assert [f"background: {fraction:.0%}" in label for fraction, label in zip(fractions, plain.labels, strict=True)] == [
        True
    ] * 4
    assert plain.sheet.height > draw_batch(vitrail.open_dataset("panes:train_size=30,size=24x32"), "test",
                                           get_policy("none"), None, 4, 0, 0).sheet.height  # fmt: skip


def test_the_page_of_a_dataset_has_the_pixels_of_each_class(panes: DatasetSplits, tmp_path: Path) -> None:
    page = dataset_page(check_dataset(panes))
    pixels = np.concatenate([panes.train.mask(index).ravel() for index in range(len(panes.train))])
    table = page[page.index("<h2>Classes of pixels</h2>") :]
    row = next(line for line in table.splitlines() if "figure" in line and "<tr>" in line)
    assert f"{(pixels == 1).mean():.2%}" in row
    assert f">{len(panes.train)}<" in row
