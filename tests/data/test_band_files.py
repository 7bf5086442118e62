"""Bands are read as tifffile and numpy read them, and what is no such file is refused by name before it takes memory."""

import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray
from PIL import Image

from tests.data.band_images import make_bands, npy_bytes, tiff_bytes
from tests.data.images import make_image
from vitrail.data.bad_image import BadImage
from vitrail.data.band_files import BandFormat, to_bands_last
from vitrail.data.decode import band_format, decode, decode_array, decode_bands, image_format

GEO_TAG = (34735, "H", 4, (1, 1, 0, 0), True)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "uint32", "float32"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zlib", "predictor": True},
        {"tile": (16, 32)},
        {"byteorder": ">"},
        {"bigtiff": True},
        {"rowsperstrip": 2},
    ],
    ids=str,
)
def test_a_tiff_has_the_values_that_were_written(dtype: str, options: dict[str, Any]) -> None:
    if options.get("predictor") and dtype == "float32":
        options = {"compression": "zlib"}  # the predictor of floats needs imagecodecs
    image = make_bands(0, (21, 37), 4).astype(dtype)
    read = decode_bands(tiff_bytes(image, **options))
    assert read.dtype == dtype
    assert read.dtype.isnative
    assert np.array_equal(read, image)


@pytest.mark.parametrize("planarconfig", ["separate", None])  # None: pages
@pytest.mark.parametrize("bands", [2, 5, 13])
def test_bands_that_are_planes_or_pages_become_the_last_axis(planarconfig: str | None, bands: int) -> None:
    image = make_bands(1, (31, 29), bands)
    assert np.array_equal(decode_bands(tiff_bytes(np.moveaxis(image, -1, 0), planarconfig=planarconfig)), image)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "float32", "float64"])
def test_one_band_is_read_as_it_is_stored(dtype: str) -> None:
    image = make_bands(2, (9, 14), 1).astype(dtype) - (200 if dtype != "uint16" else 0)
    read = decode_bands(tiff_bytes(image[..., 0]))
    assert np.array_equal(read, image.astype("float32" if dtype == "float64" else dtype))


@pytest.mark.parametrize(
    "stored", [make_bands(3), np.asfortranarray(make_bands(3)), make_bands(3).astype(">i4"), make_bands(3).astype("float64")]
)
def test_an_npy_has_the_values_that_were_saved(stored: ndarray) -> None:
    read = decode_bands(npy_bytes(stored))
    assert np.array_equal(read, stored)
    assert read.dtype.isnative
    assert read.dtype.itemsize <= 4


def test_the_first_axis_of_an_array_is_its_bands_if_it_is_clearly_the_shortest() -> None:
    shapes = {(20, 30, 5): 5, (5, 20, 30): 5, (13, 20, 20): 13, (9, 11, 200): 200, (8, 8, 8): 8, (4, 6): 1, (3, 2, 2): 2}
    assert {shape: to_bands_last(np.zeros(shape)).shape[2] for shape in shapes} == shapes
    with pytest.raises(BadImage, match="is an array of 1 x 2 x 3 x 4; it must be height x width, or that x bands"):
        to_bands_last(np.zeros((1, 2, 3, 4)))


def test_eight_bit_images_stay_what_they_were() -> None:
    rgb = make_image(4)
    for stored in (rgb, rgb.convert("L"), rgb.convert("P"), rgb.convert("CMYK"), rgb.convert("RGBA")):
        stream = io.BytesIO()
        stored.save(stream, "TIFF")
        content = stream.getvalue()
        assert band_format(content) is None
        assert image_format(content) == f"TIFF {stored.mode}"
        assert np.array_equal(decode_bands(content), decode_array(content))
    saved = npy_bytes(np.asarray(rgb))
    assert band_format(saved) is None
    assert np.array_equal(np.asarray(decode(saved)), np.asarray(rgb))
    assert image_format(saved) == ".npy RGB"
    assert image_format(npy_bytes(make_bands(0))) == ".npy 5 bands of uint16"
    assert image_format(tiff_bytes(make_bands(0, bands=2))) == "TIFF 2 bands of uint16"


