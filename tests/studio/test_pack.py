"""What is packed is what the browser reads."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from vitrail.studio.pack import packed, unpacked

NET = Path(__file__).parents[2] / "src" / "vitrail" / "studio" / "static" / "net.js"
ARRAYS: dict[str, ndarray] = {
    "map": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
    "pixels": np.arange(5, dtype=np.uint8).reshape(5, 1, 1),
    "none": np.zeros((3, 0), np.float32),
    "classes": np.array([-1, 2**31 - 1], np.int32),
}


def test_what_is_packed_comes_out_again() -> None:
    facts, arrays = unpacked(packed({"words": "Größe", "none": None}, ARRAYS))
    assert facts == {"words": "Größe", "none": None}
    assert list(arrays) == list(ARRAYS)
    for name, values in ARRAYS.items():
        assert arrays[name].dtype == values.dtype
        assert arrays[name].shape == values.shape
        assert (arrays[name] == values).all()


@pytest.mark.parametrize("letters", range(9))
def test_every_array_begins_where_a_typed_array_may(letters: int) -> None:
    content = packed({"words": "x" * letters}, ARRAYS)
    length = int.from_bytes(content[:4], "little")
    start = -(-(4 + length) // 8) * 8
    places = json.loads(content[4 : 4 + length])["arrays"]
    assert all((start + place["at"]) % 8 == 0 for place in places.values())


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        packed({"loss": float("nan")}, {})
    with pytest.raises(AssertionError, match="float64"):
        packed({}, {"map": np.zeros(2)})


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node; the browser tests read such answers too")
def test_javascript_reads_the_same_numbers(tmp_path: Path) -> None:
    (tmp_path / "answer").write_bytes(packed({"words": "Größe"}, ARRAYS))
    (tmp_path / "net.mjs").write_text("globalThis.document = {getElementById: () => null};\n" + NET.read_text())
    (tmp_path / "read.mjs").write_text(
        'import {readFileSync} from "node:fs"; import {unpack} from "./net.mjs";\n'
        'const {facts, arrays} = unpack(new Uint8Array(readFileSync("answer")).buffer);\n'
        "const told = Object.entries(arrays).map(([name, {shape, data}]) => [name, shape, [...data]]);\n"
        "console.log(JSON.stringify([facts, told]));\n"
    )
    done = subprocess.run(["node", "read.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    facts, arrays = json.loads(done.stdout)
    assert facts == {"words": "Größe"}
    for name, shape, values in arrays:
        assert tuple(shape) == ARRAYS[name].shape
        assert values == ARRAYS[name].ravel().tolist()
