"""Every image format is decoded to RGB; a file that is no image is refused by name."""

import io
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data import decode as decoding
from vitrail.data.bad_image import BadImage
from vitrail.data.decode import decode

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)  # 6 high, 9 wide


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def decoded_pixels(content: bytes | Path, **options: Any) -> Any:
    image = decode(content, **options)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_images_are_read_to_the_pixel(format: str) -> None:
    assert (decoded_pixels(encoded(Image.fromarray(COLOURS), format)) == COLOURS).all()


@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
def test_lossy_images_are_read_as_by_pillow(format: str) -> None:
    content = encoded(Image.fromarray(COLOURS), format)
    assert (decoded_pixels(content) == np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))).all()


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    grey = np.array([[0, 257, 32768], [65535, 40000, 512]], dtype=np.uint16)
    for format in ("PNG", "TIFF"):
        assert (decoded_pixels(encoded(Image.fromarray(grey), format))[..., 0] == np.rint(grey / 257)).all()
    dark = np.array([[0, 3, 200]], dtype=np.uint16)  # sixteen bits also when none is large
    assert (decoded_pixels(encoded(Image.fromarray(dark), "PNG"))[..., 0] == np.rint(dark / 257)).all()


@pytest.mark.parametrize("top", [1.0, 255.0, 65535.0])
def test_floats_are_scaled_by_their_range(top: float) -> None:
    values = np.linspace(0, top, 6, dtype=np.float32).reshape(2, 3)
    assert (decoded_pixels(encoded(Image.fromarray(values), "TIFF"))[..., 1] == np.rint(values / top * 255)).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, 1e9])
def test_floats_out_of_range_are_refused(wrong: float) -> None:
    values = np.array([[0.5, wrong]], dtype=np.float32)
    with pytest.raises(BadImage, match="grey values that are not finite or not from 0 to 65535"):
        decode(encoded(Image.fromarray(values), "TIFF"))


def test_transparency_is_blended_over_white() -> None:
    clear = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    clear.putpixel((1, 0), (255, 0, 0, 255))
    assert decoded_pixels(encoded(clear, "PNG")).tolist() == [[[255, 255, 255], [255, 0, 0]]]
    assert decoded_pixels(encoded(Image.new("LA", (1, 1), (0, 128)), "PNG")).tolist() == [[[127, 127, 127]]]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    assert decoded_pixels(encoded(palette, "PNG", transparency=0)).tolist() == [[[255, 255, 255], [200, 100, 50]]]
    assert decoded_pixels(encoded(palette, "PNG")).tolist() == [[[10, 20, 30], [200, 100, 50]]]


def test_one_bit_grey_and_cmyk() -> None:
    assert decoded_pixels(encoded(Image.fromarray(np.array([[True, False]])), "PNG")).tolist() == [[[255] * 3, [0] * 3]]
    assert (decoded_pixels(encoded(Image.fromarray(COLOURS[..., 0]), "PNG")) == COLOURS[..., :1]).all()
    cmyk = decoded_pixels(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100))
    assert abs(cmyk.astype(int) - [255, 0, 0]).max() < 8


T = Image.Transpose
STORED_TRANSPOSES = {  # how a camera with this EXIF orientation stores an upright image
    1: None,
    2: T.FLIP_LEFT_RIGHT,
    3: T.ROTATE_180,
    4: T.FLIP_TOP_BOTTOM,
    5: T.TRANSPOSE,
    6: T.ROTATE_90,
    7: T.TRANSVERSE,
    8: T.ROTATE_270,
}


@pytest.mark.parametrize("orientation", STORED_TRANSPOSES)
def test_an_image_is_rotated_upright_by_its_exif_orientation(orientation: int) -> None:
    upright, turn = Image.fromarray(COLOURS), STORED_TRANSPOSES[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for format in ("PNG", "TIFF"):
        assert (decoded_pixels(encoded(stored, format, exif=exif)) == COLOURS).all()


@pytest.mark.parametrize("format", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_of_several_frames_or_pages_is_read(format: str) -> None:
    red, blue = Image.new("RGB", (4, 3), "red"), Image.new("RGB", (4, 3), "blue")
    options: dict[str, Any] = {"lossless": True} if format == "WEBP" else {}
    pixels = decoded_pixels(encoded(red, format, save_all=True, append_images=[blue], **options))
    assert (pixels == [255, 0, 0]).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 20_000), (20_000, 1)])
def test_extreme_aspect_ratios_are_decoded(size: tuple[int, int]) -> None:
    assert decode(encoded(Image.new("RGB", size), "PNG")).size == size


