"""Masks of regions as COCO writes them (Lin et al. 2014): run lengths and polygons. Torch-free. h high, w wide, m points.

Run lengths count pixels column by column, first those outside the region. They are a list, or a string of six-bit characters.
Polygons are ``[x1, y1, x2, y2, ...]`` in pixels, where the pixel in row y and column x is the square from (x, y) to (x + 1,
y + 1). They are filled as COCO's own tools fill them, to the pixel, and ``polygons_of`` gives polygons that are filled to the
same mask again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Num
from numpy import ndarray

from vitrail.data.decode import MAX_IMAGE_PIXELS
from vitrail.errors import VitrailError

FIRST_CHARACTER = 48  # "0": the six bits of a character are counted from there
VALUE_BITS, SIGN_BIT, MORE_BIT = 5, 16, 32  # of a character: five bits of the number, lowest first, and whether more follow
MAX_CHARACTERS = 7  # of a number: 35 bits
STEPS = 5  # steps per pixel in which the edges of a polygon are walked
CENTRE = STEPS // 2  # the step of a column's centre
MAX_COORDINATE = 2**17  # pixels: a polygon that reaches further is damaged
WALK = 2**20  # points walked at a time

Rle = dict[str, Any]  # size: [h, w], counts: text, or a list of numbers


def encode_rle(mask: Num[ndarray, "h w"] | Bool[ndarray, "h w"]) -> Rle:
    """Return the run lengths of a region as COCO's compressed text."""
    return encode_counts(_counts_of(mask), mask.shape)


def encode_uncompressed_rle(mask: Num[ndarray, "h w"] | Bool[ndarray, "h w"]) -> Rle:
    """Return the run lengths of a region as a list of numbers."""
    height, width = mask.shape
    return {"size": [height, width], "counts": _counts_of(mask).tolist()}


def encode_counts(counts: Int[ndarray, " runs"], size: tuple[int, int]) -> Rle:
    """Return run lengths that are counted already, first those outside, as COCO's compressed text."""
    return {"size": list(size), "counts": _compress(counts)}


def decode_rle(rle: Mapping[str, Any]) -> Bool[ndarray, "h w"]:
    """Return the region of run lengths, compressed or not."""
    height, width, counts = _parse_rle(rle)
    return _fill_runs(counts, height, width)


def rle_area(rle: Mapping[str, Any]) -> int:
    """Return the number of pixels of a region without decoding it."""
    return int(_parse_rle(rle)[2][1::2].sum())


def mask_area(mask: ndarray) -> int:
    """Return the number of pixels of a region."""
    return int(np.count_nonzero(mask))


