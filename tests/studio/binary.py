"""Reads the studio's binary format as the browser does."""

import json
import struct
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.studio.binary_format import ALIGNMENT, DTYPES


def decode_arrays(content: bytes) -> tuple[dict[str, Any], dict[str, ndarray]]:
    """Decode like the browser."""
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])
    start = -(-(4 + length) // ALIGNMENT) * ALIGNMENT
    arrays = {}
    for name, description in header["arrays"].items():
        count = int(np.prod(description["shape"], dtype=np.int64))
        values = np.frombuffer(content, DTYPES[description["type"]], count, start + description["offset"])
        arrays[name] = values.reshape(description["shape"])
    return header["meta"], arrays
