"""Binary format of metadata and arrays: a JSON header, then the arrays, which a browser reads as typed arrays without a copy.

Little-endian: four bytes with the header's length, the header, zeros up to a multiple of eight, arrays padded likewise.
"""

import json
import struct
from typing import Any

import numpy as np
from numpy import ndarray

DTYPES: dict[str, Any] = {"f32": np.dtype("<f4"), "u8": np.dtype("u1"), "i32": np.dtype("<i4")}
ALIGNMENT = 8


def encode_arrays(metadata: dict[str, Any], arrays: dict[str, ndarray]) -> bytes:
    descriptions, parts, offset = {}, [], 0
    for name, values in arrays.items():
        kind = next((kind for kind, dtype in DTYPES.items() if dtype == values.dtype), None)
        assert kind is not None, f"{name} is {values.dtype}, which the format does not have"
        descriptions[name] = {"type": kind, "shape": list(values.shape), "offset": offset}
        parts.append(_pad(np.ascontiguousarray(values).tobytes()))
        offset += len(parts[-1])
    header = json.dumps({"meta": metadata, "arrays": descriptions}, allow_nan=False).encode()
    return b"".join([_pad(struct.pack("<I", len(header)) + header), *parts])


def _pad(content: bytes) -> bytes:
    return content + bytes(-len(content) % ALIGNMENT)
