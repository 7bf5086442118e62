"""Count the values of masks before their classes are known: of all, or of some thousand that are evenly spaced. Cached."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.sources.dataset import Progress, evenly_spaced
from vitrail.data.sources.masks.mask_file import MaskValues, decode_mask, pack_colours
from vitrail.errors import VitrailError
from vitrail.system import available_cores

CACHE_FORMAT = 2  # version of the cached arrays
MAX_SCANNED = 4000  # masks
MAX_COLOURS = 4096  # distinct colours that are counted of one mask
CHUNK = 64  # masks between two progress reports


@dataclass(frozen=True)
class ValueScan:
    """The pixels of every index and of every colour in some masks; an index has the colour of its palette, or is grey."""

    indices: Mapping[int, int]  # index: pixels
    colours: Mapping[int, int]  # colour: pixels
    num_masks: int
    num_scanned: int
    num_coloured: int  # masks of colours that are not grey, and so have no indices
    num_rgb: int  # masks that are stored as colours, also if they are grey
    num_lossy: int  # JPEGs
    palette: tuple[int, ...] | None  # the colours of indices 0 to 255, if all masks have the same palette

    @property
    def has_colours(self) -> bool:
        """Whether colours, not indices, stand for classes: some are not grey, and most masks are stored as colours."""
        return self.num_coloured > 0 and 2 * self.num_rgb > self.num_scanned

    @property
    def coverage(self) -> str:
        """Text for messages: which masks were counted."""
        if self.num_scanned < self.num_masks:
            return f"counted in {self.num_scanned:,} of {self.num_masks:,} masks"
        return f"counted in all {self.num_masks:,} masks"


def scan_values(
    read: Callable[[int], bytes], num_masks: int, key: Callable[[ndarray], bytes], progress: Progress | None = None
) -> ValueScan:
    """Scan masks by index. ``key`` returns bytes that change with any of the masks of these indices."""
    chosen = evenly_spaced(num_masks, MAX_SCANNED)
    cache_key = f"{CACHE_FORMAT} {num_masks} {hashlib.sha256(key(chosen)).hexdigest()}"
    cached = _load(cache_key, num_masks)
    if cached is not None:
        return cached
    scan, is_whole = _scan(read, chosen, num_masks, progress)
    if is_whole:  # what could not be read may be readable next time
        _store(cache_key, scan)
    return scan


@dataclass(frozen=True)
class _Counted:
    indices: dict[int, int] | None  # None: it has colours
    colours: dict[int, int]
    palette: tuple[int, ...] | None
    is_rgb: bool
    is_lossy: bool


def _scan(read: Callable[[int], bytes], chosen: ndarray, num_masks: int, progress: Progress | None) -> tuple[ValueScan, bool]:
    """Return the scan, and whether every mask could be read; the check of a dataset names those that could not."""

    def count(index: int) -> _Counted | Exception:
        try:
            return _count(decode_mask(read(index)))
        except (OSError, VitrailError) as error:
            return error

    indices, colours, counted, failed = Counter[int](), Counter[int](), list[_Counted](), list[Exception]()
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(chosen), CHUNK):
            for each in pool.map(count, chosen[start : start + CHUNK].tolist()):
                if isinstance(each, Exception):
                    failed.append(each)
                    continue
                counted.append(each)
                indices.update(each.indices or {})
                colours.update(each.colours)
            if progress:
                progress("reading masks", min(start + CHUNK, len(chosen)), len(chosen))
    palettes = {each.palette for each in counted}
    scan = ValueScan(
        dict(sorted(indices.items())),
        dict(sorted(colours.items())),
        num_masks,
        len(counted),
        sum(each.indices is None for each in counted),
        sum(each.is_rgb for each in counted),
        sum(each.is_lossy for each in counted),
        palettes.pop() if len(palettes) == 1 else None,
    )
    return scan, not failed


def _count(mask: MaskValues) -> _Counted:
    indices = mask.indices()
    palette = None if mask.palette is None else tuple(pack_colours(mask.palette).tolist())
    if indices is None:
        return _Counted(None, dict(_most(count_runs(mask.values))), palette, mask.is_colour, mask.is_lossy)
    of_indices = count_runs(indices)
    colour_of = dict(zip(range(256), palette, strict=True)) if palette else {}
    colours = Counter[int]()
    for value, pixels in of_indices.items():
        colours[colour_of.get(value, min(value, 255) * 0x10101)] += pixels
    return _Counted(of_indices, dict(colours), palette, mask.is_colour, mask.is_lossy)


def _most(pixels: Mapping[int, int]) -> Iterable[tuple[int, int]]:
    return Counter(pixels).most_common(MAX_COLOURS)


def count_runs(values: Int[ndarray, "h w"]) -> dict[int, int]:
    """Count the pixels of each value, by runs of equal ones, of which a mask has few."""
    flat = values.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=flat[:1] - 1))
    distinct, run = np.unique(flat[starts], return_inverse=True)
    pixels = np.bincount(run.ravel(), np.diff(starts, append=len(flat)), len(distinct)).astype(np.int64)
    return dict(zip(distinct.tolist(), pixels.tolist(), strict=True))


def _store(key: str, scan: ValueScan) -> None:
    numbers = [scan.num_scanned, scan.num_coloured, scan.num_rgb, scan.num_lossy]
    arrays = {name: np.array(list(getattr(scan, name).items()), np.int64).reshape(-1, 2) for name in ("indices", "colours")}
    arrays |= {"numbers": np.array(numbers, np.int64), "palette": np.array(scan.palette or (), np.int64)}
    cache.store_cached("mask_values", key, arrays)


def _load(key: str, num_masks: int) -> ValueScan | None:
    cached = cache.load_cached("mask_values", key)
    try:
        if cached is None:
            return None
        indices, colours = (dict(cached[name].reshape(-1, 2).tolist()) for name in ("indices", "colours"))
        palette = tuple(cached["palette"].tolist()) or None
        num_scanned, num_coloured, num_rgb, num_lossy = cached["numbers"].tolist()
        return ValueScan(indices, colours, num_masks, num_scanned, num_coloured, num_rgb, num_lossy, palette)
    except (KeyError, ValueError, TypeError):
        return None