def test_a_jpeg_is_decoded_at_no_higher_resolution_than_needed() -> None:
    content = encoded(Image.new("RGB", (800, 640), "green"), "JPEG")
    assert decode(content).size == (800, 640)
    width, height = decode(content, min_size=(100, 120)).size
    assert width < 800
    assert width >= 120
    assert height >= 100


def photograph(height: int, width: int) -> Image.Image:
    coarse = np.random.default_rng(1).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3, 0.1])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_simplejpeg_and_pillow_give_the_same_pixels(
    mode: str, subsampling: int, scale: float, orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"subsampling": subsampling} if mode == "RGB" else {}
    content = encoded(photograph(403, 301).convert(mode), "JPEG", exif=exif, **options)
    requested_sizes = []

    def min_size(size: tuple[int, int]) -> tuple[int, int]:
        requested_sizes.append(size)
        return int(size[0] * scale), int(size[1] * scale)

    fast = decoding.decode_array(content, min_size=min_size)
    monkeypatch.setattr(decoding, "simplejpeg", None)
    plain = decoding.decode_array(content, min_size=min_size)
    assert np.array_equal(fast, plain)
    assert requested_sizes == [(301, 403) if orientation == 6 else (403, 301)] * 2
    assert fast.shape[0] >= int(requested_sizes[0][0] * scale)
    assert fast.shape[1] >= int(requested_sizes[0][1] * scale)
    assert (fast.shape[0] < requested_sizes[0][0]) == (scale <= 0.5)


def test_a_phone_image_with_several_frames_is_rotated_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = photograph(30, 20)
    content = encoded(stored, "MPO", save_all=True, append_images=[stored], exif=exif)
    assert decode(content).size == (30, 20)


def test_decoding_in_threads_leaves_the_warning_filters_unchanged() -> None:
    before = list(warnings.filters)
    odd = encoded(photograph(90, 70), "PNG")
    with ThreadPoolExecutor(8) as pool:
        decoded = list(pool.map(decoding.decode_array, [odd, JPEG] * 100))
    assert all(np.array_equal(pixels, decoded[0]) for pixels in decoded[::2])
    assert warnings.filters == before


JPEG = encoded(Image.fromarray(np.kron(COLOURS, np.ones((20, 20, 1), np.uint8))), "JPEG")
PNG = encoded(Image.fromarray(np.kron(COLOURS, np.ones((20, 20, 1), np.uint8))), "PNG")
BAD = {
    "empty": b"",
    "one byte": JPEG[:1],
    "header only": JPEG[:20],
    "half a JPEG": JPEG[: len(JPEG) // 2],
    "half a PNG": PNG[: len(PNG) // 2],
    "a web page": b"<!DOCTYPE html><html><body>404</body></html>",
    "a flipped PNG": PNG[:60] + bytes([PNG[60] ^ 0xFF]) + PNG[61:],
    "a script": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "an icon": b"\x00\x00\x01\x00\x01\x00\x10\x10",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_file_that_is_no_image_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(content)
    with pytest.raises(BadImage, match=r"cat\.jpg cannot be decoded: "):
        decode(tmp_path / "cat.jpg")
    with pytest.raises(BadImage, match="the image cannot be decoded"):
        decode(content)


def test_a_missing_or_unreadable_file_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.jpg", tmp_path):
        with pytest.raises(BadImage, match="cannot be decoded"):
            decode(path)


def png(width: int, height: int) -> bytes:
    """Return a PNG whose header claims this size, with little data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(10_000, 10_000), (2**31 - 1, 2**31 - 1), (100_000, 1000)])
def test_a_decompression_bomb_is_refused_before_it_is_unpacked(size: tuple[int, int]) -> None:
    with pytest.raises(BadImage, match=r"pixels|bomb"):
        decode(png(*size))
    bomb = encoded(Image.new("1", (10_000, 10_000)), "PNG", optimize=True)
    assert len(bomb) < 20_000
    with pytest.raises(BadImage, match="has more than the 67,108,864 pixels allowed"):
        decode(bomb)


def test_the_limit_can_be_set() -> None:
    content = encoded(Image.new("RGB", (30, 20)), "PNG")
    with pytest.raises(BadImage, match="has 30 x 20 pixels, more than the 599 allowed"):
        decode(content, max_pixels=599)
    assert decode(content, max_pixels=600).size == (30, 20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([JPEG, PNG]), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8), st.floats(0, 1))
def test_a_damaged_file_is_decoded_or_refused(content: bytes, flips: list[tuple[float, int]], cut: float) -> None:
    damaged = bytearray(content[: int(len(content) * max(cut, 0.05))] if cut < 0.5 else content)
    for position, value in flips:
        damaged[int(position * (len(damaged) - 1))] = value
    with suppress(BadImage):
        assert decode(bytes(damaged)).mode == "RGB"
