"""Keys of files and arrays: bytes that change when the content does, without reading more than needed."""

import hashlib
import os
from pathlib import Path

import numpy as np
from numpy import ndarray

MAX_SAMPLED_ROWS = 1000  # rows of an array in memory


def sampled_array_key(values: ndarray) -> bytes:
    """Hash the shape and at most some thousand rows, evenly spaced."""
    return hashlib.sha256(repr(values.shape).encode() + values[:: max(len(values) // MAX_SAMPLED_ROWS, 1)].tobytes()).digest()


def array_key(values: ndarray) -> bytes:
    """Return a key of a whole array: a memory-mapped file, which may be larger than memory, by its stamp and offset."""
    base: object = values
    while isinstance(base, ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if isinstance(base, np.memmap) and base.filename is not None:
        offset = values.ctypes.data - base.ctypes.data
        return file_key(Path(base.filename).absolute()) + repr((values.shape, base.offset, offset)).encode()
    return hashlib.sha256(repr(values.shape).encode() + np.ascontiguousarray(values).tobytes()).digest()


def file_key(path: Path) -> bytes:
    """Return a key of a file: its path, length and times."""
    try:
        status = os.stat(path)
        return os.fsencode(path) + f"\0{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\0".encode()
    except OSError:
        return os.fsencode(path) + b"\0gone\0"
