"""Pictures that somebody has handed in. They are in memory alone, few at a time, and known by the hash of their content."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import PurePosixPath
from threading import Lock
from typing import Any

from vitrail.data.decode import BadPicture, decode
from vitrail.errors import VitrailError, printable

UPLOADS, UPLOAD, ALL_UPLOADS = 20, 2**24, 2**26  # pictures that are held, bytes of one, bytes of all
TITLE = 120  # letters


@dataclass(frozen=True)
class Upload:
    title: str
    content: bytes


class Uploads:
    """From any thread."""

    def __init__(self) -> None:
        self._lock, self._decoding = Lock(), Lock()
        self._held: OrderedDict[str, Upload] = OrderedDict()  # the oldest first

    def __len__(self) -> int:
        return len(self._held)

    def ids(self) -> list[str]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._held))

    def find(self, id: str) -> Upload:
        with self._lock:
            found = self._held.get(id)
        if found is None:
            raise VitrailError(f"{id} was uploaded to an earlier studio, or has made room for newer ones; upload it again")
        return found

    def add(self, name: str, content: bytes) -> dict[str, Any]:
        """Keep a picture, if it is one; the oldest ones go when there are too many."""
        title = shortened(PurePosixPath(name.replace("\\", "/")).name or "picture")
        if len(content) > UPLOAD:
            raise VitrailError(f"{title} has {len(content):,} bytes, more than the {UPLOAD:,} allowed; make it smaller")
        with self._decoding:  # one at a time, since the largest takes hundreds of megabytes for a moment
            width, height = _size(title, content)
        id = f"upload-{hashlib.sha256(content).hexdigest()[:16]}"
        with self._lock:
            self._held.pop(id, None)
            self._held[id] = Upload(title, content)
            while len(self._held) > UPLOADS or sum(len(each.content) for each in self._held.values()) > ALL_UPLOADS:
                self._held.popitem(last=False)
        return {"id": id, "title": title, "width": width, "height": height}


def shortened(text: str) -> str:
    """A title out of anybody's file name."""
    plain = printable(text)
    return plain if len(plain) <= TITLE else f"{plain[: TITLE - 20]}…{plain[-19:]}"


def _size(title: str, content: bytes) -> tuple[int, int]:
    """Width and height when it is upright; all of it is decoded, so that it cannot fail later."""
    try:
        return decode(content).size
    except BadPicture as error:
        raise BadPicture(str(error).replace("the picture", title, 1)) from None
