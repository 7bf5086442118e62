"""Writer of one tar shard: plain headers with time, owner and group 0, so that the bytes are reproducible."""

import os
import tarfile
from pathlib import Path

from vitrail.data.sources.tar_index import TAR_BLOCK

END_MARKER = bytes(2 * TAR_BLOCK)


class TarWriter:
    """A tar file of images and labels; synced to disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "wb")  # noqa: SIM115

    def fits(self, content: bytes, label: int | None, max_bytes: int) -> bool:
        added = TAR_BLOCK + _pad_to_block(len(content)) + (0 if label is None else 2 * TAR_BLOCK)
        return self.file.tell() + added + len(END_MARKER) <= max_bytes

    def add(self, key: str, extension: str, content: bytes, label: int | None) -> None:
        self._write_member(f"{key}.{extension}", content)
        if label is not None:
            self._write_member(f"{key}.cls", str(label).encode())

    def _write_member(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self.file.write(info.tobuf(tarfile.USTAR_FORMAT))
        self.file.write(content.ljust(_pad_to_block(len(content)), b"\0"))

    def close(self) -> int:
        self.file.write(END_MARKER)
        self.file.flush()
        os.fsync(self.file.fileno())
        length = self.file.tell()
        self.file.close()
        return length


def _pad_to_block(length: int) -> int:
    return -(-length // TAR_BLOCK) * TAR_BLOCK
