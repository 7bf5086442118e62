"""Writer of one tar shard: plain headers with time, owner and group 0, so that the bytes are reproducible."""

import os
import tarfile
from pathlib import Path

from vitrail.data.sources.tar import BLOCK

END = bytes(2 * BLOCK)


class Shard:
    """A tar file of images and labels; synced to disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "wb")  # noqa: SIM115

    def fits(self, content: bytes, label: int | None, size: int) -> bool:
        more = BLOCK + _padded(len(content)) + (0 if label is None else 2 * BLOCK)
        return self.file.tell() + more + len(END) <= size

    def add(self, key: str, ending: str, content: bytes, label: int | None) -> None:
        self._member(f"{key}.{ending}", content)
        if label is not None:
            self._member(f"{key}.cls", str(label).encode())

    def _member(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self.file.write(info.tobuf(tarfile.USTAR_FORMAT))
        self.file.write(content.ljust(_padded(len(content)), b"\0"))

    def close(self) -> int:
        self.file.write(END)
        self.file.flush()
        os.fsync(self.file.fileno())
        length = self.file.tell()
        self.file.close()
        return length


def _padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK
