"""On-disk cache of what can be recomputed from the data: ``$VITRAIL_CACHE``, else ``vitrail`` in the user's cache folder.

Losing it only costs time, so a folder that cannot be written is no error.
"""

import hashlib
import io
import os
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy import ndarray

from vitrail.errors import VitrailError
from vitrail.io import atomic_write


def cache_folder() -> Path:
    override = os.environ.get("VITRAIL_CACHE")
    try:
        return Path(override) if override else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail"
    except RuntimeError:
        raise VitrailError("there is no home folder for the cache; set VITRAIL_CACHE to a folder") from None


def load_cached(kind: str, key: str) -> dict[str, ndarray] | None:
    """Return the arrays stored under this key, or None; a damaged file counts as missing."""
    try:
        with open(_cache_path(kind, key), "rb") as stream, np.load(stream, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile):  # also if there is no home folder
        return None


def store_cached(kind: str, key: str, arrays: dict[str, ndarray]) -> None:
    try:
        path = _cache_path(kind, key)
    except VitrailError:
        return
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, stream.getvalue())


def _cache_path(kind: str, key: str) -> Path:
    return cache_folder() / kind / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.npz"
