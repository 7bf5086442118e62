"""Fingerprints of datasets, without reading the images."""

import hashlib
from pathlib import Path

import numpy as np
from numpy import ndarray

from vitrail.data.pack import Ragged
from vitrail.data.sources.hub import Rows
from vitrail.data.sources.parquet import Cells
from vitrail.data.sources.shards import Shards
from vitrail.data.sources.source import Arrays, Files, Part, Source

SAMPLED = 1000  # rows of an array in memory


def identity(source: Source) -> bytes:
    """Return bytes that identify the images: file names, shard checksums, table stamps, array samples, or a formula."""
    match source:
        case Part():
            return identity(source.whole) + source.indices.astype(np.int64).tobytes()
        case Files():
            return "\0".join(str(Path(path)) for path in source.paths).encode(errors="surrogateescape")
        case Arrays():
            return _sampled(source.images)
        case Ragged():
            return _sampled(source.data) + source.starts.tobytes()
        case Shards():
            return source.checksums.tobytes()
        case Cells():
            return repr((str(source.path), source.stamp)).encode()
        case Rows():
            return str(source.rows._fingerprint).encode()
    return repr((source, len(source))).encode()


def fingerprint(*splits: Source) -> str:
    """Hash the class names, labels and images of the splits."""
    digest = hashlib.sha256()
    for source in splits:
        digest.update(repr((source.names, len(source))).encode() + source.labels.tobytes() + identity(source))
    return digest.hexdigest()


def _sampled(values: ndarray) -> bytes:
    return hashlib.sha256(repr(values.shape).encode() + values[:: max(len(values) // SAMPLED, 1)].tobytes()).digest()
