"""Numbers as colours: maps over pictures, walls of heads, tiles of positions, sheets of filters.

The colours go from dark violet over red to light yellow along a path in OKLab (Ottosson 2020), so that equal steps look equal,
and lightness alone tells them in print and to who sees no colours. y and x a place in a grid, v and u another, l layers, h
heads, n filters of c channels and p by q pixels.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image, ImageDraw, ImageFont

from vitrail.report.pictures import INK, PAPER

SHADES = 256
BAR = 64  # pixels of a colour bar with its numbers
ABOVE = 0.6  # share of the colours over a picture


def colours(values: Float[ndarray, "*shape"]) -> UInt8[ndarray, "*shape 3"]:
    """From 0, dark, to 1, light."""
    steps = np.nan_to_num(np.clip(values, 0, 1)) * (SHADES - 1)
    return path()[np.round(steps).astype(np.int64)]


@cache
def path() -> UInt8[ndarray, "shades 3"]:
    """Drawn finely, then cut into steps of equal length."""
    along = np.linspace(0, 1, 4096)
    light, chroma = 0.12 + 0.84 * along, 0.03 + 0.155 * np.sin(np.pi * along) ** 0.8
    hue = np.radians(295 + 165 * along)
    lab = np.stack([light, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    walked = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(lab, axis=0), axis=1))])
    even = np.linspace(0, walked[-1], SHADES)
    return _to_rgb(np.stack([np.interp(even, walked, channel) for channel in lab.T], axis=1))


def scaled(values: Float[ndarray, "y x"]) -> Float[ndarray, "y x"]:
    """The lowest becomes 0, the highest 1; where all are alike, 0."""
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def overlay(picture: Image.Image, values: Float[ndarray, "y x"], side: int = 224, grid: bool = False) -> Image.Image:
    """The map over a grey copy of the picture, patch by patch, with a bar that says what its ends are."""
    size = _fitted(picture, side)
    heat = Image.fromarray(colours(scaled(values))).resize(size, Image.Resampling.NEAREST)
    grey = picture.convert("L").convert("RGB").resize(size, Image.Resampling.BICUBIC)
    mixed = Image.blend(grey, heat, ABOVE)
    if grid:
        _lines(mixed, values.shape)
    return _with_bar(mixed, float(values.min()), float(values.max()))


def patched(picture: Image.Image, grid: tuple[int, int], side: int = 224) -> Image.Image:
    """The picture with the lines between its patches."""
    large = picture.convert("RGB").resize(_fitted(picture, side), Image.Resampling.BICUBIC)
    _lines(large, grid)
    return large


def wall(maps: Float[ndarray, "l h y x"], side: int = 56) -> Image.Image:
    """A column a layer, a row a head, each map from its own lowest to its own highest."""
    layers, heads = maps.shape[:2]
    high, wide = _cell(maps.shape[2:], side)
    left, top = 28, 18
    page = Image.new("RGB", (left + layers * (wide + 2) + 2, top + heads * (high + 2) + 2), PAPER)
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(10)
    for head in range(heads):
        pen.text((4, top + head * (high + 2) + high / 2), str(head), INK, font, anchor="lm")
    for layer in range(layers):
        pen.text((left + layer * (wide + 2) + wide / 2, 4), str(layer), INK, font, anchor="mt")
        for head in range(heads):
            one = Image.fromarray(colours(scaled(maps[layer, head]))).resize((wide, high), Image.Resampling.NEAREST)
            page.paste(one, (left + layer * (wide + 2), top + head * (high + 2)))
    return page


def tiles(similarity: Float[ndarray, "y x v u"], most: int = 14, side: int = 44) -> Image.Image:
    """A tile a place, in it the cosine to every other, from -1 to 1; of a large grid every so many."""
    rows, columns = similarity.shape[:2]
    every = -(-max(rows, columns) // most)
    high, wide = _cell((rows, columns), side)
    chosen = [(y, x) for y in range(0, rows, every) for x in range(0, columns, every)]
    across = -(-columns // every)
    page = Image.new("RGB", (across * (wide + 2) + 2, -(-rows // every) * (high + 2) + 2), PAPER)
    for number, (y, x) in enumerate(chosen):
        one = Image.fromarray(colours((similarity[y, x] + 1) / 2)).resize((wide, high), Image.Resampling.NEAREST)
        page.paste(one, (2 + number % across * (wide + 2), 2 + number // across * (high + 2)))
    return _with_bar(page, -1.0, 1.0)


def filter_sheet(filters: Float[ndarray, "n c p q"], columns: int = 7, side: int = 56) -> Image.Image:
    """Three channels as red, green and blue; others by their mean, as grey."""
    count, channels = filters.shape[:2]
    high, wide = _cell(filters.shape[2:], side)
    page = Image.new("RGB", (columns * (wide + 4) + 4, -(-count // columns) * (high + 4) + 4), PAPER)
    for number, values in enumerate(filters):
        shown = values if channels == 3 else np.repeat(values.mean(axis=0, keepdims=True), 3, axis=0)
        pixels = np.round(255 * np.clip(shown, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
        one = Image.fromarray(np.ascontiguousarray(pixels)).resize((wide, high), Image.Resampling.NEAREST)
        page.paste(one, (4 + number % columns * (wide + 4), 4 + number // columns * (high + 4)))
    return page


def _fitted(picture: Image.Image, side: int) -> tuple[int, int]:
    scale = side / max(picture.size)
    return max(1, round(picture.width * scale)), max(1, round(picture.height * scale))


def _cell(grid: Sequence[int], side: int) -> tuple[int, int]:
    """Whole pixels a place, so that all are equally large."""
    each = max(1, side // max(grid))
    return grid[0] * each, grid[1] * each


def _lines(picture: Image.Image, grid: Sequence[int]) -> None:
    pen = ImageDraw.Draw(picture, "RGBA")
    for row in range(1, grid[0]):
        y = round(picture.height * row / grid[0])
        pen.line([(0, y), (picture.width, y)], (255, 255, 255, 70))
    for column in range(1, grid[1]):
        x = round(picture.width * column / grid[1])
        pen.line([(x, 0), (x, picture.height)], (255, 255, 255, 70))


def _with_bar(picture: Image.Image, low: float, high: float) -> Image.Image:
    page = Image.new("RGB", (picture.width + BAR, picture.height), PAPER)
    page.paste(picture, (0, 0))
    shades = colours(np.linspace(1, 0, picture.height)[:, None].repeat(12, axis=1))
    page.paste(Image.fromarray(shades), (picture.width + 6, 0))
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(10)
    pen.text((picture.width + 22, 0), f"{high:.2g}", INK, font)
    pen.text((picture.width + 22, picture.height - 1), f"{low:.2g}", INK, font, anchor="ld")
    return page


def _to_rgb(lab: Float[ndarray, "n 3"]) -> UInt8[ndarray, "n 3"]:
    """OKLab to sRGB; what lies outside of it is cut off, which this path does not come near."""
    to_cones = np.array([[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]])
    to_light = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip((lab @ to_cones.T) ** 3 @ to_light.T, 0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * curved).astype(np.uint8)
