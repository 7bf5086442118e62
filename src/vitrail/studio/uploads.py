"""Uploaded images: in memory only, few at a time, identified by the hash of their content."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import PurePosixPath
from threading import Lock
from typing import Any

from vitrail.data.decode import BadPicture, decode
from vitrail.errors import VitrailError, printable

UPLOADS, UPLOAD, ALL_UPLOADS = 20, 2**24, 2**26  # number of images, bytes of one, bytes of all
TITLE = 120  # characters


@dataclass(frozen=True)
class Upload:
    title: str
    content: bytes


class Uploads:
    """Store of uploads, thread-safe."""

    def __init__(self) -> None:
        self._lock, self._decoding = Lock(), Lock()
        self._held: OrderedDict[str, Upload] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._held)

    def ids(self) -> list[str]:
        """Return all ids, newest first."""
        with self._lock:
            return list(reversed(self._held))

    def find(self, id: str) -> Upload:
        with self._lock:
            found = self._held.get(id)
        if found is None:
            raise VitrailError(f"{id} was uploaded to an earlier studio, or replaced by newer ones; upload it again")
        return found

    def add(self, name: str, content: bytes) -> dict[str, Any]:
        """Decode and store an image; the oldest uploads are dropped when there are too many."""
        title = shortened(PurePosixPath(name.replace("\\", "/")).name or "image")
        if len(content) > UPLOAD:
            raise VitrailError(f"{title} has {len(content):,} bytes, more than the {UPLOAD:,} allowed; make it smaller")
        with self._decoding:  # one at a time, since the largest takes hundreds of megabytes
            width, height = _size(title, content)
        id = f"upload-{hashlib.sha256(content).hexdigest()[:16]}"
        with self._lock:
            self._held.pop(id, None)
            self._held[id] = Upload(title, content)
            while len(self._held) > UPLOADS or sum(len(each.content) for each in self._held.values()) > ALL_UPLOADS:
                self._held.popitem(last=False)
        return {"id": id, "title": title, "width": width, "height": height}


def shortened(text: str) -> str:
    """Return a printable title of limited length."""
    plain = printable(text)
    return plain if len(plain) <= TITLE else f"{plain[: TITLE - 20]}…{plain[-19:]}"


def _size(title: str, content: bytes) -> tuple[int, int]:
    """Return the upright width and height; the whole image is decoded, so that it cannot fail later."""
    try:
        return decode(content).size
    except BadPicture as error:
        raise BadPicture(str(error).replace("the image", title, 1)) from None
