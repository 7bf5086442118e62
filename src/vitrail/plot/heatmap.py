"""Heat maps: overlays on images, grids of heads, position similarities and patch filters.

y and x a position in the grid, v and u another, l layers, s states between them, h heads, n filters of c channels and p by q
pixels, r rows and k columns of cells.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray
from PIL import Image

from vitrail.plot.canvas import MAX_NEAREST_SIDE, Figure, ImageShape, Line, Shape, Text, Tooltip
from vitrail.plot.colormap import NUM_COLOURS, apply_colormap, colormap, colour_indices, min_max
from vitrail.plot.region_outline import region_outline

COLOUR_BAR_WIDTH = 72  # pixels of a colour bar with its numbers
OVERLAY_OPACITY = 0.65  # opacity of the colours over an image
MEAN_GREY = 128  # mean grey below the colours
LABEL_WIDTH = 44  # width in pixels of "layer 11"
LINE_HEIGHT, PAGE_WIDTH = 16, 1000  # pixels: height of a line of text, width of a page
Indices = Sequence[int] | None


def overlay(
    image: Image.Image,
    values: Float[ndarray, "y x"],
    title: str = "map",
    side: int = 224,
    region: Bool[ndarray, "height width"] | None = None,
) -> Figure:
    """Draw a saliency map over a grey copy of the image, patch by patch, with a colour bar; ``region`` is outlined."""
    width, height = _fit_size(image, side)
    box = 0.0, 0.0, float(width), float(height)
    faint = image.convert("L").point(lambda value: MEAN_GREY // 2 + value // 2)  # faint, so that the colours can be read
    shapes: list[Shape] = [
        _image_shape(faint.convert("RGB"), width, height),
        ImageShape(box, _to_heatmap(min_max(values)), opacity=OVERLAY_OPACITY),
    ]
    shapes += [] if region is None else [region_outline(region, width, height)]
    shapes += _colour_bar(width, height, float(values.min()), float(values.max()), opacity=OVERLAY_OPACITY)
    return Figure(title, (width + COLOUR_BAR_WIDTH, height), tuple(shapes))


def region_figure(image: Image.Image, region: Bool[ndarray, "height width"], title: str = "region", side: int = 224) -> Figure:
    """Draw an image with a region of it outlined."""
    width, height = _fit_size(image, side)
    shapes = _image_shape(image.convert("RGB"), width, height), region_outline(region, width, height)
    return Figure(title, (width, height), shapes)


def patch_grid(
    image: Image.Image, grid: tuple[int, int], title: str = "patches", marked: Sequence[tuple[int, int]] = (), side: int = 224
) -> Figure:
    """Draw the image with its patch grid, and a frame around the patches ``marked`` by row and column."""
    width, height = _fit_size(image, side)
    segments = [(0.0, height * row / grid[0], float(width), height * row / grid[0]) for row in range(1, grid[0])]
    segments += [(width * column / grid[1], 0.0, width * column / grid[1], float(height)) for column in range(1, grid[1])]
    lines = [Line([(x, y), (to_x, to_y)], "#ffffff", 1, opacity=0.5) for x, y, to_x, to_y in segments]
    for row, column in marked:
        left, right = (width * index / grid[1] for index in (column, column + 1))
        top, bottom = (height * index / grid[0] for index in (row, row + 1))
        lines.append(Line([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], "bad", 2.5))
    return Figure(title, (width, height), (_image_shape(image.convert("RGB"), width, height), *lines))


def attention_grid(
    maps: Float[ndarray, "l h y x"],
    title: str = "heads",
    layers: Indices = None,
    heads: Indices = None,
    side: int | None = None,
) -> Figure:
    """Draw attention maps with one column per layer and one row per head, each scaled to its own minimum and maximum."""
    across, down = maps.shape[:2]
    size = _map_size(maps.shape[2:], side or min(max(PAGE_WIDTH // (across + 1), 40), 96))
    cells = np.stack([np.stack([min_max(maps[layer, head]) for layer in range(across)]) for head in range(down)])
    left, top = LABEL_WIDTH + 6, LINE_HEIGHT + 2
    mosaic, height, width = _mosaic(cells, left, top, size[0])
    shapes = [mosaic, *_column_labels([f"layer {n}" for n in layers or range(across)], left, width)]
    for row, number in enumerate(heads or range(down)):
        shapes.append(Text((left - 6, top + (row + 0.5) * height + 4), f"head {number}", "end"))
        for column, layer in enumerate(layers or range(across)):
            lowest, highest = float(maps[column, row].min()), float(maps[column, row].max())
            tooltip = f"layer {layer}, head {number}: {lowest:.2g} to {highest:.2g}"
            shapes.append(Tooltip((left + column * width, top + row * height, size[1], size[0]), tooltip))
    return Figure(title, (math.ceil(left + across * width), math.ceil(top + down * height)), tuple(shapes))


def heatmap_row(
    maps: Float[ndarray, "s y x"],
    names: Sequence[str],
    title: str,
    value_range: tuple[float, float] | None = None,
    side: int = 64,
) -> Figure:
    """Draw maps side by side, wrapped into rows: each scaled to its own minimum and maximum, written below it, or all to
    ``value_range``, with a colour bar."""
    height, width = _map_size(maps.shape[1:], side)
    cell_width, caption_height = max(width + 8, LABEL_WIDTH if value_range else 84), 0 if value_range else LINE_HEIGHT
    rows = -(-len(maps) // max(1, PAGE_WIDTH // cell_width))
    in_row = -(-len(maps) // rows)
    row_height = LINE_HEIGHT + 2 + height + caption_height + 6
    shapes: list[Shape] = []
    for number, (name, values) in enumerate(zip(names, maps, strict=True)):
        left, top = number % in_row * cell_width, number // in_row * row_height
        normalised = min_max(values) if value_range is None else (values - value_range[0]) / (value_range[1] - value_range[0])
        shapes += [
            Text((left, top + 12), name),
            ImageShape((left, top + LINE_HEIGHT + 2, width, height), _to_heatmap(normalised)),
        ]
        if value_range is None:
            label = f"{float(values.min()):.3g} to {float(values.max()):.3g}"
            shapes.append(Text((left, top + LINE_HEIGHT + height + 15), label))
    size = in_row * cell_width, rows * row_height
    if value_range is not None:
        shapes += _colour_bar(size[0], min(height, 120), *value_range, top=LINE_HEIGHT + 2)
    return Figure(title, (size[0] + (COLOUR_BAR_WIDTH if value_range else 0), size[1]), tuple(shapes))


def heatmap_grid(
    similarity: Float[ndarray, "y x v u"], title: str = "positions", max_tiles: int = 14, side: int = 44
) -> Figure:
    """Draw one tile per position: its cosine to every other, from -1 to 1. Large grids are subsampled."""
    rows, columns = similarity.shape[:2]
    stride = -(-max(rows, columns) // max_tiles)
    cells = (similarity[::stride, ::stride] + 1) / 2
    left, top = LABEL_WIDTH + 6, LINE_HEIGHT + 2
    down, across = cells.shape[:2]
    mosaic, height, width = _mosaic(cells, left, top, _map_size((rows, columns), side)[0])
    names = [f"{number * stride}" for number in range(across)]
    shapes = [mosaic, *_column_labels(names, left, width), Text((left - 6, 12), "column", "end")]
    shapes += [
        Text((left - 6, top + (row + 0.5) * height + 4), f"row {row * stride}", "end")
        for row in range(down)
        if row % math.ceil(11 / height) == 0
    ]
    right, total_height = math.ceil(left + across * width), math.ceil(down * height)
    bar = _colour_bar(right, max(total_height, 42), -1.0, 1.0, top=top)
    return Figure(title, (right + COLOUR_BAR_WIDTH, top + max(total_height, 42)), (*shapes, *bar))


def filter_grid(filters: Float[ndarray, "n c p q"], title: str = "filters", columns: int = 7, side: int = 56) -> Figure:
    """Draw patch filters: three channels as red, green and blue, other numbers by their mean, as grey."""
    count, channels = filters.shape[:2]
    height, width = _map_size(filters.shape[2:], side)
    shapes: list[Shape] = []
    for number, values in enumerate(filters):
        rgb = values if channels == 3 else np.repeat(values.mean(axis=0, keepdims=True), 3, axis=0)
        pixels = np.round(255 * np.clip(rgb, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
        left, top = 4 + number % columns * (width + 4), 4 + number // columns * (height + 4)
        shapes.append(ImageShape((left, top, width, height), Image.fromarray(np.ascontiguousarray(pixels))))
    size = min(count, columns) * (width + 4) + 4, -(-count // columns) * (height + 4) + 4
    return Figure(title, size, tuple(shapes))


def _mosaic(cells: Float[ndarray, "r k y x"], left: int, top: int, height: int) -> tuple[Shape, float, float]:
    """Return one image of all cells with gaps between them, and the cell spacing down and across."""
    rows, columns, y, _ = cells.shape
    pixel_size = height / y
    repeat = max(round(pixel_size / 3), 1)  # a gap is one pixel of the image
    upscaled = colour_indices(cells).repeat(repeat, axis=2).repeat(repeat, axis=3)
    upscaled = np.pad(upscaled, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=NUM_COLOURS)
    joined = upscaled.transpose(0, 2, 1, 3).reshape(rows * upscaled.shape[2], columns * upscaled.shape[3])
    down, across = upscaled.shape[2] * pixel_size / repeat, upscaled.shape[3] * pixel_size / repeat
    return ImageShape((left, top, columns * across, rows * down), _apply_palette(joined)), down, across


def _column_labels(names: Sequence[str], left: int, width: float) -> list[Shape]:
    """Label the columns; narrow ones by their number alone, very narrow ones only every so many."""
    stride = math.ceil(16 / width)
    short = [name if width >= LABEL_WIDTH else name.split()[-1] for name in names]
    return [Text((left + (n + 0.5) * width, 12), name, "middle") for n, name in enumerate(short) if n % stride == 0]


def _colour_bar(left: int, height: int, vmin: float, vmax: float, top: int = 0, opacity: float = 1.0) -> list[Shape]:
    """Draw a colour bar, as the colours look over grey with this opacity."""
    gradient = Image.fromarray(
        np.round(opacity * apply_colormap(np.linspace(1, 0, 128)[:, None]) + (1 - opacity) * MEAN_GREY).astype(np.uint8)
    )
    labels = [Text((left + 22, top + 9), f"{vmax:.2g}"), Text((left + 22, top + height - 1), f"{vmin:.2g}")]
    return [ImageShape((left + 6, top, 12, height), gradient), *(labels if height >= 24 else labels[:1])]


def _to_heatmap(values: Float[ndarray, "y x"]) -> Image.Image:
    return _apply_palette(colour_indices(values))


def _apply_palette(indices: ndarray) -> Image.Image:
    """Return the image with the colour map as its palette, one byte per pixel."""
    image = Image.fromarray(indices.astype(np.uint8)).convert("P")
    image.putpalette([*colormap().tobytes(), 0, 0, 0])
    if (indices == NUM_COLOURS).any():
        image.info["transparency"] = NUM_COLOURS
    return image


def _image_shape(image: Image.Image, width: int, height: int) -> ImageShape:
    """Fit an image: a large one is downsampled to what can be seen, a small one keeps its pixels."""
    smooth = max(image.size) > MAX_NEAREST_SIDE
    max_side = 2 * max(width, height)
    if max(image.size) > max_side:
        image = image.resize(_fit_size(image, max_side), Image.Resampling.BICUBIC)
    return ImageShape((0, 0, width, height), image, smooth)


def _fit_size(image: Image.Image, side: int) -> tuple[int, int]:
    scale = side / max(image.size)
    return max(1, round(image.width * scale)), max(1, round(image.height * scale))


def _map_size(grid: Sequence[int], side: int) -> tuple[int, int]:
    """Return the size of a map in whole pixels per grid cell, so that all cells are equally large."""
    pixels_per_cell = max(1, side // max(grid))
    return grid[0] * pixels_per_cell, grid[1] * pixels_per_cell
