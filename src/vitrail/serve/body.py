"""Read the images of a request body: one as is, or any number as multipart. Limits are enforced while it streams in.

Nothing is written to disk, and a file name from a client is only echoed back, never used as a path.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from vitrail.errors import printable
from vitrail.serve.batcher import Batcher
from vitrail.serve.trouble import Trouble

FORM, STREAM = "multipart/form-data", "application/octet-stream"
PLAIN_CURL = "application/x-www-form-urlencoded"  # curl's default for any body
FIELD = "files"  # parts of this name are images even without a file name
LONGEST = 200  # characters of a file name
NOTHING = "the request has no image; send one as the body, or several as files of a multipart form"
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a malformed form is reported to the client


@dataclass(frozen=True)
class Sent:
    name: str
    content: bytes


async def received(request: Request, batcher: Batcher) -> list[Sent]:
    """Read the images of a request, whose bytes stay reserved with the batcher. Refuses as early as the headers allow."""
    how = batcher.how
    reader = _reader(request, how.queue)
    batcher.check()
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > how.max_body:
        raise _too_large(how.max_body)
    if declared.isdecimal():
        batcher.hold(int(declared))  # a check only: bytes are reserved as they arrive, so that a false header costs nothing
        batcher.hold(-int(declared))
    held = 0
    try:
        async with asyncio.timeout(how.patience):
            async for chunk in request.stream():
                if held + len(chunk) > how.max_body:
                    raise _too_large(how.max_body)
                batcher.hold(len(chunk))
                held += len(chunk)
                reader.write(chunk)
        pictures = reader.pictures()
    except TimeoutError:
        batcher.hold(-held)
        sentence = f"the request was not complete after {how.patience:g} seconds; send it faster, or a smaller one"
        raise Trouble(408, sentence, "slow") from None
    except BaseException:
        batcher.hold(-held)
        raise
    batcher.hold(sum(len(picture.content) for picture in pictures) - held)
    return pictures


class _Reader(Protocol):
    def write(self, chunk: bytes) -> None: ...

    def pictures(self) -> list[Sent]: ...


def _reader(request: Request, most: int) -> _Reader:
    kind, options = parse_options_header(request.headers.get("content-type", STREAM))
    media = kind.decode("latin-1")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Trouble(415, "the body must not be compressed, since images already are; leave Content-Encoding out", "type")
    if media == FORM:
        if not options.get(b"boundary"):
            raise _malformed("its Content-Type names no boundary")
        return _Form(options[b"boundary"], most)
    if media == STREAM or (media.startswith("image/") and len(media) > 6):
        return _Raw()
    hint = "; with curl, add -H 'Content-Type: image/jpeg'" if media == PLAIN_CURL else ""
    raise Trouble(415, f"the body must be {FORM}, image/... or {STREAM}, got {printable(media[:LONGEST])}{hint}", "type")


@dataclass
class _Raw:
    chunks: list[bytes] = field(default_factory=list)

    def write(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def pictures(self) -> list[Sent]:
        content = b"".join(self.chunks)
        if not content:
            raise Trouble(400, NOTHING, "empty")
        return [Sent("image 0", content)]


class _Form:
    """Streaming parser of a multipart form; parts that are not images are skipped."""

    def __init__(self, boundary: bytes, most: int) -> None:
        self._most, self._made, self._whole = most, list[Sent](), False
        self._header, self._value, self._name, self._part = bytearray(), bytearray(), "", list[bytes]()
        self._is_picture = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._headed,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_end": self._finish,
                },
            )
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def write(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def pictures(self) -> list[Sent]:
        if not self._whole:
            raise _malformed("it ends before its last boundary")
        if not self._made:
            raise Trouble(400, NOTHING, "empty")
        return self._made

    def _begin(self) -> None:
        self._part, self._name, self._is_picture = [], "", False

    def _headed(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            name = options.get(b"filename")
            self._is_picture = name is not None or options.get(b"name") == FIELD.encode()
            self._name = _word(name or b"")
        self._header.clear()
        self._value.clear()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_picture:
            self._part.append(data[start:end])

    def _end(self) -> None:
        if not self._is_picture:
            return
        if len(self._made) == self._most:
            raise Trouble(413, f"a request may have at most {self._most} images; send the others in another one", "large")
        self._made.append(Sent(self._name or f"image {len(self._made)}", b"".join(self._part)))
        self._part = []

    def _finish(self) -> None:
        self._whole = True


def _word(name: bytes) -> str:
    try:
        return printable(name.decode())[:LONGEST]
    except UnicodeDecodeError:
        return printable(name.decode("latin-1"))[:LONGEST]


def _too_large(most: int) -> Trouble:
    return Trouble(413, f"the request must have at most {most:,} bytes; send a smaller image, or fewer at a time", "large")


def _malformed(why: str) -> Trouble:
    return Trouble(400, f"the multipart form cannot be read: {printable(why)}", "malformed")
