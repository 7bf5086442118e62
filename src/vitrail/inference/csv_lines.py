"""Lines of a CSV file, as bytes in which file names keep their encoding. Torch-free."""

import csv
import io
from collections.abc import Iterable


def csv_line(cells: Iterable[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)  # with \r\n, so that a name with a single \r is quoted
    return encode_text(text.getvalue().removesuffix("\r\n") + "\n")


def encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which a label read from a file may have
        return text.encode("utf-8", "replace")
