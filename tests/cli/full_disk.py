"""A full disk, without a new interpreter."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vitrail.cli import main


@contextmanager
def full_disk(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit the size of files: Python ignores the signal, so that writing fails as it does on a full disk."""
    monkeypatch.setattr(main, "_discard_output", lambda: None)  # it closes stdout, which pytest still needs
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
