"""Heat maps: overlays on images, grids of heads, position similarities and patch filters.

y and x a position in the grid, v and u another, l layers, s states between them, h heads, n filters of c channels and p by q
pixels, r rows and k columns of cells.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image

from vitrail.report.drawing import NEAREST, Area, Drawing, Line, Shape, Shown, Words
from vitrail.report.shades import SHADES, colours, path, scaled, shades_of

BAR = 72  # pixels of a colour bar with its numbers
ABOVE = 0.65  # opacity of the colours over an image
MIDDLE = 128  # mean grey below the colours
NAMED = 44  # width in pixels of "layer 11"
LINE, ROOM = 16, 1000  # pixels: height of a line of text, width of a page
Numbers = Sequence[int] | None


def overlay(picture: Image.Image, values: Float[ndarray, "y x"], title: str = "map", side: int = 224) -> Drawing:
    """Draw a saliency map over a grey copy of the image, patch by patch, with a colour bar."""
    wide, high = _fitted(picture, side)
    box = 0.0, 0.0, float(wide), float(high)
    faint = picture.convert("L").point(lambda value: MIDDLE // 2 + value // 2)  # faint, so that the colours can be read
    shapes: list[Shape] = [_shown(faint.convert("RGB"), wide, high), Shown(box, _heat(scaled(values)), share=ABOVE)]
    shapes += _bar(wide, high, float(values.min()), float(values.max()), share=ABOVE)
    return Drawing(title, (wide + BAR, high), tuple(shapes))


def patched(
    picture: Image.Image,
    grid: tuple[int, int],
    title: str = "patches",
    marked: Sequence[tuple[int, int]] = (),
    side: int = 224,
) -> Drawing:
    """Draw the image with its patch grid, and a frame around the patches ``marked`` by row and column."""
    wide, high = _fitted(picture, side)
    ends = [(0.0, high * row / grid[0], float(wide), high * row / grid[0]) for row in range(1, grid[0])]
    ends += [(wide * column / grid[1], 0.0, wide * column / grid[1], float(high)) for column in range(1, grid[1])]
    lines = [Line([(x, y), (to_x, to_y)], "#ffffff", 1, share=0.5) for x, y, to_x, to_y in ends]
    for row, column in marked:
        left, right = (wide * place / grid[1] for place in (column, column + 1))
        top, bottom = (high * place / grid[0] for place in (row, row + 1))
        lines.append(Line([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], "bad", 2.5))
    return Drawing(title, (wide, high), (_shown(picture.convert("RGB"), wide, high), *lines))


def wall(
    maps: Float[ndarray, "l h y x"],
    title: str = "heads",
    layers: Numbers = None,
    heads: Numbers = None,
    side: int | None = None,
) -> Drawing:
    """Draw attention maps with one column per layer and one row per head, each scaled to its own minimum and maximum."""
    across, down = maps.shape[:2]
    size = _cell(maps.shape[2:], side or min(max(ROOM // (across + 1), 40), 96))
    cells = np.stack([np.stack([scaled(maps[layer, head]) for layer in range(across)]) for head in range(down)])
    left, top = NAMED + 6, LINE + 2
    mosaic, high, wide = _mosaic(cells, left, top, size[0])
    shapes = [mosaic, *_columns([f"layer {n}" for n in layers or range(across)], left, wide)]
    for row, number in enumerate(heads or range(down)):
        shapes.append(Words((left - 6, top + (row + 0.5) * high + 4), f"head {number}", "end"))
        for column, layer in enumerate(layers or range(across)):
            low, most = float(maps[column, row].min()), float(maps[column, row].max())
            said = f"layer {layer}, head {number}: {low:.2g} to {most:.2g}"
            shapes.append(Area((left + column * wide, top + row * high, size[1], size[0]), said))
    return Drawing(title, (math.ceil(left + across * wide), math.ceil(top + down * high)), tuple(shapes))


def strip(
    maps: Float[ndarray, "s y x"], names: Sequence[str], title: str, ends: tuple[float, float] | None = None, side: int = 64
) -> Drawing:
    """Draw maps side by side, wrapped into rows: each scaled to its own minimum and maximum, written below it, or all to
    ``value_range``, with a colour bar."""
    high, wide = _cell(maps.shape[1:], side)
    each, below = max(wide + 8, NAMED if ends else 84), 0 if ends else LINE
    rows = -(-len(maps) // max(1, ROOM // each))
    in_row = -(-len(maps) // rows)
    tall = LINE + 2 + high + below + 6
    shapes: list[Shape] = []
    for number, (name, values) in enumerate(zip(names, maps, strict=True)):
        left, top = number % in_row * each, number // in_row * tall
        shown = scaled(values) if ends is None else (values - ends[0]) / (ends[1] - ends[0])
        shapes += [Words((left, top + 12), name), Shown((left, top + LINE + 2, wide, high), _heat(shown))]
        if ends is None:
            said = f"{float(values.min()):.3g} to {float(values.max()):.3g}"
            shapes.append(Words((left, top + LINE + high + 15), said))
    size = in_row * each, rows * tall
    if ends is not None:
        shapes += _bar(size[0], min(high, 120), *ends, top=LINE + 2)
    return Drawing(title, (size[0] + (BAR if ends else 0), size[1]), tuple(shapes))


def tiles(similarity: Float[ndarray, "y x v u"], title: str = "positions", most: int = 14, side: int = 44) -> Drawing:
    """Draw one tile per position: its cosine to every other, from -1 to 1. Large grids are subsampled."""
    rows, columns = similarity.shape[:2]
    every = -(-max(rows, columns) // most)
    cells = (similarity[::every, ::every] + 1) / 2
    left, top = NAMED + 6, LINE + 2
    down, across = cells.shape[:2]
    mosaic, high, wide = _mosaic(cells, left, top, _cell((rows, columns), side)[0])
    names = [f"{number * every}" for number in range(across)]
    shapes = [mosaic, *_columns(names, left, wide), Words((left - 6, 12), "column", "end")]
    shapes += [
        Words((left - 6, top + (row + 0.5) * high + 4), f"row {row * every}", "end")
        for row in range(down)
        if row % math.ceil(11 / high) == 0
    ]
    right, tall = math.ceil(left + across * wide), math.ceil(down * high)
    bar = _bar(right, max(tall, 42), -1.0, 1.0, top=top)
    return Drawing(title, (right + BAR, top + max(tall, 42)), (*shapes, *bar))


def filter_sheet(filters: Float[ndarray, "n c p q"], title: str = "filters", columns: int = 7, side: int = 56) -> Drawing:
    """Draw patch filters: three channels as red, green and blue, other numbers by their mean, as grey."""
    count, channels = filters.shape[:2]
    high, wide = _cell(filters.shape[2:], side)
    shapes: list[Shape] = []
    for number, values in enumerate(filters):
        shown = values if channels == 3 else np.repeat(values.mean(axis=0, keepdims=True), 3, axis=0)
        pixels = np.round(255 * np.clip(shown, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
        left, top = 4 + number % columns * (wide + 4), 4 + number // columns * (high + 4)
        shapes.append(Shown((left, top, wide, high), Image.fromarray(np.ascontiguousarray(pixels))))
    size = min(count, columns) * (wide + 4) + 4, -(-count // columns) * (high + 4) + 4
    return Drawing(title, size, tuple(shapes))


def _mosaic(cells: Float[ndarray, "r k y x"], left: int, top: int, high: int) -> tuple[Shape, float, float]:
    """Return one image of all cells with gaps between them, and the cell spacing down and across."""
    rows, columns, y, _ = cells.shape
    each = high / y
    times = max(round(each / 3), 1)  # a gap is one pixel of the image
    fine = shades_of(cells).repeat(times, axis=2).repeat(times, axis=3)
    fine = np.pad(fine, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=SHADES)
    whole = fine.transpose(0, 2, 1, 3).reshape(rows * fine.shape[2], columns * fine.shape[3])
    down, across = fine.shape[2] * each / times, fine.shape[3] * each / times
    return Shown((left, top, columns * across, rows * down), _coloured(whole)), down, across


def _columns(names: Sequence[str], left: int, wide: float) -> list[Shape]:
    """Label the columns; narrow ones by their number alone, very narrow ones only every so many."""
    every = math.ceil(16 / wide)
    short = [name if wide >= NAMED else name.split()[-1] for name in names]
    return [Words((left + (n + 0.5) * wide, 12), name, "middle") for n, name in enumerate(short) if n % every == 0]


def _bar(left: int, high: int, low: float, most: float, top: int = 0, share: float = 1.0) -> list[Shape]:
    """Draw a colour bar, as the colours look over grey with this opacity."""
    shades = Image.fromarray(np.round(share * colours(np.linspace(1, 0, 128)[:, None]) + (1 - share) * MIDDLE).astype(np.uint8))
    ends = [Words((left + 22, top + 9), f"{most:.2g}"), Words((left + 22, top + high - 1), f"{low:.2g}")]
    return [Shown((left + 6, top, 12, high), shades), *(ends if high >= 24 else ends[:1])]


def _heat(values: Float[ndarray, "y x"]) -> Image.Image:
    return _coloured(shades_of(values))


def _coloured(shades: ndarray) -> Image.Image:
    """Return the image with the colour map as its palette, one byte per pixel."""
    image = Image.fromarray(shades.astype(np.uint8)).convert("P")
    image.putpalette([*path().tobytes(), 0, 0, 0])
    if (shades == SHADES).any():
        image.info["transparency"] = SHADES
    return image


def _shown(picture: Image.Image, wide: int, high: int) -> Shown:
    """Fit an image: a large one is downsampled to what can be seen, a small one keeps its pixels."""
    smooth = max(picture.size) > NEAREST
    most = 2 * max(wide, high)
    if max(picture.size) > most:
        picture = picture.resize(_fitted(picture, most), Image.Resampling.BICUBIC)
    return Shown((0, 0, wide, high), picture, smooth)


def _fitted(picture: Image.Image, side: int) -> tuple[int, int]:
    scale = side / max(picture.size)
    return max(1, round(picture.width * scale)), max(1, round(picture.height * scale))


def _cell(grid: Sequence[int], side: int) -> tuple[int, int]:
    """Return the size of a map in whole pixels per grid cell, so that all cells are equally large."""
    each = max(1, side // max(grid))
    return grid[0] * each, grid[1] * each