def test_a_fourth_band_is_transparency_unless_the_image_has_a_place_on_earth() -> None:
    image = make_bands(5, bands=4).astype("uint8")
    four = BandFormat(4, "uint8")
    assert band_format(tiff_bytes(image)) == four  # nothing calls it alpha
    rgba = tiff_bytes(image, photometric="rgb", extrasamples=("unassalpha",))
    assert band_format(rgba) is None
    assert decode_array(rgba).shape == (13, 11, 3)
    satellite = tiff_bytes(image, photometric="rgb", extrasamples=("unassalpha",), extratags=[GEO_TAG])
    assert band_format(satellite) == four  # GDAL calls the fourth of four bands alpha
    assert np.array_equal(decode_bands(satellite), image)


def test_an_image_of_bands_is_no_rgb_image() -> None:
    with pytest.raises(BadImage, match="the image has 5 bands of uint16, and 8-bit RGB or grey is needed; try a model"):
        decode(tiff_bytes(make_bands(6)))
    with pytest.raises(BadImage, match=r"has 5 bands of float32, and 8-bit RGB or grey is needed"):
        decode(npy_bytes(make_bands(6).astype("float32")))


def lying_npy(shape: str, descr: str = "'<u2'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lying_npy("(1000000, 1000000)"), r"its header says 2,000,000,000,000 bytes of values, and it has 64$"),
        (lying_npy("(99999999999999999999, 7)"), "bytes of values, and it has 64"),
        (lying_npy("(-4, 8)"), "is a damaged .npy file"),
        (lying_npy("(4, 8)", "'|O'"), "holds pickled objects, which are never read"),
        (lying_npy("(4, 8)", "[('a', '<u2')]"), "they must be integers or floats"),
        (lying_npy("(4, 4)", "'<c16'"), "has values of complex128"),
        (lying_npy("(" * 2000), "its header cannot be read"),
        (lying_npy("(0, 8)")[:-64], "has no pixels: 0 x 8 of 1 bands"),
        (b"\x93NUMPY", "its header cannot be read"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "its header cannot be read"),
        (npy_bytes(make_bands(0))[:-1], "is a damaged .npy file"),
        (npy_bytes(np.array([{"a": 1}], object)), "holds pickled objects"),
        (npy_bytes(np.zeros((2, 2, 1025), "uint8")), "has 1,025 bands, more than the 1,024 allowed"),
        (npy_bytes(np.zeros((1, 2, 3, 4))), "is an array of 1 x 2 x 3 x 4"),
        (npy_bytes(np.array(["a", "b"])), "they must be integers or floats"),
    ],
)
def test_a_bad_npy_is_refused_by_name(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.npy"
    path.write_bytes(content)
    with pytest.raises(BadImage, match=f"{path} .*{reason}"):
        decode_bands(path)


def test_values_that_are_not_finite_and_missing_ones_are_named() -> None:
    image = make_bands(7, dtype="float32")
    image[3, 4, 2] = np.nan
    for content in (npy_bytes(image), tiff_bytes(image)):
        with pytest.raises(BadImage, match=r"the image has values that are not finite \(NaN/Inf\) in band 3; fill them"):
            decode_bands(content)
    with pytest.raises(BadImage, match="not finite"):
        decode_bands(npy_bytes(np.full((4, 5, 2), 1e300)))  # beyond float32
    image[3, 4, 2] = -9999
    nodata = (42113, "s", 6, "-9999", True)
    with pytest.raises(BadImage, match=r"has pixels without data \(nodata -9999\); fill them, or leave the file out"):
        decode_bands(tiff_bytes(image, extratags=[nodata]))
    assert decode_bands(tiff_bytes(image)).min() == -9999


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"tile": (16, 16)}, {"planarconfig": "separate"}], ids=str)
def test_a_truncated_tiff_is_refused_wherever_it_ends(options: dict[str, Any]) -> None:
    image = make_bands(8, (40, 33))
    image = np.moveaxis(image, -1, 0) if "planarconfig" in options else image
    content = tiff_bytes(image, **options)
    for length in (1, 7, 8, 9, 40, 200, len(content) // 2, len(content) - 1):
        with pytest.raises(BadImage, match="the image "):
            decode_bands(content[:length])


def test_a_tiff_of_pages_that_ends_early_is_refused() -> None:
    content = tiff_bytes(
        np.moveaxis(make_bands(8, (40, 33)), -1, 0), photometric="minisblack", planarconfig=None, tile=(16, 16)
    )
    for length in range(100, len(content) - 1, 997):
        with pytest.raises(BadImage):
            decode_bands(content[:length])


def with_tag(content: bytes, tag: int, value: int) -> bytes:
    """Change a number in the first directory of a little-endian TIFF."""
    (start,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, start)
    for entry in range(start + 2, start + 2 + 12 * count, 12):
        if struct.unpack_from("<H", content, entry)[0] == tag:
            kind = {3: "<H", 4: "<I"}[struct.unpack_from("<H", content, entry + 2)[0]]
            changed = bytearray(content)
            struct.pack_into(kind, changed, entry + 8, value)
            return bytes(changed)
    raise AssertionError(tag)


def test_a_header_that_claims_too_much_costs_no_memory() -> None:
    honest = tiff_bytes(make_bands(9), metadata=None)
    wide = with_tag(with_tag(honest, 256, 60_000), 257, 60_000)
    with pytest.raises(BadImage, match=r"has 60000 x 60000 pixels of 5 bands, more than the 67,108,864 pixels allowed"):
        decode_bands(wide)
    with pytest.raises(BadImage, match="more than the 100 pixels allowed"):
        decode_bands(honest, max_pixels=100)
    with pytest.raises(BadImage, match="the image is a truncated TIFF"):
        decode_bands(with_tag(honest, 279, 2**31))


def test_data_that_inflates_to_more_than_the_header_says_is_refused() -> None:
    honest = tiff_bytes(make_bands(10), compression="zlib", metadata=None)
    bomb = zlib.compress(bytes(10**7))
    moved = with_tag(with_tag(honest, 273, len(honest)), 279, len(bomb)) + bomb
    with pytest.raises(BadImage, match="its data inflates to more than its header says"):
        decode_bands(moved)


def test_other_compressions_are_named() -> None:
    plain = tiff_bytes(make_bands(11), metadata=None)
    with pytest.raises(BadImage, match="the image is compressed by JPEG; write it uncompressed or with DEFLATE"):
        decode_bands(with_tag(plain, 259, 7))


def test_without_tifffile_one_band_is_read_and_several_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    image = make_bands(12, bands=1)
    stream = io.BytesIO()
    Image.fromarray(image[..., 0]).save(stream, "TIFF")
    assert np.array_equal(decode_bands(stream.getvalue()), image)
    with pytest.raises(BadImage, match=r"which needs tifffile; try pip install 'vitrail\[bands\]'"):
        decode_bands(tiff_bytes_before_import())


def tiff_bytes_before_import() -> bytes:
    """Two bands of 16 bits, written by hand."""
    entries = [(256, 2), (257, 2), (258, 16), (259, 1), (262, 1), (273, 200), (277, 2), (278, 2), (279, 16)]
    directory = struct.pack("<H", len(entries)) + b"".join(
        struct.pack("<HHIHH", tag, 3, 2 if tag == 258 else 1, value, 16 if tag == 258 else 0) for tag, value in entries
    )
    return (b"II*\0" + struct.pack("<I", 8) + directory + bytes(4)).ljust(200, b"\0") + bytes(range(16))


def test_the_bands_of_a_file_written_by_hand() -> None:
    assert np.array_equal(decode_bands(tiff_bytes_before_import()).ravel(), np.arange(16, dtype="u1").view("<u2"))
