"""Facts and arrays in one answer: a JSON header, then the numbers as a browser's typed arrays take them, without a copy.

Little-endian: four bytes with the header's length, the header, zeros up to a multiple of eight, the arrays, each so padded.
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
        assert kind is not None, f"{name} is in {values.dtype}, which a browser is not told of"
        described[name] = {"type": kind, "shape": list(values.shape), "at": at}
        parts.append(_padded(np.ascontiguousarray(values).tobytes()))
        at += len(parts[-1])
    header = json.dumps({"facts": facts, "arrays": described}, allow_nan=False).encode()
    return b"".join([_padded(struct.pack("<I", len(header)) + header), *parts])


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, ndarray]]:
    """As the browser does it."""
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])
    start = -(-(4 + length) // WORD) * WORD
    arrays = {}
    for name, known in header["arrays"].items():
        count = int(np.prod(known["shape"], dtype=np.int64))
        values = np.frombuffer(content, KINDS[known["type"]], count, start + known["at"])
        arrays[name] = values.reshape(known["shape"])
    return header["facts"], arrays


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % WORD)
