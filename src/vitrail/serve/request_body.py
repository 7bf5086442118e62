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
from vitrail.serve.errors import RequestError
from vitrail.web.http import read_chunks

MULTIPART, OCTET_STREAM = "multipart/form-data", "application/octet-stream"
URLENCODED = "application/x-www-form-urlencoded"  # curl's default for any body
FILES_FIELD = "files"  # parts of this name are images even without a file name
MAX_NAME_LENGTH = 200  # characters of a file name
NO_IMAGE_MESSAGE = "the request has no image; send one as the body, or several as files of a multipart form"
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a malformed form is reported to the client


@dataclass(frozen=True)
class UploadedImage:
    name: str
    content: bytes


async def read_images(request: Request, batcher: Batcher) -> list[UploadedImage]:
    """Read the images of a request, whose bytes stay reserved with the batcher. Refuses as early as the headers allow."""
    config = batcher.config
    reader = _select_reader(request, config.max_queue)
    batcher.check_admission()
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > config.max_body:
        raise _too_large_error(config.max_body)
    if declared.isdecimal():
        batcher.reserve_bytes(int(declared))  # a check only: bytes are reserved as they arrive, so a false header costs nothing
        batcher.reserve_bytes(-int(declared))
    reserved = 0
    try:
        async with asyncio.timeout(config.read_timeout):
            async for chunk in read_chunks(request, config.max_body, _too_large_error(config.max_body)):
                batcher.reserve_bytes(len(chunk))
                reserved += len(chunk)
                reader.write(chunk)
        images = reader.images()
    except TimeoutError:
        batcher.reserve_bytes(-reserved)
        message = f"the request was not complete after {config.read_timeout:g} seconds; send it faster, or a smaller one"
        raise RequestError(408, message, "slow") from None
    except BaseException:
        batcher.reserve_bytes(-reserved)
        raise
    batcher.reserve_bytes(sum(len(image.content) for image in images) - reserved)
    return images


class _BodyReader(Protocol):
    def write(self, chunk: bytes) -> None: ...

    def images(self) -> list[UploadedImage]: ...


def _select_reader(request: Request, max_images: int) -> _BodyReader:
    content_type, options = parse_options_header(request.headers.get("content-type", OCTET_STREAM))
    media = content_type.decode("latin-1")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError(415, "the body must not be compressed, since images already are; leave Content-Encoding out", "type")
    if media == MULTIPART:
        if not options.get(b"boundary"):
            raise _malformed_error("its Content-Type names no boundary")
        return _FormReader(options[b"boundary"], max_images)
    if media == OCTET_STREAM or (media.startswith("image/") and len(media) > 6):
        return _RawReader()
    hint = "; with curl, add -H 'Content-Type: image/jpeg'" if media == URLENCODED else ""
    raise RequestError(
        415,
        f"the body must be {MULTIPART}, image/... or {OCTET_STREAM}, got {printable(media[:MAX_NAME_LENGTH])}{hint}",
        "type",
    )


@dataclass
class _RawReader:
    chunks: list[bytes] = field(default_factory=list)

    def write(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def images(self) -> list[UploadedImage]:
        content = b"".join(self.chunks)
        if not content:
            raise RequestError(400, NO_IMAGE_MESSAGE, "empty")
        return [UploadedImage("image 0", content)]


class _FormReader:
    """Streaming parser of a multipart form; parts that are not images are skipped."""

    def __init__(self, boundary: bytes, max_images: int) -> None:
        self._max_images, self._images, self._complete = max_images, list[UploadedImage](), False
        self._header, self._value, self._name, self._part = bytearray(), bytearray(), "", list[bytes]()
        self._is_image = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_part_data": self._part_data,
                    "on_part_end": self._end_part,
                    "on_end": self._finish,
                },
            )
        except FormParserError as error:
            raise _malformed_error(str(error)) from None

    def write(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _malformed_error(str(error)) from None

    def images(self) -> list[UploadedImage]:
        if not self._complete:
            raise _malformed_error("it ends before its last boundary")
        if not self._images:
            raise RequestError(400, NO_IMAGE_MESSAGE, "empty")
        return self._images

    def _begin_part(self) -> None:
        self._part, self._name, self._is_image = [], "", False

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            name = options.get(b"filename")
            self._is_image = name is not None or options.get(b"name") == FILES_FIELD.encode()
            self._name = _printable_name(name or b"")
        self._header.clear()
        self._value.clear()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_image:
            self._part.append(data[start:end])

    def _end_part(self) -> None:
        if not self._is_image:
            return
        if len(self._images) == self._max_images:
            raise RequestError(
                413, f"a request may have at most {self._max_images} images; send the others in another one", "large"
            )
        self._images.append(UploadedImage(self._name or f"image {len(self._images)}", b"".join(self._part)))
        self._part = []

    def _finish(self) -> None:
        self._complete = True


def _printable_name(name: bytes) -> str:
    try:
        return printable(name.decode())[:MAX_NAME_LENGTH]
    except UnicodeDecodeError:
        return printable(name.decode("latin-1"))[:MAX_NAME_LENGTH]


def _too_large_error(max_bytes: int) -> RequestError:
    return RequestError(
        413, f"the request must have at most {max_bytes:,} bytes; send a smaller image, or fewer at a time", "large"
    )


def _malformed_error(reason: str) -> RequestError:
    return RequestError(400, f"the multipart form cannot be read: {printable(reason)}", "malformed")
