"""A JSON object read member by member, and its lists element by element with their places in the file: a file of gigabytes
takes no more memory than its largest element."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from vitrail.errors import VitrailError

CHUNK = 2**20  # bytes read at a time
SPACES = " \t\r\n"
BYTE_ORDER_MARK = "\xef\xbb\xbf"
Element = tuple[Any, int, int]  # value, and its first byte and the one after its last


class JsonStream:
    """Reads a file of one JSON object once, from the first to the last byte.

    A byte is taken for a character, so that places are those of bytes; a value with other characters is decoded once more.
    """

    def __init__(self, path: Path, file: BinaryIO, max_bytes: float = float("inf")) -> None:
        """``max_bytes``: what comes later is not read."""
        self.path, self.file, self.max_bytes = path, file, max_bytes
        self.digest = hashlib.sha256()
        self.decoder = json.JSONDecoder()
        self.buffer, self.place, self.start = "", 0, 0  # ``start``: byte of the buffer's first character

    @property
    def position(self) -> int:
        return self.start + self.place

    def members(self) -> Iterator[tuple[str, Iterator[Element] | None]]:
        """Yield each key of the object, with the elements of its list, or None if it has another value. A list that is not
        iterated is read on."""
        while len(self.buffer) < len(BYTE_ORDER_MARK) and self._fill():
            pass
        self.place = len(BYTE_ORDER_MARK) if self.buffer.startswith(BYTE_ORDER_MARK) else 0
        self._expect("{", "it must be an object")
        while self._next() != "}":
            key, _, _ = self._value()
            self._expect(":", "a key must have a value")
            if self._next() != "[":
                self._value()
                yield str(key), None
            else:
                elements = self._elements()
                yield str(key), elements
                for _ in elements:
                    pass
            self._separator("}")
        while self._fill():  # the digest is of the whole file
            pass

    def _elements(self) -> Iterator[Element]:
        self._expect("[", "a list begins so")
        while self._next() != "]":
            yield self._value()
            self._separator("]")
        self.place += 1

    def _separator(self, end: str) -> None:
        if self._next() == ",":
            self.place += 1
        elif self._next() != end:
            self._fail(f"there must be a comma or {end}")

    def _expect(self, character: str, reason: str) -> None:
        if self._next() != character:
            self._fail(f"{reason}: {character}")
        self.place += 1

    def _next(self) -> str:
        """Return the next character that is no space, which is not read yet; empty at the end of the file."""
        while True:
            while self.place < len(self.buffer):
                if self.buffer[self.place] not in SPACES:
                    return self.buffer[self.place]
                self.place += 1
            if not self._fill():
                return ""

    def _value(self) -> Element:
        self._next()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.place)
                text = self.buffer[self.place : end]
                value = value if text.isascii() else json.loads(text.encode("latin-1"))
            except ValueError as error:
                if self._fill():
                    continue
                self._fail(str(error).partition(":")[0])
            except RecursionError:
                self._fail("it is nested too deeply")
            if end == len(self.buffer) and self._fill():  # a number may go on
                continue
            begin, self.place = self.position, end
            return value, begin, self.position

    def _fill(self) -> bool:
        """Read on, and forget what has been used; False at the end of the file."""
        is_over = self.start + len(self.buffer) >= self.max_bytes
        chunk = b"" if is_over else self.file.read(max(CHUNK, len(self.buffer) - self.place))
        self.digest.update(chunk)
        self.start += self.place
        self.buffer, self.place = self.buffer[self.place :] + chunk.decode("latin-1"), 0
        return bool(chunk)

    def _fail(self, reason: str) -> NoReturn:
        raise VitrailError(f"{self.path} is not valid JSON at byte {self.position:,}: {reason}; write it again") from None


def read_value(file: BinaryIO, begin: int, end: int) -> Any:
    """Read a value again that lies at these bytes of a file; ValueError if it is not there any more."""
    file.seek(begin)
    return json.loads(file.read(end - begin))
