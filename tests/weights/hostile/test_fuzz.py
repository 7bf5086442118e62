"""Truncated or changed anywhere, a file is loaded or refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.weights.hostile.damage import FILES, load_outcome, read_arrays, read_tensors, save_small

DAMAGED_FILES = [
    "official.npz",
    "compressed.npz",
    "timm.safetensors",
    "torchvision.pth",
    "legacy.pth",
    "huggingface/config.json",
    "huggingface/preprocessor_config.json",
    "huggingface/model.safetensors",
    "own/vitrail.json",
    "own/model.safetensors",
]
QUICK = ("official.npz", "torchvision.pth", "huggingface/config.json", "own/model.safetensors")  # one of each reader


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    for format in FILES:
        save_small(format, folder, width=8, mlp=12, heads=2)
    np.savez_compressed(folder / "compressed.npz", **read_arrays(folder / "official.npz"))
    torch.save(read_tensors(folder / "torchvision.pth"), folder / "legacy.pth", _use_new_zipfile_serialization=False)
    return folder


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw a damage: some changed bytes, mostly in the headers at both ends, and sometimes a truncation."""
    header_offset = st.integers(0, 3000)
    offsets = st.one_of(header_offset, header_offset.map(lambda offset: -1 - offset), st.integers(0, 2**20))
    values = st.one_of(st.integers(0, 255), st.sampled_from(b"0123456789-.,:eE[]{}()'\"<>|fiubcVO"))
    changes = draw(st.lists(st.tuples(offsets, values), max_size=6))
    cut = draw(st.one_of(st.none(), st.none(), offsets))

    def apply(original: bytes) -> bytes:
        content = bytearray(original)
        for offset, value in changes:
            content[offset % len(original)] = value
        return bytes(content if cut is None else content[: cut % len(original)])

    return apply


@pytest.mark.parametrize(
    "victim", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in DAMAGED_FILES]
)
@settings(max_examples=60, deadline=None)
@given(damage=damage())
def test_any_damage_is_handled(victim: str, damage: Callable[[bytes], bytes], originals: Path) -> None:
    path = originals / victim
    original = path.read_bytes()
    try:
        path.write_bytes(damage(original))
        assert load_outcome(path if path.parent == originals else path.parent) in ("loaded", "refused")
    finally:
        path.write_bytes(original)
