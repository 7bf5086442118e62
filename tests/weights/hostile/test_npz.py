"""Arrays that do not match their headers are refused by name."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.weights.hostile.damage import IMAGES, Exploit, npy_bytes, read_arrays, refusal_message, write_arrays, write_tensors
from vitrail.weights.load import load


def test_column_order_and_big_endian_arrays_have_the_same_values(official: Path) -> None:
    model, arrays = load(official), read_arrays(official)
    changes: list[Callable[[Any], Any]] = [
        np.asfortranarray,
        lambda array: array.astype(">f4"),
        lambda array: np.asfortranarray(array.astype(">f8")),
        lambda array: array.astype("<f8"),
    ]
    for change in changes:
        write_arrays(official, {name: npy_bytes(change(array)) for name, array in arrays.items()})
        assert_close(load(official)(IMAGES), model(IMAGES), rtol=0, atol=0)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_exactly(dtype: torch.dtype, order: Any, official: Path) -> None:
    model = load(official)
    for weight in model.parameters():
        weight.data = weight.data.to(dtype).float()

    def half(array: Any) -> Any:
        tensor = torch.from_numpy(array).to(dtype)
        values = tensor.numpy() if dtype is torch.float16 else tensor.view(torch.int16).numpy().view("V2")
        return np.asarray(values, order=order)

    write_arrays(official, {name: npy_bytes(half(array)) for name, array in read_arrays(official).items()})
    assert_close(load(official)(IMAGES), model(IMAGES), rtol=0, atol=0)


def test_compressed_arrays_are_read(official: Path) -> None:
    model, arrays = load(official), read_arrays(official)
    np.savez_compressed(official, **arrays)
    assert_close(load(official)(IMAGES), model(IMAGES), rtol=0, atol=0)


def test_names_with_path_tricks_are_just_names(official: Path) -> None:
    before = sorted(official.parent.parent.rglob("*"))
    for trick in ("../../evil", "/tmp/evil", "C:\\evil", "..\\evil", "head/../evil", "con", "~/evil"):
        content = {name: npy_bytes(array) for name, array in read_arrays(official).items()}
        path = write_arrays(official.with_name("tricks.npz"), {**content, trick: npy_bytes(np.zeros(3))})
        assert trick in refusal_message(path)
        path.unlink()
    assert sorted(official.parent.parent.rglob("*")) == before


def test_names_cannot_break_the_message(official: Path) -> None:
    for name in ("two\nlines", "\x1b[2Jcleared", "long" * 10_000, "\x07"):
        write_arrays(official, {name: npy_bytes(np.zeros(3))})
        refusal_message(official)
        write_tensors(official.with_suffix(".safetensors"), {name: torch.zeros(3)})
        refusal_message(official.with_suffix(".safetensors"))


def test_objects_in_arrays_are_never_unpickled(official: Path) -> None:
    exploit = np.array([Exploit(official.parent / "executed")], dtype=object)
    arrays: dict[str, Any] = {**read_arrays(official), "head/bias": exploit}
    np.savez(official, **arrays)
    assert "contains Python objects, which are never unpickled" in refusal_message(official)
    assert not (official.parent / "executed").exists()


@pytest.mark.parametrize(
    "header",
    [
        {"shape": (6,)},
        {"shape": (2**40,)},
        {"shape": (2**70,)},
        {"shape": (2**70, 0)},
        {"shape": (-1,)},
        {"shape": (-5, -1)},
        {"shape": (4,)},
        {"shape": (1,) * 100},
        {"shape": "five"},
        {"shape": (5.0,)},
        {"descr": "<f8"},
        {"descr": "<f16", "shape": (1,)},
        {"descr": "<f2"},
        {"descr": "<c8", "shape": (2,)},
        {"descr": "<U5", "shape": (1,)},
        {"descr": "<M8[s]", "shape": (2,)},
        {"descr": "|a4"},
        {"descr": "nonsense"},
        {"descr": [("a", "<f4")]},
        {"descr": [("a", "|u1"), ("b", "|u1")]},
        {"descr": ("<f4", (5,)), "shape": (1,)},
        {"descr": None},
        {"fortran_order": "no"},
    ],
    ids=lambda header: str(header)[:40],
)
def test_an_array_that_does_not_match_its_header_is_refused(header: dict[str, Any], official: Path) -> None:
    content = {name: npy_bytes(array) for name, array in read_arrays(official).items()}
    write_arrays(official, {**content, "head/bias": npy_bytes(np.ones(5, np.float32), **header)})
    assert "head/bias" in refusal_message(official)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
        b"\x93NUMPY\x01\x00\x05\x00'''a\n",
        b"\x93NUMPY\x01\x00\x0b\x00{'a': (1L)}\n",
        b"\x93NUMPY\x01\x00\x06\x00  1\n 2",
        b"\x93NUMPY\x01\x00\xe8\x03" + b"(" * 1000,
        pickle.dumps([1, 2]),
    ],
    ids=lambda content: ascii(content)[:40],
)
def test_an_entry_that_is_not_an_array_is_refused(content: bytes, official: Path) -> None:
    arrays = {name: npy_bytes(array) for name, array in read_arrays(official).items()}
    write_arrays(official, {**arrays, "head/bias": content})
    assert str(official) in refusal_message(official)


def test_empty_arrays_are_refused_by_name(official: Path) -> None:
    content = {name: npy_bytes(array) for name, array in read_arrays(official).items()}
    for dtype in ("<f4", ">f8", "V2"):
        write_arrays(official, {**content, "head/bias": npy_bytes(np.zeros((0, 3), dtype))})
        assert "head/bias" in refusal_message(official)


def test_a_file_that_is_not_a_zip_is_refused(tmp_path: Path) -> None:
    for content in (
        b"",
        b"PK",
        b"PK\x03\x04" + bytes(100),
        b"PK\x05\x06" + b"\xff" * 18,
        b"no zip" * 100,
        npy_bytes(np.zeros(3)),
    ):
        (tmp_path / "weights.npz").write_bytes(content)
        assert "cannot be read" in refusal_message(tmp_path / "weights.npz")


def test_a_wrong_checksum_is_detected(official: Path) -> None:
    bias = read_arrays(official)["head/bias"].tobytes()
    whole = official.read_bytes()
    official.write_bytes(whole.replace(bias, bytes([bias[0] ^ 1]) + bias[1:]))
    assert "head/bias" in refusal_message(official)


def test_a_wrong_checksum_is_detected_also_if_the_header_claims_fewer_bytes(official: Path) -> None:
    path = write_arrays(official, {name: npy_bytes(np.zeros_like(array)) for name, array in read_arrays(official).items()})
    path.write_bytes(path.read_bytes().replace(b"'<f4'", b"'<f2'", 1))
    assert "embedding/kernel" in refusal_message(official)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_broken_compression_is_refused(compression: int, official: Path) -> None:
    content = {name: npy_bytes(array) for name, array in read_arrays(official).items()}
    whole = write_arrays(official, content, compression).read_bytes()
    start = whole.index(b"embedding/kernel.npy") + len("embedding/kernel.npy")
    for offset in (0, 5, 20, 200, 400):
        damaged = bytes(byte ^ 0x55 for byte in whole[start + offset :][:30])
        official.write_bytes(whole[: start + offset] + damaged + whole[start + offset + 30 :])
        assert str(official) in refusal_message(official)
