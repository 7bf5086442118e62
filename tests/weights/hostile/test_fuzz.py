"""Truncated or changed anywhere, a file is loaded or refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.weights.hostile.damage import FILES, arrays_of, make, read, verdict

VICTIMS = [
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


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    for format in FILES:
        make(format, folder, width=8, mlp=12, heads=2)
    np.savez_compressed(folder / "compressed.npz", **arrays_of(folder / "official.npz"))
    torch.save(read(folder / "torchvision.pth"), folder / "legacy.pth", _use_new_zipfile_serialization=False)
    return folder


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw a damage: some changed bytes, mostly in the headers at both ends, and sometimes a truncation."""
    near = st.integers(0, 3000)
    places = st.one_of(near, near.map(lambda place: -1 - place), st.integers(0, 2**20))
    values = st.one_of(st.integers(0, 255), st.sampled_from(b"0123456789-.,:eE[]{}()'\"<>|fiubcVO"))
    flips = draw(st.lists(st.tuples(places, values), max_size=6))
    cut = draw(st.one_of(st.none(), st.none(), places))

    def damaged(whole: bytes) -> bytes:
        content = bytearray(whole)
        for place, value in flips:
            content[place % len(whole)] = value
        return bytes(content if cut is None else content[: cut % len(whole)])

    return damaged


@pytest.mark.parametrize("victim", VICTIMS)
@settings(max_examples=60, deadline=None)
@given(damage=damage())
def test_any_damage_is_handled(victim: str, damage: Callable[[bytes], bytes], originals: Path) -> None:
    path = originals / victim
    whole = path.read_bytes()
    try:
        path.write_bytes(damage(whole))
        assert verdict(path if path.parent == originals else path.parent) in ("loaded", "refused")
    finally:
        path.write_bytes(whole)
