"""A wrong safetensors header is refused."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from tests.weights.hostile.damage import load_outcome, read_tensors, refusal_message, save_small, write_safetensors

HONEST = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"", 2**63),
        (b"", 2**64 - 1),
        (b"{}", 10**9),
        (b"", 0),
        (b"{", None),
        (b"[]", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        ({"a": 1}, None),
        ({"a": {**HONEST, "shape": [2**40, 2**20]}}, None),
        ({"a": {**HONEST, "shape": [2**63, 2**63]}}, None),
        ({"a": {**HONEST, "shape": [-2, -3]}}, None),
        ({"a": {**HONEST, "shape": [2, 4]}}, None),
        ({"a": {**HONEST, "data_offsets": [0, 2**62]}}, None),
        ({"a": {**HONEST, "data_offsets": [24, 0]}}, None),
        ({"a": {**HONEST, "data_offsets": [8, 32]}}, None),
        ({"a": {**HONEST, "dtype": "OBJECT"}}, None),
        ({"a": HONEST, "b": HONEST}, None),
        ({"a": HONEST, "b": {**HONEST, "data_offsets": [12, 36]}}, None),
        ({"a": {**HONEST, "shape": [2**63, 0], "data_offsets": [0, 0]}}, None),
        ({"a": {**HONEST, "shape": [2**64 - 1, 0], "data_offsets": [0, 0]}}, None),
        ({"a": {**HONEST, "shape": [0] * 100, "data_offsets": [0, 0]}}, None),
        ({"a": HONEST, "__metadata__": {"format": ["pt"]}}, None),
    ],
)
def test_a_wrong_header_is_refused(header: Any, length: int | None, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "weights.safetensors", header, bytes(24), length)
    assert str(path) in refusal_message(path)


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    for format in ("official", "timm", "torchvision"):
        path = save_small(format, tmp_path)
        whole = path.read_bytes()
        for size in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            assert str(path) in refusal_message(path)


@pytest.mark.parametrize("grid", ["0x0", "-2x-2", "2", "x", "2x2x2", "9" * 5000 + "x1", "1e3x1", "２x２", ""])
def test_a_grid_recorded_in_a_header_is_not_trusted(grid: str, tmp_path: Path) -> None:
    path = save_small("timm", tmp_path)
    save_file(read_tensors(path), path, metadata={"vitrail.grid": grid})
    assert load_outcome(path) in ("loaded", "refused")


@pytest.mark.parametrize("heads", ["0", "-3", "7", "9" * 5000, "three", ""])
def test_heads_recorded_in_a_header_are_not_trusted(heads: str, tmp_path: Path) -> None:
    path = save_small("timm", tmp_path)
    save_file(read_tensors(path), path, metadata={"vitrail.heads": heads})
    assert load_outcome(path) in ("loaded", "refused")
