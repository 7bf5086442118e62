"""An annotation file of Pascal VOC: XML with the size of an image, and for each object its class and the corners of its box.

A file that declares a document type or entities is refused: what they stand for could be larger than the memory.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers.expat import ExpatError, ParserCreate
from xml.parsers.expat import errors as expat_errors

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import MAX_IMAGE_PIXELS

MAX_BYTES = 2**24  # bytes
CORNERS = ("xmin", "ymin", "xmax", "ymax")
ROOT = "annotation"
MAX_HEAD = 2**12  # bytes that tell what a file is


@dataclass(frozen=True)
class VocObject:
    """An object: its class, the corners of its box as the file has them, and whether it is marked as difficult."""

    name: str
    corners: tuple[float, float, float, float]  # xmin, ymin, xmax, ymax
    is_difficult: bool


@dataclass(frozen=True)
class VocFile:
    """The content of an annotation file."""

    size: tuple[int, int]  # height and width, 0 if it does not say
    objects: tuple[VocObject, ...]


def is_voc_file(path: Path) -> bool:
    """Whether a file begins as Pascal VOC's."""
    try:
        with open(path, "rb") as file:
            return f"<{ROOT}".encode() in file.read(MAX_HEAD)
    except OSError:
        return False


def read_voc_file(path: Path) -> VocFile:
    """Read a file; an error is the rest of a sentence about its image, and names the object that is wrong."""
    try:
        root = _parse_xml(_read(path))
        if root.tag != ROOT:
            raise ValueError(f"its root must be {ROOT}, got {root.tag[:40]!r}")
    except OSError as error:
        raise BadImage(f"has annotations {path} that cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BadImage(f"has annotations {path} that cannot be used: {error}") from None
    objects = []
    for number, element in enumerate(root.findall("object"), start=1):
        try:
            objects.append(_object(element))
        except ValueError as error:
            raise BadImage(f"has annotations {path} whose object {number} {error}") from None
    return VocFile(_size(root), tuple(objects))


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"they have more than {MAX_BYTES:,} bytes; write a file for each image")
    return content


def _parse_xml(content: bytes) -> Element:
    """Parse XML without a document type; ValueError for anything else."""
    builder, parser = TreeBuilder(), ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = lambda tag, attributes: builder.start(tag, attributes)
    parser.EndElementHandler, parser.CharacterDataHandler = builder.end, builder.data
    parser.StartDoctypeDeclHandler = _refuse_document_type
    try:
        parser.Parse(content, True)
    except ExpatError as error:
        reason = "it is empty" if not content.strip() else expat_errors.messages[error.code]
        raise ValueError(f"not valid XML, {reason} in line {error.lineno}; write it again") from None
    return builder.close()


def _refuse_document_type(*_: object) -> NoReturn:
    raise ValueError("it declares a document type, which annotations do not need; remove <!DOCTYPE ...>")


def _object(element: Element) -> VocObject:
    name = (element.findtext("name") or "").strip()
    if not name:
        raise ValueError("has no name; write <name>cat</name>")
    box = element.find("bndbox")
    if box is None:
        raise ValueError(f"({name[:40]}) has no bndbox; write one with {', '.join(CORNERS)}")
    left, top, right, bottom = (_number(box, corner) for corner in CORNERS)
    return VocObject(name, (left, top, right, bottom), (element.findtext("difficult") or "").strip() in ("1", "true", "True"))


def _number(box: Element, corner: str) -> float:
    text = box.findtext(corner)
    if text is None:
        raise ValueError(f"has no {corner} in its bndbox; write {', '.join(CORNERS)}")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must have numbers in its bndbox, got {corner} {text.strip()[:40]!r}") from None


def _size(root: Element) -> tuple[int, int]:
    """Return height and width, both 0 if they are missing or not plausible, as tools write that do not know them."""
    sides = []
    for side in ("height", "width"):
        try:
            value = float(root.findtext(f"size/{side}") or 0)
        except ValueError:
            value = 0.0
        sides.append(int(value) if math.isfinite(value) and value > 0 else 0)
    height, width = sides
    return (height, width) if 0 < height * width <= MAX_IMAGE_PIXELS else (0, 0)
