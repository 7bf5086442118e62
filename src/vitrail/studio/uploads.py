"""Uploaded images: in memory only, few at a time, identified by the hash of their content."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import PurePosixPath
from threading import Lock
from typing import Any

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import decode
from vitrail.errors import VitrailError, printable

MAX_UPLOADS, MAX_UPLOAD_BYTES, MAX_TOTAL_BYTES = 20, 2**24, 2**26  # number of images, bytes of one, bytes of all
MAX_TITLE_LENGTH = 120  # characters


@dataclass(frozen=True)
class Upload:
    title: str
    content: bytes


class Uploads:
    """Store of uploads, thread-safe."""

    def __init__(self) -> None:
        self._lock, self._decoding = Lock(), Lock()
        self._uploads: OrderedDict[str, Upload] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._uploads)

    def ids(self) -> list[str]:
        """Return all ids, newest first."""
        with self._lock:
            return list(reversed(self._uploads))

    def find(self, id: str) -> Upload:
        with self._lock:
            upload = self._uploads.get(id)
        if upload is None:
            raise VitrailError(f"{id} was uploaded to an earlier studio, or replaced by newer ones; upload it again")
        return upload

    def add(self, name: str, content: bytes) -> dict[str, Any]:
        """Decode and store an image; the oldest uploads are dropped when there are too many."""
        title = printable_title(PurePosixPath(name.replace("\\", "/")).name or "image")
        if len(content) > MAX_UPLOAD_BYTES:
            raise VitrailError(
                f"{title} has {len(content):,} bytes, more than the {MAX_UPLOAD_BYTES:,} allowed; make it smaller"
            )
        with self._decoding:  # one at a time, since the largest takes hundreds of megabytes
            width, height = _decoded_size(title, content)
        id = f"upload-{hashlib.sha256(content).hexdigest()[:16]}"
        with self._lock:
            self._uploads.pop(id, None)
            self._uploads[id] = Upload(title, content)
            while (
                len(self._uploads) > MAX_UPLOADS
                or sum(len(upload.content) for upload in self._uploads.values()) > MAX_TOTAL_BYTES
            ):
                self._uploads.popitem(last=False)
        return {"id": id, "title": title, "width": width, "height": height}


def printable_title(text: str) -> str:
    """Return a printable title of limited length."""
    title = printable(text)
    return title if len(title) <= MAX_TITLE_LENGTH else f"{title[: MAX_TITLE_LENGTH - 20]}…{title[-19:]}"


def _decoded_size(title: str, content: bytes) -> tuple[int, int]:
    """Return the upright width and height; the whole image is decoded, so that it cannot fail later."""
    try:
        return decode(content).size
    except BadImage as error:
        raise BadImage(str(error).replace("the image", title, 1)) from None
