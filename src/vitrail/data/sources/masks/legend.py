"""Legends of masks: files that say which value or colour is which class.

A line is a name alone, or with a value (``7 car``, ``7,car``, ``car,7``), with a colour (``64 0 128 car``, ``car,64,0,128``,
``car:64,0,128::``, ``#400080 car``) or with both, the value first. JSON is a list of names or of objects, or an object from
values to names, or from names to values or colours.
"""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError, first_line

LEGEND_NAMES = (
    "classes.txt", "labels.txt", "class_names.txt", "label_colors.txt", "label_colours.txt", "labelmap.txt", "codes.txt",
    "_classes.csv", "classes.csv", "class_dict.csv", "legend.csv", "label_colors.csv", "legend.txt",
    "classes.json", "legend.json", "id2label.json", "label_map.json",
)  # fmt: skip
HEADER_WORDS = ("name", "class", "classes", "class name", "label", "labels", "pixel value", "value", "id", "index", "category")
MAX_LEGEND_BYTES = 2**22  # bytes
HEX_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
JSON_NAMES, JSON_VALUES, JSON_COLOURS = (
    ("name", "label", "class"),
    ("id", "value", "index", "pixel"),
    ("color", "colour", "rgb"),
)
MAX_BYTE = 255


@dataclass(frozen=True)
class LegendClass:
    """A class: its name, and its value or colour in masks if the legend says it."""

    name: str
    value: int | None = None
    colour: int | None = None


@dataclass(frozen=True)
class Legend:
    """The classes in the order of the file; either all have a value or none, and all have a colour or none."""

    source: str
    entries: tuple[LegendClass, ...]

    @property
    def has_values(self) -> bool:
        return self.entries[0].value is not None

    @property
    def has_colours(self) -> bool:
        return self.entries[0].colour is not None


def find_legend(folders: Iterable[Path]) -> Legend | None:
    """Read the first legend in these folders; another that says something else is an error."""
    paths = [folder / name for folder in dict.fromkeys(folders) for name in LEGEND_NAMES if (folder / name).is_file()]
    legends = [read_legend(path) for path in paths]
    for legend in legends[1:]:
        if legend.entries != legends[0].entries and Path(legend.source).name == Path(legends[0].source).name:
            raise VitrailError(f"{legends[0].source} and {legend.source} name different classes; keep one of them")
    return legends[0] if legends else None


