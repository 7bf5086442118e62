"""A figure renders the same as PNG, as standalone SVG and inline."""

import xml.etree.ElementTree as ElementTree

import numpy as np
from PIL import Image

from vitrail.plot.canvas import MARGIN, Dot, Figure, ImageShape, Line, Text, Tooltip, to_ascii
from vitrail.report.html import html_page

TITLE_BOTTOM = MARGIN + 20


def example_figure() -> Figure:
    checks = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8))
    shapes = (
        ImageShape((10, 20, 40, 40), checks),
        Dot((80, 40), "bad", "a <dot>", opacity=1),
        Line([(60, 70), (100, 70)], "mark", 2),
        Text((60, 20), "a & b", "middle"),
        Tooltip((0, 0, 5, 5), "a corner"),
    )
    return Figure("Some <title>", (120, 90), shapes)


def test_the_png_shows_shapes_at_their_coordinates() -> None:
    drawing = example_figure()
    for scale in (1, 2):
        page = np.asarray(drawing.to_image(scale, standalone=False)).astype(int)
        assert page.shape == (90 * scale, 120 * scale, 3)
        assert page[25 * scale, 15 * scale].max() == 0
        assert page[25 * scale, 45 * scale].min() == 255
        assert page[25 * scale, 29 * scale].max() == 0  # pixels stay square up to their edge
        assert np.abs(page[40 * scale, 80 * scale] - (0xA8, 0x32, 0x1E)).max() <= 2
        assert np.abs(page[70 * scale, 80 * scale] - (0x1D, 0x5F, 0x8A)).max() <= 2
    alone = np.asarray(drawing.to_image(1)).astype(int)
    assert alone.shape[:2] == drawing.framed_size[::-1]
    assert alone[TITLE_BOTTOM + 25, MARGIN + 15].max() == 0


def test_an_svg_is_self_contained_xml_with_titles() -> None:
    root = ElementTree.fromstring(example_figure().to_svg())
    spaces = "{http://www.w3.org/2000/svg}"
    assert [element.text for element in root.iter(f"{spaces}title")] == ["Some <title>", "a <dot>", "a corner"]
    (image,) = root.iter(f"{spaces}image")
    assert image.attrib["href"].startswith("data:image/png;base64,")
    assert "var(" not in example_figure().to_svg()
    assert "var(--bad)" in example_figure().to_svg(standalone=False)


def test_a_png_has_the_letters_of_its_font_and_an_svg_all() -> None:
    assert to_ascii("crème brûlée… 猫") == "creme brulee… ?"
    assert "crème 猫" in Figure("crème 猫", (20, 20), ()).to_svg()


def test_a_title_is_never_wider_than_its_figure() -> None:
    long = Figure("x" * 100, (50, 20), ())
    assert long.framed_size[0] >= 100 * 6


def test_an_inline_figure_declares_its_width_so_that_a_phone_scrolls_it() -> None:
    assert f"--wide:{example_figure().size[0]}px" in example_figure().to_svg(standalone=False)
    assert "--wide" in html_page("", [])
    assert "--wide" not in example_figure().to_svg()
