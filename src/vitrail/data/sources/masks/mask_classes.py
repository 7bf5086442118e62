"""Classes of masks: which value or colour is which class, found from the values and a legend, and what is ignored. h w.

Without a legend the classes are the values that occur, named ``class 3``, or ``background`` and ``foreground`` if there are two
that can be nothing else; colours are named as ``#800000``. 255 is ignored if the other values are far below it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int16, Int32
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.sources.columns import NONE_IGNORED
from vitrail.data.sources.dataset import IGNORED
from vitrail.data.sources.masks.legend import Legend
from vitrail.data.sources.masks.mask_file import MAX_VALUE, MaskValues, colour_text
from vitrail.data.sources.masks.scan_values import ValueScan
from vitrail.data.sources.masks.voc import palette_colour
from vitrail.errors import VitrailError, did_you_mean

MAX_CLASSES = 32767  # of an int16
MAX_COLOUR_CLASSES = 256  # more colours are those of antialiasing, or of an image
VOID_NAMES = ("void", "ignore", "ignored", "unlabelled", "unlabeled", "ignore region", "don't care")
BORDER_VALUES = {255: 192, MAX_VALUE: 32768}  # the value that is ignored, if all others are below the second
OUTSIDE = -2  # of a value that is no class and not ignored
BINARY_NAMES = ("background", "foreground")
THRESHOLD, NEAR_EXTREME, EXTREME_FRACTION = 128, 16, 0.95  # of masks of black and white with shades between them
MANY_VALUES, RARE_FRACTION = 64, 0.001  # of values that are shades rather than classes
LEGEND_HINT = "a legend beside the folders names them: classes.txt with one"


class UnnamedValues(VitrailError):
    """Masks have other values, or colours, than a legend has names; ``value`` is the rarest of them if there are more."""

    def __init__(self, message: str, value: int | None, by_colour: bool) -> None:
        super().__init__(message)
        self.value, self.by_colour = value, by_colour


@dataclass(frozen=True, eq=False)
class MaskClasses:
    """The class of every value of a mask. ``values`` are in rising order; of ``numbers``, -1 is ignored."""

    names: tuple[str, ...]
    by_colour: bool
    values: Int32[ndarray, " v"]
    numbers: Int16[ndarray, " v"]  # class of each value
    border: int | None = None  # a value that is ignored wherever it occurs
    is_threshold: bool = False  # all values from 128 on are the second of two classes

    def encode(self, mask: MaskValues) -> Int16[ndarray, "h w"]:
        """Return the class of each pixel; an error names a value that is none."""
        values = mask.colours() if self.by_colour else mask.indices()
        if values is None:
            raise BadImage("has colours, and most of the masks have indices; save it as they are, in grey or with a palette")
        classes = self._of_colours(values) if self.by_colour else self._table[values]
        if (classes == OUTSIDE).any():
            raise BadImage(self._outside(values, classes))
        return classes

    @cached_property
    def _table(self) -> Int16[ndarray, " 65536"]:
        table = np.full(MAX_VALUE + 1, OUTSIDE, np.int16)
        if self.is_threshold:
            table[:256] = np.arange(256) >= THRESHOLD
            return table
        if self.border is not None:
            table[self.border] = IGNORED
        table[self.values] = self.numbers
        return table

    def _of_colours(self, colours: Int32[ndarray, "h w"]) -> Int16[ndarray, "h w"]:
        place = np.searchsorted(self.values, colours).clip(max=len(self.values) - 1)
        return np.where(self.values[place] == colours, self.numbers[place], np.int16(OUTSIDE))

    def _outside(self, values: ndarray, classes: ndarray) -> str:
        outside, counts = np.unique(values[classes == OUTSIDE], return_counts=True)
        value = int(outside[counts.argmax()])
        what = f"colour {colour_text(value)}" if self.by_colour else f"value {value}"
        more = f" and {len(outside) - 1:,} other {'colours' if self.by_colour else 'values'}" if len(outside) > 1 else ""
        remedy = f"add it to the legend, or ignore it: ignore={self.value_text(value)}"
        if len(outside) > 16:
            remedy = "save masks as PNG, without JPEG and without interpolation"
        return f"has the {what}{more} in {counts.sum():,} pixels, which {'are' if more else 'is'} no class; {remedy}"

    def value_text(self, value: int) -> str:
        return colour_text(value) if self.by_colour else str(value)

    def key(self) -> bytes:
        """Return bytes that identify the classes."""
        return repr((self.names, self.by_colour, self.border, self.is_threshold)).encode() + (
            self.values.tobytes() + self.numbers.tobytes()
        )


def find_classes(
    name: str, scan: ValueScan, legend: Legend | None = None, ignore: Sequence[str] = ()
) -> tuple[MaskClasses, tuple[str, ...]]:
    """Return the classes of the masks of a dataset of this name, and notes on what was found."""
    if not scan.num_scanned:
        raise VitrailError(f"none of the {scan.num_masks:,} masks of {name} can be read; save them as PNG")
    by_colour = _is_by_colour(name, scan, legend)
    pixels = scan.colours if by_colour else scan.indices
    is_threshold = legend is None and not ignore and not by_colour and _is_black_and_white(pixels, scan.num_lossy > 0)
    if is_threshold:
        named, how = (
            dict(zip((0, 255), BINARY_NAMES, strict=True)),
            "from 128 on, since there are shades between black and white",
        )
        pixels = {0: _sum(pixels, below=THRESHOLD), 255: sum(pixels.values()) - _sum(pixels, below=THRESHOLD)}
    elif legend is not None:
        named, how = _named_by_legend(name, pixels, legend, by_colour), f"named by {legend.source}"
    else:
        named, how = _named_by_value(name, scan, pixels, by_colour, ignore)
    border = None if by_colour or is_threshold or NONE_IGNORED in ignore else _border(pixels, named, legend)
    ignored = _ignored_values(name, named, border, ignore, by_colour)
    classes = [value for value in named if value not in ignored]
    if len(classes) > MAX_CLASSES:
        raise VitrailError(f"the masks of {name} have {len(classes):,} classes, more than the {MAX_CLASSES:,} allowed")
    number = dict.fromkeys(ignored, IGNORED) | {value: place for place, value in enumerate(classes)}
    values = np.array(sorted(number), np.int32)
    numbers = np.array([number[value] for value in values.tolist()], np.int16)
    found = MaskClasses(tuple(named[value] for value in classes), by_colour, values, numbers, border, is_threshold)
    notes = (_describe(found, classes, ignored, pixels, scan, how), *_outside_notes(found, pixels, legend, is_threshold))
    return found, (*notes, *_doubts(found, pixels, classes, legend))


def _is_by_colour(name: str, scan: ValueScan, legend: Legend | None) -> bool:
    """Return whether colours, not indices, stand for classes: if the masks have any, or palettes are those of the legend."""
    if legend is None or not legend.has_colours:
        if legend is not None and legend.has_values and scan.has_colours:
            raise VitrailError(
                f"{legend.source} names values, and {scan.num_coloured:,} masks of {name} have colours; name their colours, as "
                "in `#800000 car`"
            )
        return scan.has_colours
    known = {entry.colour for entry in legend.entries}
    of_palettes = scan.palette is not None and any(colour in known and colour for colour in scan.colours)
    return scan.has_colours or of_palettes


def _is_black_and_white(pixels: Mapping[int, int], is_lossy: bool) -> bool:
    """Return whether nearly all pixels are black or white, and some between: antialiased, or saved as JPEG."""
    between = [value for value in pixels if 0 < value < 255]
    near = sum(count for value, count in pixels.items() if value < NEAR_EXTREME or 255 - NEAR_EXTREME < value <= 255)
    has_shades = len(between) > (0 if is_lossy else NEAR_EXTREME) and max(pixels) <= 255 and {0, 255} <= set(pixels)
    return has_shades and near >= EXTREME_FRACTION * sum(pixels.values())


def _sum(pixels: Mapping[int, int], below: int) -> int:
    return sum(count for value, count in pixels.items() if value < below)


# Names ---------------------------------------------------------------------------------------------------------------


def _named_by_legend(name: str, pixels: Mapping[int, int], legend: Legend, by_colour: bool) -> dict[int, str]:
    if by_colour and not legend.has_colours:
        return _named_in_order(name, pixels, legend, True)
    if by_colour:
        return {entry.colour: entry.name for entry in legend.entries if entry.colour is not None}
    if legend.has_values:
        named = {entry.value: entry.name for entry in legend.entries if entry.value is not None}
        if max(named) > MAX_VALUE:
            raise VitrailError(f"{legend.source} names the value {max(named)}, and a mask may have 0 to {MAX_VALUE}")
        return dict(sorted(named.items()))
    return _named_in_order(name, pixels, legend, False)


def _named_in_order(name: str, pixels: Mapping[int, int], legend: Legend, by_colour: bool) -> dict[int, str]:
    """Give names without values to the values: from 0, or from 1 if no pixel is 0 and the last name is that of the largest
    value, or to as many values as occur, in their order."""
    names = [entry.name for entry in legend.entries]
    found = sorted(value for value in pixels if by_colour or value not in BORDER_VALUES) or [0]
    if not by_colour:
        if found[0] >= 1 and found[-1] == len(names):
            return dict(enumerate(names, start=1))
        if found[0] == 0 and found[-1] < len(names):
            return dict(enumerate(names))
    for values in (found, sorted(pixels)):
        if len(values) == len(names):
            return dict(zip(values, names, strict=True))
    shown = ", ".join(colour_text(value) if by_colour else str(value) for value in found[:8])
    example = f"{colour_text(found[0]) if by_colour else found[0]} {names[0]}"
    raise UnnamedValues(
        f"{legend.source} has {len(names)} names without {'colours' if by_colour else 'values'}, and the masks of {name} have "
        f"{shown}{' ...' if len(found) > 8 else ''}; write which is which, as in `{example}`",
        min(found, key=lambda value: (pixels.get(value, 0), -value)) if len(found) > len(names) else None,
        by_colour,
    )


def _named_by_value(
    name: str, scan: ValueScan, pixels: Mapping[int, int], by_colour: bool, ignore: Sequence[str]
) -> tuple[dict[int, str], str]:
    if by_colour:
        if len(pixels) > MAX_COLOUR_CLASSES:
            lossy = f", {scan.num_lossy:,} of which are JPEG files" if scan.num_lossy else ""
            raise VitrailError(
                f"the {scan.num_scanned:,} masks of {name}{lossy} have {len(pixels):,} or more colours, so that these are no "
                "classes; save masks as PNG, without interpolation, and name the colours in classes.txt: #800000 car"
            )
        return {value: colour_text(value) for value in pixels}, f"named by their colours; {LEGEND_HINT} `#800000 car` per line"
    if scan.num_lossy and len(pixels) > MAX_COLOUR_CLASSES // 4:
        raise VitrailError(
            f"{scan.num_lossy:,} masks of {name} are JPEG files, whose values are changed by compression: there are "
            f"{len(pixels)}; save masks as PNG"
        )
    values = list(pixels)
    if values in ([0, 1], [0, 255]) and not (set(ignore) & {"0", "1", "255"}):
        return dict(zip(values, BINARY_NAMES, strict=True)), f"{values[0]} and {values[1]}"
    if values == [0, 1, 255] and not ignore:
        return {0: BINARY_NAMES[0], 1: BINARY_NAMES[1], 255: "class 255"}, "0 and 1"
    return {value: f"class {value}" for value in values}, f"named by their values; {LEGEND_HINT} `1 car` per line"


# What is ignored -----------------------------------------------------------------------------------------------------


def _border(pixels: Mapping[int, int], named: Mapping[int, str], legend: Legend | None) -> int | None:
    """Return the value that is ignored by custom, 255 or 65535, if it is no class."""
    for border, limit in BORDER_VALUES.items():
        others = [value for value in (named if legend is not None else pixels) if value != border]
        is_class = legend is not None and border in named
        if is_class or (legend is None and _is_level(border, others)):
            continue
        if others and max(others) < limit:
            return border
    return None


def _is_level(border: int, others: Sequence[int]) -> bool:
    """Return whether 255 is the last of evenly spaced levels of grey, or the other of two values."""
    if len(others) < 2:
        return True
    steps = np.diff([*others, border])
    return int(steps.max() - steps.min()) <= 1


def _ignored_values(
    name: str, named: Mapping[int, str], border: int | None, ignore: Sequence[str], by_colour: bool
) -> tuple[int, ...]:
    by_name = {of_value: value for value, of_value in named.items()}
    chosen = {_ignored_value(name, item, by_name, by_colour) for item in ignore if item != NONE_IGNORED}
    if NONE_IGNORED in ignore:
        return tuple(sorted(chosen))
    void = [value for value, of_value in named.items() if of_value.strip().lower().replace("_", " ") in VOID_NAMES]
    return tuple(sorted({*chosen, *void, *([] if border is None else [border])}))


def _ignored_value(name: str, item: str, by_name: Mapping[str, int], by_colour: bool) -> int:
    if item in by_name:
        return by_name[item]
    if by_colour and item.startswith("#") and len(item) == 7:
        return int(item[1:], 16) if all(digit in "0123456789abcdefABCDEF" for digit in item[1:]) else -1
    if not by_colour and item.isdecimal() and int(item) <= MAX_VALUE:
        return int(item)
    what = "a colour such as #000000" if by_colour else f"a value from 0 to {MAX_VALUE}"
    known, hint = ", ".join(list(by_name)[:12]), did_you_mean(item, by_name)
    raise VitrailError(f"ignore must be {what}, or a class of {name} ({known}), got {item!r}{hint}")


# Notes ---------------------------------------------------------------------------------------------------------------


def _describe(
    found: MaskClasses, classes: Sequence[int], ignored: Sequence[int], pixels: Mapping[int, int], scan: ValueScan, how: str
) -> str:
    total = max(sum(pixels.values()), 1)
    shares = [f"{of_value} {pixels.get(value, 0) / total:.1%}" for of_value, value in zip(found.names, classes, strict=True)]
    listed = ", ".join(shares[:12]) + (f" and {len(shares) - 12:,} more" if len(shares) > 12 else "")
    present = [value for value in ignored if pixels.get(value)]
    share = sum(pixels[value] for value in present) / total
    values = " and ".join(found.value_text(value) for value in present[:4])
    left_out = f"{values} ({share:.1%}) is ignored" if present else "no pixel is ignored"
    return f"{len(classes):,} class{'' if len(classes) == 1 else 'es'} of pixels ({how}): {listed}; {left_out}; {scan.coverage}"


def _outside_notes(found: MaskClasses, pixels: Mapping[int, int], legend: Legend | None, is_threshold: bool) -> tuple[str, ...]:
    known = set(found.values.tolist()) | {found.border}
    outside = [value for value in pixels if value not in known]
    if not outside or is_threshold or legend is None:
        return ()
    listed = ", ".join(found.value_text(value) for value in outside[:6]) + (" ..." if len(outside) > 6 else "")
    what = "colours" if found.by_colour else "values"
    return (
        f"masks have {what} that {legend.source} does not name: {listed}; add them, or ignore them: "
        f"ignore={','.join(found.value_text(value) for value in outside[:6])}",
    )


def _doubts(found: MaskClasses, pixels: Mapping[int, int], classes: Sequence[int], legend: Legend | None) -> Iterator[str]:
    """Yield what looks as if values were taken for classes that are none."""
    if legend is None and found.by_colour and len(classes) > 1:
        usual = {palette_colour(index): index for index in range(256)}
        if all(value in usual for value in classes):
            indices = ", ".join(str(usual[value]) for value in classes[:8]) + (" ..." if len(classes) > 8 else "")
            yield f"the colours are those of the usual palette, of the indices {indices}: masks of indices were saved as RGB"
    total = sum(pixels.values())
    rare = sum(pixels.get(value, 0) < RARE_FRACTION * total for value in classes)
    if legend is None and len(classes) > MANY_VALUES and 2 * rare > len(classes):
        yield (
            f"most of the {len(classes):,} values have less than {RARE_FRACTION:.1%} of the pixels each, as shades of "
            "antialiasing or JPEG have, not classes; save masks as PNG, without interpolation"
        )
    for border, limit in BORDER_VALUES.items():
        others = [value for value in classes if value != border]
        if (
            not found.by_colour
            and border in classes
            and len(others) > 1
            and max(others) < limit
            and not _is_level(border, others)
        ):
            share = pixels.get(border, 0) / max(total, 1)
            yield f"{border} is read as a class, with {share:.1%} of the pixels; by custom it is ignored: ignore={border}"
