"""Masks as images: the values are the classes, whatever their number."""

import io

import numpy as np
import pytest
from PIL import Image

from vitrail.plot.class_colours import IGNORED_COLOURS, class_colours, overlay
from vitrail.plot.mask_image import encode_mask, mask_image, mask_legend, write_mask


@pytest.mark.parametrize("classes", [2, 21, 256, 257, 3000])
def test_the_values_of_the_file_are_the_classes(classes: int) -> None:
    mask = np.random.default_rng(0).integers(0, classes, (31, 17)).astype(np.int16)
    mask[0, 0] = classes - 1
    with Image.open(io.BytesIO(encode_mask(mask, classes))) as image:
        assert image.mode == ("P" if classes <= 256 else "I;16")
        assert np.array_equal(np.asarray(image), mask)
        if classes <= 256:
            assert np.array_equal(np.asarray(image.convert("RGB")), class_colours(classes)[mask])
    with Image.open(io.BytesIO(_written(mask, classes))) as image:
        image.verify()  # the checksums of its chunks
    whole, written = (Image.open(io.BytesIO(each)) for each in (encode_mask(mask, classes), _written(mask, classes)))
    assert np.array_equal(np.asarray(written), np.asarray(whole))
    assert (written.mode, written.getpalette()) == (whole.mode, whole.getpalette())


def _written(mask: np.ndarray, classes: int) -> bytes:
    return write_mask((mask[start : start + 7].astype(np.int64) for start in range(0, 31, 7)), (31, 17), classes)


def test_the_legend_has_the_colours_of_the_palette() -> None:
    palette = mask_image(np.zeros((1, 1), np.int16), 3).getpalette()
    colours = ["#{:02x}{:02x}{:02x}".format(*palette[3 * row["value"] : 3 * row["value"] + 3]) for row in mask_legend("abc")]  # type: ignore[index, operator]
    assert colours == [row["colour"] for row in mask_legend("abc")]


def test_an_overlay_is_the_same_whatever_the_size_of_its_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (60, 50, 3), dtype=np.uint8)
    mask = generator.integers(-1, 4, (60, 50)).astype(np.int16)
    whole = overlay(image, mask)
    monkeypatch.setattr("vitrail.plot.class_colours.MAX_BAND_PIXELS", 130)
    assert np.array_equal(overlay(image, mask), whole)
    ignored = overlay(np.zeros_like(image), np.full((60, 50), -1), alpha=1.0)
    assert set(np.unique(ignored)) == {colour[0] for colour in IGNORED_COLOURS}
