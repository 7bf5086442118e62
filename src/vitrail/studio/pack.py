"""Binary format of metadata and arrays: a JSON header, then the arrays, which a browser reads as typed arrays without a copy.

Little-endian: four bytes with the header's length, the header, zeros up to a multiple of eight, the arrays, each padded alike.
"""

import json
import struct
from typing import Any

import numpy as np
from numpy import ndarray

KINDS: dict[str, Any] = {"f32": np.dtype("<f4"), "u8": np.dtype("u1"), "i32": np.dtype("<i4")}
WORD = 8


def packed(facts: dict[str, Any], arrays: dict[str, ndarray]) -> bytes:
    described, parts, at = {}, [], 0
    for name, values in arrays.items():
        kind = next((kind for kind, known in KINDS.items() if known == values.dtype), None)
        assert kind is not None, f"{name} is {values.dtype}, which the format does not have"
        described[name] = {"type": kind, "shape": list(values.shape), "offset": at}
        parts.append(_padded(np.ascontiguousarray(values).tobytes()))
        at += len(parts[-1])
    header = json.dumps({"meta": facts, "arrays": described}, allow_nan=False).encode()
    return b"".join([_padded(struct.pack("<I", len(header)) + header), *parts])


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, ndarray]]:
    """Decode like the browser."""
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])
    start = -(-(4 + length) // WORD) * WORD
    arrays = {}
    for name, known in header["arrays"].items():
        count = int(np.prod(known["shape"], dtype=np.int64))
        values = np.frombuffer(content, KINDS[known["type"]], count, start + known["offset"])
        arrays[name] = values.reshape(known["shape"])
    return header["meta"], arrays


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % WORD)
