"""Contact sheets show every image in its cell, and normalisation is inverted exactly."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.preprocess_image import preprocess_image
from vitrail.data.preprocess import Preprocess, imagenet_preprocess
from vitrail.data.sources.builtin import load_fashion
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import CAPTION_HEIGHT, GAP, contact_sheet, denormalise
from vitrail.report.dataset_page import balanced_sample, sample_sheet
from vitrail.report.html import html_page, html_table


def test_a_sheet_has_every_image_in_its_cell() -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 9, 9), (200, 100, 50)]
    built = np.asarray(contact_sheet([Image.new("RGB", (8, 8), colour) for colour in colours], ["x"] * 5, columns=2, side=40))
    cell = 40 + GAP, 40 + CAPTION_HEIGHT + GAP
    for number, colour in enumerate(colours):
        middle = GAP + number // 2 * cell[1] + 20, GAP + number % 2 * cell[0] + 20
        assert built[middle].tolist() == list(colour)


def test_a_caption_is_below_its_image_also_if_all_are_wide() -> None:
    wide = [Image.new("RGB", (80, 40), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    built = np.asarray(contact_sheet(wide, ["x"] * 2, columns=1, side=80))
    assert built.shape[0] == 2 * (40 + CAPTION_HEIGHT + GAP) + GAP
    assert built[GAP + 39, GAP + 79].tolist() == [255, 0, 0]
    assert built[GAP + 40 + CAPTION_HEIGHT + GAP, GAP].tolist() == [0, 0, 255]
    tall = [*wide, Image.new("RGB", (40, 80))]
    assert contact_sheet(tall, ["x"] * 3, columns=3, side=80).height == 80 + CAPTION_HEIGHT + 2 * GAP


def test_captions_are_truncated_and_printable() -> None:
    grey = [Image.new("L", (8, 8))] * 2
    long = np.asarray(contact_sheet(grey, ["\x1b[31m" + "w" * 500, ""], columns=2, side=64))
    written = (long != long[0, 0]).any(2)[GAP + 64 : GAP + 64 + CAPTION_HEIGHT]
    assert written[:, : GAP + 64].any()
    assert not written[:, GAP + 64 :].any()  # nothing reaches below the next image


@pytest.mark.parametrize("how", [imagenet_preprocess((9, 7)), Preprocess((9, 7), mean=(0.4,), std=(0.3,))])
def test_a_preprocessed_image_is_denormalised_exactly(how: Preprocess) -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    how = Preprocess(how.image_size, mean=how.mean, std=how.std)
    image = Image.fromarray(values)
    (back,) = denormalise(preprocess_image(image, how)[None], how)
    assert np.array_equal(np.asarray(back), np.asarray(image if len(how.mean) == 3 else image.convert("L")))
    assert torch.equal(preprocess_image(back, how), preprocess_image(image, how))


def test_the_contact_sheet_shows_every_class_once_before_any_twice() -> None:
    printed = sample_sheet(load_fashion("test"), max_images=20)
    assert printed is not None
    assert printed.width == 10 * (128 + GAP) + GAP
    assert printed.height == 2 * (128 + CAPTION_HEIGHT + GAP) + GAP
    labels = load_fashion("test").labels[balanced_sample(load_fashion("test").labels, 20)]
    assert np.bincount(labels).tolist() == [2] * 10
    assert sorted(labels.tolist()) == labels.tolist()


def test_a_page_escapes_text() -> None:
    built = html_page("<a> & b", [html_table(("name", "#n"), [(escape("<script>x</script>\x00"), "1")])])
    assert "<script" not in built
    assert "&lt;a&gt; &amp; b" in built
    assert '<td class="number">1</td>' in built
    assert "\x00" not in built
    assert "default-src 'none'" in built
