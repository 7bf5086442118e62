"""A label file of YOLO: a line for each object, its class and the corners of a polygon or a box, as fractions of the image."""

import math
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.bad_image import BadImage
from vitrail.errors import VitrailError

MAX_BYTES = 2**26  # bytes
BOX_NUMBERS = 5  # of a line with a box: class, centre, width and height
MAX_OUTSIDE = 0.1  # of the image: a polygon that reaches further out is not in fractions of it
MAX_BOX_OUTSIDE = 1.0  # likewise of a box, which may lie outside


@dataclass(frozen=True)
class LabelLine:
    """An object: its class, and the corners of its polygon or box, of a box from the left top to the right and around."""

    number: int
    corners: tuple[float, ...]  # x1 y1 x2 y2 ...
    is_box: bool
    line: int  # of the file, from 1

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the box, or of that around a polygon."""
        xs, ys = self.corners[::2], self.corners[1::2]
        return (xs[0], ys[0], xs[2], ys[2]) if self.is_box else (min(xs), min(ys), max(xs), max(ys))

    def polygon(self, size: tuple[int, int]) -> list[float]:
        """Return the corners in pixels of an image of this height and width."""
        height, width = size
        return [place * (height if odd % 2 else width) for odd, place in enumerate(self.corners)]


def label_path(image: Path) -> Path:
    """Return the path of an image's labels: in ``labels`` in place of the last ``images``, else beside it."""
    parts = list(image.parts)
    places = [place for place, part in enumerate(parts[:-1]) if part == "images"]
    if places:
        parts[places[-1]] = "labels"
    return Path(*parts).with_suffix(".txt")


def read_label_text(path: Path) -> str | None:
    """Return the text of a label file; None if there is no such file."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise VitrailError(f"its labels {path} cannot be read: {error}") from None
    if len(text) > MAX_BYTES:
        raise BadImage(f"has labels of more than {MAX_BYTES:,} bytes in {path}; write a line for each object")
    return text


def parse_labels(text: str, path: Path, num_classes: int) -> list[LabelLine]:
    """Return the objects of a label file; an error names the line."""
    lines = []
    for place, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                lines.append(_parse_line(line, place, num_classes))
            except ValueError as error:
                raise BadImage(f"has labels in {path} whose line {place} {error}") from None
    return lines


def _parse_line(line: str, place: int, num_classes: int) -> LabelLine:
    words = line.split()
    try:
        number, numbers = int(float(words[0])), tuple(map(float, words[1:]))
    except (ValueError, OverflowError):
        raise ValueError(f"must have a class and numbers, got {line.strip()[:60]!r}") from None
    if not 0 <= number < num_classes or number != float(words[0]):
        raise ValueError(f"must have a class from 0 to {num_classes - 1}, got {words[0][:20]}")
    is_box = len(words) == BOX_NUMBERS
    if not is_box and (len(numbers) < 6 or len(numbers) % 2):
        raise ValueError(f"must have a class and at least three corners, x and y each, got {len(words)} numbers")
    limit = MAX_BOX_OUTSIDE if is_box else MAX_OUTSIDE
    outside = next((each for each in numbers if not -limit <= each <= 1 + limit and not (is_box and math.isnan(each))), None)
    if outside is not None:
        raise ValueError(f"must have fractions of the image from 0 to 1, got {outside:g}; divide by its width and height")
    if is_box:
        x, y, width, height = numbers
        left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        numbers = (left, top, right, top, right, bottom, left, bottom)
    return LabelLine(number, numbers, is_box, place)
