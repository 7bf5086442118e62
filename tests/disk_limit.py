"""A limit on the size of files, which simulates a full disk."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limit_file_size(max_bytes: int) -> Iterator[None]:
    """Let the operating system refuse writes beyond this size of a file; Python ignores the signal, so they raise OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
