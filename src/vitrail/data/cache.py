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


def folder() -> Path:
    chosen = os.environ.get("VITRAIL_CACHE")
    try:
        return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail"
    except RuntimeError:
        raise VitrailError("there is no home folder for the cache; set VITRAIL_CACHE to a folder") from None


def recall(kind: str, key: str) -> dict[str, ndarray] | None:
    """Return the arrays stored under this key, or None; a damaged file counts as missing."""
    try:
        with open(_place(kind, key), "rb") as place, np.load(place, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile):  # also if there is no home folder
        return None


def remember(kind: str, key: str, arrays: dict[str, ndarray]) -> None:
    try:
        place = _place(kind, key)
    except VitrailError:
        return
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    half = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(stream.getvalue())
        half.replace(place)
    except OSError:
        with suppress(OSError):
            half.unlink()


def _place(kind: str, key: str) -> Path:
    return folder() / kind / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.npz"