def mask_box(mask: ndarray) -> list[int]:
    """Return the smallest box around a region as COCO writes it: left, top, width and height; four zeros if it is empty."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return [0, 0, 0, 0]
    left, top = int(columns[0]), int(rows[0])
    return [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top]


def rasterise(polygons: Sequence[Any], size: tuple[int, int]) -> Bool[ndarray, "h w"]:
    """Return the region inside any of the polygons, lists of numbers. One of fewer than three points has no inside."""
    height, width = size
    mask = np.zeros((height, width), bool)
    for polygon in polygons:
        points = _parse_polygon(polygon)
        if len(points) < 3:
            continue
        toggles = np.sort(np.concatenate([*_crossings(points, height, width), np.zeros(0, np.int64)]))
        if len(toggles):  # an even-odd fill, of the columns that the polygon covers
            first, end = int(toggles[0]) // height, min(-(-int(toggles[-1]) // height), width)
            counts = np.diff(toggles, prepend=first * height, append=end * height)
            mask[:, first:end] |= _fill_runs(counts, height, end - first)
    return mask


def polygons_of(mask: Num[ndarray, "h w"] | Bool[ndarray, "h w"]) -> list[list[float]]:
    """Return the outline of each connected region along the edges of its pixels; ``rasterise`` fills them to the same mask.

    Pixels are connected by their sides. A hole is cut in: a line of no width goes to it from the outline, once around it and
    back, so that a region is one polygon. Regions come in the order of their first pixels, row by row.
    """
    inside = np.asarray(mask).astype(bool)
    corners, across, down = _corners(inside)
    loops, places = _trace(across, down), corners.tolist()
    edge_keys = corners[down[:, 0]] @ [1, inside.shape[0] + 1]  # in order: by column, then by row
    cuts, polygons = dict[int, list[tuple[int, list[list[int]]]]](), list[list[float]]()
    for loop in reversed(loops):  # a hole begins after the loop to which it is cut
        row, column = places[loop[0]]
        is_hole = not inside[row, column]
        outline = _outline(loop[:1] + loop[:0:-1] if is_hole else loop, places, cuts)
        if not is_hole:
            polygons.append([float(place) for row, column in outline for place in (column, row)])
            continue
        outside = np.flatnonzero(~inside[row, :column])  # the run of pixels that ends at the hole begins at an edge
        begin = int(outside[-1]) + 1 if len(outside) else 0
        edge = down[np.searchsorted(edge_keys, begin * (inside.shape[0] + 1) + row, side="right") - 1, 0]
        cuts.setdefault(int(edge), []).append((row, [[row, begin], *outline, outline[0], [row, begin]]))
    return polygons[::-1]


def _counts_of(mask: ndarray) -> Int[ndarray, " runs"]:
    pixels = np.asarray(mask).astype(bool).ravel(order="F")
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    first = [0] if len(pixels) and pixels[0] else []  # the first run is outside, if need be of no length
    return np.diff(np.array([0, *first, *changes.tolist(), len(pixels)], np.int64))


def _fill_runs(counts: ndarray, height: int, width: int) -> Bool[ndarray, "h w"]:
    values = (np.arange(len(counts)) % 2).astype(bool)
    return np.ascontiguousarray(np.repeat(values, counts).reshape(width, height).T)


def _parse_rle(rle: Mapping[str, Any]) -> tuple[int, int, Int[ndarray, " runs"]]:
    size, counts = rle.get("size"), rle.get("counts")
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(type(side) is int and side >= 0 for side in size):
        raise VitrailError(f"run lengths must have a size of height and width, got {size!r}; try [480, 640]")
    height, width = size
    if height * width > MAX_IMAGE_PIXELS:
        raise VitrailError(f"run lengths must have at most {MAX_IMAGE_PIXELS:,} pixels, got {height} x {width}")
    if isinstance(counts, str | bytes):
        runs = _decompress(counts.encode("ascii", "replace") if isinstance(counts, str) else counts)
    elif isinstance(counts, list | tuple) and all(type(count) is int and abs(count) <= MAX_IMAGE_PIXELS for count in counts):
        runs = np.array(counts, np.int64)
    else:
        raise VitrailError("counts of run lengths must be a text or a list of whole numbers; write them again")
    if (runs < 0).any() or runs.sum() != height * width:
        raise VitrailError(
            f"the run lengths must add up to {height} x {width} = {height * width:,} pixels, got {int(runs.sum()):,}; "
            "write them again"
        )
    return height, width, runs


def _compress(counts: Int[ndarray, " runs"]) -> str:
    """Write each number as its difference to that of two runs before, in as few characters as it needs."""
    numbers = counts.copy()
    numbers[3:] -= counts[1:-2]
    characters = np.zeros((len(numbers), MAX_CHARACTERS), np.uint8)
    used = np.zeros(characters.shape, bool)
    pending = np.ones(len(numbers), bool)
    for place in range(MAX_CHARACTERS):
        low = numbers & (MORE_BIT - 1)
        numbers = numbers >> VALUE_BITS
        used[:, place] = pending
        pending = pending & np.where(low & SIGN_BIT, numbers != -1, numbers != 0)
        characters[:, place] = low + MORE_BIT * pending + FIRST_CHARACTER
    return characters[used].tobytes().decode("ascii")


def _decompress(text: bytes) -> Int[ndarray, " runs"]:
    bits = np.frombuffer(text, np.uint8).astype(np.int64) - FIRST_CHARACTER
    if not len(bits):
        return bits
    ends = np.flatnonzero(bits & MORE_BIT == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if bits.min() < 0 or bits.max() >= 2 * MORE_BIT or len(ends) == 0 or ends[-1] + 1 != len(bits):
        raise VitrailError("the text of run lengths has characters that COCO does not write; write it again")
    lengths = ends + 1 - starts
    if lengths.max() > MAX_CHARACTERS:
        raise VitrailError("the text of run lengths has a number of more than 35 bits; write it again")
    places = np.arange(len(bits)) - np.repeat(starts, lengths)
    numbers = np.add.reduceat((bits & (MORE_BIT - 1)) << (VALUE_BITS * places), starts)
    numbers -= np.where(bits[ends] & SIGN_BIT, 1 << (VALUE_BITS * lengths), 0)
    for first in (1, 2):  # each is the difference to that of two runs before; the first three are not
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers


def _parse_polygon(polygon: Any) -> Num[ndarray, "m 2"]:
    try:
        points = np.asarray(polygon, np.float64)
    except (TypeError, ValueError):
        points = np.zeros((0, 0))
    if points.ndim != 1 or len(points) % 2:
        raise VitrailError(f"a polygon must be x1, y1, x2, y2, ... in one list of numbers, got {str(polygon)[:60]}")
    if not (np.abs(points) <= MAX_COORDINATE).all():  # also NaN
        raise VitrailError(f"the coordinates of a polygon must be within {MAX_COORDINATE:,} pixels, got {str(polygon)[:60]}")
    return points.reshape(-1, 2)


def _crossings(points: Num[ndarray, "m 2"], height: int, width: int) -> Iterator[Int[ndarray, " crossings"]]:
    """Yield where the edges cross the centres of columns, as pixels counted column by column: there inside and outside change.

    The corners are rounded to a fifth of a pixel, the edges walked in such steps, and of a step across the centre of a column
    the upper end counts.
    """
    corners = np.trunc(STEPS * points + 0.5).astype(np.int64)  # half up, as a cast from double to int has it
    following = np.roll(corners, -1, axis=0)
    lengths = np.abs(following - corners).max(axis=1) + 1
    chunks = np.cumsum(lengths) // WALK
    last = None
    for rows in np.split(np.arange(len(corners)), np.flatnonzero(np.diff(chunks)) + 1):
        walk = _walk(corners[rows], following[rows], lengths[rows])
        walk = walk if last is None else np.concatenate([last, walk])
        last = walk[-1:]
        x, y = np.minimum(walk[1:], walk[:-1]).T
        column = (x - CENTRE) // STEPS
        crosses = (walk[1:, 0] != walk[:-1, 0]) & ((x - CENTRE) % STEPS == 0) & (column >= 0) & (column < width)
        row = np.ceil((y[crosses] + 0.5) / STEPS - 0.5).astype(np.int64)
        yield column[crosses] * height + row.clip(0, height)


def _walk(starts: Int[ndarray, "m 2"], ends: Int[ndarray, "m 2"], lengths: Int[ndarray, " m"]) -> Int[ndarray, "steps 2"]:
    """Return the points along edges, a step apart in their longer direction and rounded in the other.

    An edge that goes left or up is walked from its other end, so that it has the same points as the edge of a neighbour.
    """
    extent = np.abs(ends - starts)
    axis = (extent[:, 0] < extent[:, 1]).astype(np.int64)  # the longer one: 0 for x, 1 for y
    edges = np.arange(len(starts))
    is_reversed = starts[edges, axis] > ends[edges, axis]
    origin, target = np.where(is_reversed[:, None], ends, starts), np.where(is_reversed[:, None], starts, ends)
    other = 1 - axis
    slope = (target[edges, other] - origin[edges, other]) / np.maximum(extent[edges, axis], 1)
    edge = np.repeat(edges, lengths)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    step = np.where(is_reversed[edge], lengths[edge] - 1 - step, step)
    along = origin[edge, axis[edge]] + step
    across = np.trunc(origin[edge, other[edge]] + slope[edge] * step + 0.5).astype(np.int64)
    is_steep = axis[edge] == 1
    return np.stack([np.where(is_steep, across, along), np.where(is_steep, along, across)], axis=1)


def _corners(inside: Bool[ndarray, "h w"]) -> tuple[Int[ndarray, "m 2"], Int[ndarray, "edges 2"], Int[ndarray, "edges 2"]]:
    """Return the corners of all outlines (row, column), row by row, and as indices of them the ends of each horizontal edge,
    left and right, and of each vertical edge, top and bottom. Where two regions touch in a corner, it is two."""
    padded = np.pad(inside, 1)
    above_left, above_right, left, right = padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    is_corner = above_left ^ above_right ^ left ^ right
    is_double = (above_left == right) & (above_right == left) & (above_left != left)
    places = np.repeat(np.arange(is_corner.size), (is_corner + 2 * is_double).ravel())
    corners = np.stack(np.divmod(places, is_corner.shape[1]), axis=1)
    # The first of two copies ends the edge from the left. It also ends that from above if the region above is on the left.
    is_second = np.diff(places, prepend=-1) == 0
    begins_down = is_second ^ (is_double & ~above_left).ravel()[places]
    order = np.lexsort((begins_down, corners[:, 0], corners[:, 1]))
    return corners, np.arange(len(places)).reshape(-1, 2), order.reshape(-1, 2)


def _trace(across: Int[ndarray, "edges 2"], down: Int[ndarray, "edges 2"]) -> list[list[int]]:
    """Return the loops of corners, each from its first corner to the right and around."""
    beside, below = np.empty(across.size, np.int64), np.empty(down.size, np.int64)
    beside[across], below[down] = across[:, ::-1], down[:, ::-1]
    beside_of, below_of = beside.tolist(), below.tolist()
    is_traced, loops = bytearray(across.size), list[list[int]]()
    for first in range(across.size):
        corner, loop = first, list[int]()
        while not is_traced[corner]:
            following = beside_of[corner]
            loop += corner, following
            is_traced[corner] = is_traced[following] = True
            corner = below_of[following]
        if loop:
            loops.append(loop)
    return loops


def _outline(loop: list[int], corners: list[list[int]], cuts: dict[int, list[tuple[int, list[list[int]]]]]) -> list[list[int]]:
    """Return the corners of a loop, and where cuts leave it those of the holes."""
    outline = list[list[int]]()
    for corner, following in zip(loop, [*loop[1:], loop[0]], strict=True):
        outline.append(corners[corner])
        if corners[corner][1] == corners[following][1]:  # a vertical edge, known by its upper end
            for _, hole in sorted(cuts.pop(min(corner, following), []), reverse=corner > following):
                outline += hole
    return [point for point, before in zip(outline, [outline[-1], *outline[:-1]], strict=True) if point != before]
