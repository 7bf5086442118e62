"""Encoded arrays are what the browser decodes."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from tests.studio.binary import decode_arrays
from vitrail.studio.binary_format import encode_arrays

API_JS = Path(__file__).parents[2] / "src" / "vitrail" / "studio" / "static" / "api.js"
ARRAYS: dict[str, ndarray] = {
    "map": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
    "pixels": np.arange(5, dtype=np.uint8).reshape(5, 1, 1),
    "none": np.zeros((3, 0), np.float32),
    "classes": np.array([-1, 2**31 - 1], np.int32),
}


def test_encoding_round_trips() -> None:
    facts, arrays = decode_arrays(encode_arrays({"text": "Größe", "none": None}, ARRAYS))
    assert facts == {"text": "Größe", "none": None}
    assert list(arrays) == list(ARRAYS)
    for name, values in ARRAYS.items():
        assert arrays[name].dtype == values.dtype
        assert arrays[name].shape == values.shape
        assert (arrays[name] == values).all()


@pytest.mark.parametrize("letters", range(9))
def test_every_array_is_aligned(letters: int) -> None:
    content = encode_arrays({"text": "x" * letters}, ARRAYS)
    length = int.from_bytes(content[:4], "little")
    start = -(-(4 + length) // 8) * 8
    descriptions = json.loads(content[4 : 4 + length])["arrays"]
    assert all((start + description["offset"]) % 8 == 0 for description in descriptions.values())


def test_values_that_json_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_arrays({"loss": float("nan")}, {})
    with pytest.raises(AssertionError, match="float64"):
        encode_arrays({}, {"map": np.zeros(2)})


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; the browser tests decode such responses too")
def test_javascript_decodes_equal_numbers(tmp_path: Path) -> None:
    (tmp_path / "answer").write_bytes(encode_arrays({"text": "Größe"}, ARRAYS))
    (tmp_path / "api.mjs").write_text("globalThis.document = {getElementById: () => null};\n" + API_JS.read_text())
    (tmp_path / "read.mjs").write_text(
        'import {readFileSync} from "node:fs"; import {decodeArrays} from "./api.mjs";\n'
        'const {meta, arrays} = decodeArrays(new Uint8Array(readFileSync("answer")).buffer);\n'
        "const decoded = Object.entries(arrays).map(([name, {shape, data}]) => [name, shape, [...data]]);\n"
        "console.log(JSON.stringify([meta, decoded]));\n"
    )
    done = subprocess.run(["node", "read.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    facts, arrays = json.loads(done.stdout)
    assert facts == {"text": "Größe"}
    for name, shape, values in arrays:
        assert tuple(shape) == ARRAYS[name].shape
        assert values == ARRAYS[name].ravel().tolist()