def read_legend(path: Path) -> Legend:
    try:
        if path.stat().st_size > MAX_LEGEND_BYTES:
            raise VitrailError(f"{path} must be a legend with one class per line, got a file of {path.stat().st_size:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
        entries = _parse_json(path, json.loads(text)) if path.suffix.lower() == ".json" else _parse_lines(path, text)
    except (OSError, ValueError) as error:
        if isinstance(error, VitrailError):
            raise
        raise VitrailError(f"{path} cannot be read as a legend: {first_line(error)}; write one `value name` per line") from None
    return check_legend(str(path), entries)


def check_legend(source: str, entries: Sequence[LegendClass]) -> Legend:
    """Return a legend if its entries have the same parts and no name, value or colour is there twice."""
    if not entries:
        raise VitrailError(f"{source} names no class; write one `value name` per line, or remove it")
    for what in ("value", "colour"):
        missing = [entry.name for entry in entries if getattr(entry, what) is None]
        if missing and len(missing) < len(entries):
            raise VitrailError(f"{source} gives a {what} to some classes and none to {missing[0]!r}; give one to each")
    for what in ("name", "value", "colour"):
        seen: dict[Any, LegendClass] = {}
        for entry in entries:
            key = getattr(entry, what)
            if key is not None and seen.setdefault(key, entry) is not entry:
                shown = f"#{key:06x}" if what == "colour" else repr(key)
                raise VitrailError(f"{source} has the {what} {shown} twice; give each class its own")
    return Legend(source, tuple(entries))


def _parse_lines(path: Path, text: str) -> list[LegendClass]:
    entries: list[LegendClass] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or re.match(r"\s*#(?![0-9a-fA-F]{6}\b)", line):
            continue
        tokens, is_delimited = _tokens(line)
        if not entries and is_header(tokens):
            continue
        entries.append(_parse_tokens(f"{path}, line {number}", tokens, is_delimited))
    return entries


def is_header(tokens: Sequence[str]) -> bool:
    """Whether a line names columns: words for what a class has, and no number."""
    return tokens[0].lower() in HEADER_WORDS and not any(token.lstrip("-").isdecimal() for token in tokens)


def _tokens(line: str) -> tuple[list[str], bool]:
    """Split a line at its delimiter, else at spaces; numbers with spaces between them are several. Whether it is delimited."""
    first = ":" if re.match(r"[^:,]+:\s*\d+,\d+,\d+", line) else ""
    delimiter = next((each for each in (first, "\t", ",", ";", ":") if each and each in line), None)
    if delimiter is None:
        return line.split(), False
    cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    if delimiter == ":":  # name:r,g,b:parts:actions
        cells = [part for cell in cells[:2] for part in cell.split(",")]
    tokens: list[str] = []
    for cell in cells:
        tokens += cell.split() if re.fullmatch(r"-?\d+(\s+-?\d+)+", cell) else [cell] if cell else []
    return tokens, True


def _parse_tokens(where: str, tokens: list[str], is_delimited: bool) -> LegendClass:
    colour = next((int(token[1:], 16) for token in tokens if HEX_COLOUR.fullmatch(token)), None)
    tokens = [token for token in tokens if not HEX_COLOUR.fullmatch(token)]
    if all(map(_is_number, tokens)) and len(tokens) == 1:
        return LegendClass(tokens[0], None, colour)  # a name that is a number
    first = next((place for place, token in enumerate(tokens) if not _is_number(token)), len(tokens))
    last = len(tokens)
    while last > first and _is_number(tokens[last - 1]):
        last -= 1
    before, after = tokens[:first], tokens[last:]
    if not is_delimited and len(after) not in (0, 3):  # "class 1" is a name
        last, after = len(tokens), []
    numbers, name = [int(token) for token in (*before, *after)], " ".join(tokens[first:last])
    if not name:
        raise VitrailError(f"{where} must have a name, a value or colour and a name, got {' '.join(tokens)[:60]!r}; try 7 car")
    value = numbers.pop(0) if len(numbers) in (1, 4) else None
    if len(numbers) == 3:
        colour = _colour(where, numbers)
    elif numbers:
        raise VitrailError(f"{where} must have one number or a colour of three besides the name, got {len(numbers)} numbers")
    if value is not None and value < 0:
        raise VitrailError(f"{where} must have a value from 0, got {value}; try {-value}")
    return LegendClass(name, value, colour)


def _is_number(token: str) -> bool:
    return re.fullmatch(r"-?\d{1,9}", token) is not None


def _colour(where: str, numbers: Sequence[Any]) -> int:
    if len(numbers) < 3 or not all(isinstance(number, int) and 0 <= number <= MAX_BYTE for number in numbers[:3]):
        raise VitrailError(f"{where} must have a colour of three numbers from 0 to 255, got {list(numbers)}; try 64 0 128")
    red, green, blue = numbers[:3]
    return int(red) << 16 | int(green) << 8 | int(blue)


def _parse_json(path: Path, content: Any) -> list[LegendClass]:
    if isinstance(content, dict) and len(content) == 1 and isinstance(next(iter(content.values())), list | dict):
        inner = next(iter(content.values()))
        content = inner if not _is_entry(inner) else content
    if isinstance(content, list):
        return [_json_entry(f"{path}, entry {number}", None, item) for number, item in enumerate(content, start=1)]
    if isinstance(content, dict):
        return [_json_entry(f"{path}, {key!r}", str(key), item) for key, item in content.items()]
    raise VitrailError(f'{path} must have a list of names, or values and names as {{"0": "road"}}, got {str(content)[:40]!r}')


def _is_entry(item: Any) -> bool:
    return isinstance(item, dict) and any(key in item for key in JSON_NAMES)


def _json_entry(where: str, key: str | None, item: Any) -> LegendClass:
    """Return the class of an item of a list, or of an object, whose key is its value or its name."""
    value = int(key) if key is not None and _is_number(key) else None
    name = None if value is not None else key
    if isinstance(item, str) and HEX_COLOUR.fullmatch(item) and name is not None:
        return LegendClass(name, None, int(item[1:], 16))
    if isinstance(item, str):
        return LegendClass(item, int(name) if name is not None and _is_number(name) else value)
    if isinstance(item, int) and not isinstance(item, bool) and name is not None:
        return LegendClass(name, item)
    if isinstance(item, list) and name is not None:
        return LegendClass(name, None, _colour(where, item))
    if isinstance(item, Mapping):
        return _json_object(where, value, name, item)
    raise VitrailError(f'{where} must name a class, got {str(item)[:40]!r}; try {{"0": "road", "1": "car"}}')


def _json_object(where: str, value: int | None, name: str | None, item: Mapping[str, Any]) -> LegendClass:
    lower = {str(field).lower(): content for field, content in item.items()}
    found = name or next((str(lower[field]) for field in JSON_NAMES if field in lower), None)
    number = next((lower[field] for field in JSON_VALUES if isinstance(lower.get(field), int)), value)
    colour = next((lower[field] for field in JSON_COLOURS if field in lower), None)
    if found is None:
        raise VitrailError(f'{where} must have a name, got the fields {", ".join(lower)[:60]}; try {{"id": 7, "name": "car"}}')
    if isinstance(colour, str) and HEX_COLOUR.fullmatch(colour):
        return LegendClass(found, number, int(colour[1:], 16))
    return LegendClass(found, number, None if colour is None else _colour(where, list(colour)))
