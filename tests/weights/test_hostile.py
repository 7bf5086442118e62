"""Files that are broken or mean harm: refused in one sentence, with nothing executed and little memory taken."""

import io
import json
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from tests.small import vit
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.weights.checkpoint import save
from vitrail.weights.convert.detect import Origin
from vitrail.weights.load import load

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {"depth": 1, "patch": (5, 5), "image": (10, 10)}
IMAGES = torch.randn(2, 3, 10, 10)
ENOUGH = 1_000  # megabytes at the peak, of which importing torch takes a quarter

FILES: dict[Origin, str] = {
    "official": "official.npz",
    "timm": "timm.safetensors",
    "torchvision": "torchvision.pth",
    "huggingface": "huggingface",
    "vitrail": "own",
}


def refused(source: str | Path, **wishes: Any) -> str:
    """The sentence with which it was refused."""
    with pytest.raises(VitrailError) as caught:
        load(source, **wishes)
    assert _is_sentence(str(caught.value)), str(caught.value)[:2000]
    return str(caught.value)


def verdict(source: str | Path, **wishes: Any) -> str:
    """``loaded``, ``refused``, or what else happened."""
    try:
        load(source, **wishes)
    except VitrailError as error:
        return "refused" if _is_sentence(str(error)) else f"no sentence: {str(error)[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def _is_sentence(text: str) -> bool:
    return text.isprintable() and len(text) < 1000


def make(format: Origin, folder: Path, **changes: Any) -> Path:
    gelu = "exact" if format in ("timm", "torchvision") else "tanh"
    model = vit(**{**SMALL, "gelu": gelu, **changes})
    model.preprocess = Preprocess((10, 10), crop=0.5)
    model.labels = ("ant", "bee", "cat", "dog", "elk")
    return save(model, folder / FILES[format], format=format)


def read(path: Path) -> dict[str, Tensor]:
    match path.suffix:
        case ".npz":
            with np.load(path) as file:
                return {name: torch.from_numpy(file[name]) for name in file.files}
        case ".pth":
            tensors: dict[str, Tensor] = torch.load(path)
            return tensors
        case ".safetensors":
            return load_file(path)
    return load_file(path / "model.safetensors")


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    match path.suffix:
        case ".npz":
            arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
            np.savez(path, **arrays)
        case ".pth":
            torch.save(tensors, path)
        case _:
            file = path / "model.safetensors" if path.is_dir() else path
            save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, file)
    return path


def write_arrays(path: Path, arrays: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(array: Any, **header: Any) -> bytes:
    """An array's bytes under a header that may lie."""
    stream = io.BytesIO()
    order = array.flags.f_contiguous and not array.flags.c_contiguous
    honest = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": order, "shape": array.shape}
    np.lib.format.write_array_header_1_0(stream, {**honest, **header})
    return stream.getvalue() + array.tobytes("A")


def write_safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# Pickles


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.mark),)


PICKLES: dict[str, Callable[[Any, Path], object]] = {
    "plain pickle": lambda content, path: path.write_bytes(pickle.dumps(content)),
    "old pickle": lambda content, path: path.write_bytes(pickle.dumps(content, protocol=0)),
    "torch": lambda content, path: torch.save(content, path),
    "legacy torch": lambda content, path: torch.save(content, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors", ".npz"])
@pytest.mark.parametrize("kind", PICKLES)
def test_no_pickle_is_executed_whatever_it_is_called(kind: str, suffix: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for content in (Evil(mark), {"cls_token": torch.zeros(3), "epoch": Evil(mark)}):
        path = tmp_path / f"weights{suffix}"
        PICKLES[kind](content, path)
        assert str(path) in refused(path)
        assert not mark.exists()


@pytest.mark.parametrize("kind", ["torch", "legacy torch"])
def test_the_sentence_names_what_the_pickle_wanted_to_call(kind: str, tmp_path: Path) -> None:
    PICKLES[kind]({"model": Evil(tmp_path / "executed")}, tmp_path / "weights.pth")
    assert f"wants to run code while being read ({os.name}.mkdir), which is never done" in refused(tmp_path / "weights.pth")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_no_pickle_in_a_folder_is_executed(name: str, tmp_path: Path) -> None:
    folder = make("huggingface", tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(Evil(tmp_path / "executed"), folder / name)
    assert name in refused(folder)
    assert not (tmp_path / "executed").exists()


def test_no_pickle_in_our_own_folder_is_executed(tmp_path: Path) -> None:
    folder = make("vitrail", tmp_path)
    torch.save(Evil(tmp_path / "executed"), folder / "model.safetensors")
    refused(folder)
    assert not (tmp_path / "executed").exists()


def test_a_torch_file_of_the_old_kind_is_read(tmp_path: Path) -> None:
    path = make("torchvision", tmp_path)
    logits = load(path)(IMAGES)
    torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    assert_close(load(path)(IMAGES), logits, rtol=0, atol=0)


def test_a_pickle_without_tensors_is_refused(tmp_path: Path) -> None:
    contents: list[Any] = [None, 7, "weights", [torch.zeros(2)], torch.zeros(2), {}, {"epoch": 3}, {"model": {}}]
    for content in contents:
        torch.save(content, tmp_path / "weights.pth")
        assert "tensors by name" in refused(tmp_path / "weights.pth")


UNUSUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": Tensor.to_sparse,
    "complex": partial(Tensor.to, dtype=torch.complex64),
    "on no device": partial(Tensor.to, device="meta"),
    "quantised": lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:.*quantize")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_tensors_that_are_no_plain_numbers_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = make("torchvision", tmp_path)
    tensors = read(path)
    tensors["heads.head.weight"] = UNUSUAL[kind](tensors["heads.head.weight"])
    torch.save(tensors, path)
    assert "head" in refused(path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
def test_numbers_of_an_unusual_kind_are_read_or_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    path = make("timm", tmp_path)
    write(path, {name: tensor.to(dtype) for name, tensor in read(path).items()})
    assert verdict(path) in ("loaded", "refused")


# .safetensors

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
def test_a_header_that_lies_is_refused(header: Any, length: int | None, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "weights.safetensors", header, bytes(24), length)
    assert str(path) in refused(path)


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    for format in ("official", "timm", "torchvision"):
        path = make(format, tmp_path)
        whole = path.read_bytes()
        for size in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            assert str(path) in refused(path)


@pytest.mark.parametrize("grid", ["0x0", "-2x-2", "2", "x", "2x2x2", "9" * 5000 + "x1", "1e3x1", "２x２", ""])
def test_a_grid_noted_in_a_header_is_not_trusted(grid: str, tmp_path: Path) -> None:
    path = make("timm", tmp_path)
    save_file(read(path), path, metadata={"vitrail.grid": grid})
    assert verdict(path) in ("loaded", "refused")


@pytest.mark.parametrize("heads", ["0", "-3", "7", "9" * 5000, "three", ""])
def test_heads_noted_in_a_header_are_not_trusted(heads: str, tmp_path: Path) -> None:
    path = make("timm", tmp_path)
    save_file(read(path), path, metadata={"vitrail.heads": heads})
    assert verdict(path) in ("loaded", "refused")


# .npz


@pytest.fixture
def official(tmp_path: Path) -> Path:
    return make("official", tmp_path)


def _arrays(path: Path) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in read(path).items()}


def test_arrays_in_column_order_or_with_the_big_end_first_are_the_same_numbers(official: Path) -> None:
    model, arrays = load(official), _arrays(official)
    changes: list[Callable[[Any], Any]] = [
        np.asfortranarray,
        lambda array: array.astype(">f4"),
        lambda array: np.asfortranarray(array.astype(">f8")),
        lambda array: array.astype("<f8"),
    ]
    for change in changes:
        write_arrays(official, {name: npy(change(array)) for name, array in arrays.items()})
        assert_close(load(official)(IMAGES), model(IMAGES), rtol=0, atol=0)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_it_is(dtype: torch.dtype, order: Any, official: Path) -> None:
    model = load(official)
    for weight in model.parameters():
        weight.data = weight.data.to(dtype).float()

    def half(array: Any) -> Any:
        made = torch.from_numpy(array).to(dtype)
        bare = made.numpy() if dtype is torch.float16 else made.view(torch.int16).numpy().view("V2")
        return np.asarray(bare, order=order)

    write_arrays(official, {name: npy(half(array)) for name, array in _arrays(official).items()})
    assert_close(load(official)(IMAGES), model(IMAGES), rtol=0, atol=0)


def test_compressed_arrays_are_read(official: Path) -> None:
    model, arrays = load(official), _arrays(official)
    np.savez_compressed(official, **arrays)
    assert_close(load(official)(IMAGES), model(IMAGES), rtol=0, atol=0)


def test_names_with_path_tricks_are_just_names(official: Path) -> None:
    before = sorted(official.parent.parent.rglob("*"))
    for trick in ("../../evil", "/tmp/evil", "C:\\evil", "..\\evil", "head/../evil", "con", "~/evil"):
        content = {name: npy(array) for name, array in _arrays(official).items()}
        path = write_arrays(official.with_name("tricks.npz"), {**content, trick: npy(np.zeros(3))})
        assert trick in refused(path)
        path.unlink()
    assert sorted(official.parent.parent.rglob("*")) == before


def test_names_cannot_break_the_sentence(official: Path) -> None:
    for name in ("two\nlines", "\x1b[2Jcleared", "long" * 10_000, "\x07"):
        write_arrays(official, {name: npy(np.zeros(3))})
        refused(official)
        write(official.with_suffix(".safetensors"), {name: torch.zeros(3)})
        refused(official.with_suffix(".safetensors"))


def test_objects_in_arrays_are_never_unpacked(official: Path) -> None:
    evil = np.array([Evil(official.parent / "executed")], dtype=object)
    arrays: dict[str, Any] = {**_arrays(official), "head/bias": evil}
    np.savez(official, **arrays)
    assert "holds Python objects, which are never unpacked" in refused(official)
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
def test_an_array_that_is_not_what_its_header_says_is_refused(header: dict[str, Any], official: Path) -> None:
    content = {name: npy(array) for name, array in _arrays(official).items()}
    write_arrays(official, {**content, "head/bias": npy(np.ones(5, np.float32), **header)})
    assert "head/bias" in refused(official)


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
def test_an_entry_that_is_no_array_is_refused(content: bytes, official: Path) -> None:
    arrays = {name: npy(array) for name, array in _arrays(official).items()}
    write_arrays(official, {**arrays, "head/bias": content})
    assert str(official) in refused(official)


def test_arrays_of_no_size_are_refused_by_name(official: Path) -> None:
    content = {name: npy(array) for name, array in _arrays(official).items()}
    for dtype in ("<f4", ">f8", "V2"):
        write_arrays(official, {**content, "head/bias": npy(np.zeros((0, 3), dtype))})
        assert "head/bias" in refused(official)


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"PK", b"PK\x03\x04" + bytes(100), b"PK\x05\x06" + b"\xff" * 18, b"no zip" * 100, npy(np.zeros(3))):
        (tmp_path / "weights.npz").write_bytes(content)
        assert "cannot be read" in refused(tmp_path / "weights.npz")


def test_a_wrong_checksum_is_noticed(official: Path) -> None:
    bias = _arrays(official)["head/bias"].tobytes()
    whole = official.read_bytes()
    official.write_bytes(whole.replace(bias, bytes([bias[0] ^ 1]) + bias[1:]))
    assert "head/bias" in refused(official)


def test_a_wrong_checksum_is_noticed_also_where_the_header_then_asks_for_fewer_bytes(official: Path) -> None:
    path = write_arrays(official, {name: npy(np.zeros_like(array)) for name, array in _arrays(official).items()})
    path.write_bytes(path.read_bytes().replace(b"'<f4'", b"'<f2'", 1))
    assert "embedding/kernel" in refused(official)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_broken_compression_is_refused(compression: int, official: Path) -> None:
    content = {name: npy(array) for name, array in _arrays(official).items()}
    whole = write_arrays(official, content, compression).read_bytes()
    start = whole.index(b"embedding/kernel.npy") + len("embedding/kernel.npy")
    for place in (0, 5, 20, 200, 400):
        damaged = bytes(byte ^ 0x55 for byte in whole[start + place :][:30])
        official.write_bytes(whole[: start + place] + damaged + whole[start + place + 30 :])
        assert str(official) in refused(official)


# Numbers and names


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("format", FILES)
def test_weights_that_are_no_numbers_are_named(format: Origin, number: float, tmp_path: Path) -> None:
    path = make(format, tmp_path)
    tensors = read(path)
    name = next(name for name in tensors if name.endswith(("head/bias", "head.bias", "classifier.bias")))
    tensors[name][3] = number
    assert "is damaged: head.bias has 1 of 5 values that are no numbers" in refused(write(path, tensors))


def test_numbers_too_large_for_single_precision_are_named(official: Path) -> None:
    tensors = read(official)
    tensors["head/bias"] = tensors["head/bias"].double()
    tensors["head/bias"][3] = 1e300
    assert "head.bias" in refused(write(official, tensors))


@pytest.mark.parametrize("format", FILES)
def test_missing_tensors_are_listed(format: Origin, tmp_path: Path) -> None:
    path = make(format, tmp_path)
    tensors = read(path)
    lost = [name for name in tensors if "norm" in name.lower() or "ln_" in name][:2]
    write(path, {name: tensor for name, tensor in tensors.items() if name not in lost})
    sentence = refused(path)
    assert all(name in sentence for name in lost)


@pytest.mark.parametrize("format", FILES)
def test_unexpected_tensors_are_listed(format: Origin, tmp_path: Path) -> None:
    path = make(format, tmp_path)
    sentence = refused(write(path, {**read(path), "rnn.cell": torch.ones(2), "rnn.gate": torch.ones(2)}))
    assert "rnn.cell" in sentence
    assert "rnn.gate" in sentence


@pytest.mark.parametrize("format", FILES)
def test_misshapen_tensors_are_listed(format: Origin, tmp_path: Path) -> None:
    path = make(format, tmp_path)
    tensors = read(path)
    for name in [name for name in tensors if name.endswith("bias") and len(tensors[name]) == 40]:
        tensors[name] = torch.ones(41)
    assert "blocks.0.mlp.up.bias is [41] instead of [40]" in refused(write(path, tensors))


def test_another_architecture_is_refused_with_some_of_its_names(tmp_path: Path) -> None:
    others = {"conv1.weight": torch.zeros(4, 3, 7, 7), "layer1.0.conv1.weight": torch.zeros(4, 4, 3, 3)}
    sentence = refused(write(tmp_path / "resnet.safetensors", others))
    assert "no Vision Transformer that is known here: conv1.weight, layer1.0.conv1.weight" in sentence


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "a single number": lambda tensor: torch.ones(()),
    "one axis": lambda tensor: torch.ones(tensor.numel() + 1),
    "one axis more": lambda tensor: tensor[None],
    "nothing along the first axis": lambda tensor: tensor[:0],
    "nothing along the last axis": lambda tensor: tensor[..., :0],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", FILES)
def test_a_wrong_shape_is_refused_wherever_it_is(format: Origin, shape: str, tmp_path: Path) -> None:
    path = make(format, tmp_path)
    tensors = read(path)
    verdicts = {name: verdict(write(path, {**tensors, name: SHAPES[shape](tensors[name])})) for name in tensors}
    assert verdicts == dict.fromkeys(tensors, "refused")


@pytest.mark.parametrize("format", FILES)
def test_a_missing_tensor_is_noticed_wherever_it_is(format: Origin, tmp_path: Path) -> None:
    path = make(format, tmp_path)
    tensors = read(path)
    verdicts = {name: verdict(write(path, {n: t for n, t in tensors.items() if n != name})) for name in tensors}
    assert set(verdicts.values()) <= {"loaded", "refused"}, verdicts
    assert sum(value == "loaded" for value in verdicts.values()) <= 2  # a file without a class token or a head may be whole


@pytest.mark.parametrize("wishes", [{"image": 20}, {"patch": 3}, {"channels": 1}, {"classes": 7}], ids=str)
@pytest.mark.parametrize("shape", ["missing", *SHAPES])
def test_broken_weights_are_refused_also_on_the_way_to_another_size(shape: str, wishes: dict[str, int], tmp_path: Path) -> None:
    folder = make("vitrail", tmp_path)
    tensors = {name: tensor for name, tensor in read(folder).items() if not name.startswith("head.")}
    verdicts = {}
    for name in tensors:
        others = {n: t for n, t in tensors.items() if n != name}
        broken = others if shape == "missing" else {**others, name: SHAPES[shape](tensors[name])}
        verdicts[name] = verdict(write(folder, broken), **wishes)
    assert verdicts == dict.fromkeys(tensors, "refused")


# Folders and what stands in them


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make("huggingface", tmp_path)


def shard(folder: Path, name: str) -> None:
    """Say that all weights are in one shard of that name."""
    places = dict.fromkeys(read(folder), name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards_are_read_together(folder: Path) -> None:
    model, tensors = load(folder), read(folder)
    places = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for place in set(places.values()):
        save_file({name: tensor for name, tensor in tensors.items() if places[name] == place}, folder / place)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert_close(load(folder)(IMAGES), model(IMAGES), rtol=0, atol=0)


@pytest.mark.parametrize("absolute", [True, False])
def test_shards_outside_the_folder_are_not_opened(absolute: bool, folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    shutil.copy(folder / "model.safetensors", outside)
    name = str(outside) if absolute else "../outside.safetensors"
    shard(folder, name)
    assert f"points outside its folder: {name!r}" in refused(folder)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/",
        "../",
        "./model.safetensors",
        "sub/model.safetensors",
        "/dev/zero",
        "gone.safetensors",
        "config.json",
        "x" * 300 + ".safetensors",
        "\0.safetensors",
        "\ud800.safetensors",
        "a\nb.safetensors",
    ],
    ids=lambda name: ascii(name)[:30],
)
def test_shards_that_are_not_there_are_refused(name: str, folder: Path) -> None:
    shard(folder, name)
    refused(folder)


def test_a_missing_shard_and_a_missing_tensor_are_named(folder: Path) -> None:
    shard(folder, "model-2.safetensors")
    assert "lacks the shard model-2.safetensors" in refused(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"vit.lost": "model.safetensors"}}')
    assert "lack vit.lost" in refused(folder)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}', "{"])
def test_an_index_that_is_none_is_refused(index: str, folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    refused(folder)


def test_a_config_that_brings_code_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", auto_map={"AutoModel": "evil.Model"})
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(folder / 'executed')!r})")
    assert "wants to run code of its own (auto_map), which is never done" in refused(folder)
    assert not (folder / "executed").exists()


def test_a_config_of_another_model_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="bert")
    assert "config.json describes a 'bert'" in refused(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_size", "ten"),
        ("image_size", 0),
        ("image_size", 11_000),
        ("image_size", [10]),
        ("image_size", None),
        ("num_attention_heads", "3"),
        ("num_attention_heads", 3.0),
        ("num_attention_heads", 0),
        ("num_attention_heads", 7),
        ("layer_norm_eps", "small"),
        ("layer_norm_eps", -1),
        ("layer_norm_eps", float("nan")),
        ("layer_norm_eps", 10**400),
        ("hidden_act", "relu"),
        ("hidden_act", ["gelu"]),
        ("hidden_act", {}),
        ("model_type", ["vit"]),
        ("model_type", "v" * 100_000),
        ("hidden_act", "gelu\n" * 1000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_config_with_nonsense_is_refused(key: str, value: Any, folder: Path) -> None:
    edit_json(folder / "config.json", **{key: value})
    refused(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_mean", "grey"),
        ("image_mean", None),
        ("image_mean", [None] * 3),
        ("image_mean", [float("nan")] * 3),
        ("image_mean", [10**400] * 3),
        ("image_mean", []),
        ("image_std", [0, 0, 0]),
        ("image_std", {"r": 1}),
        ("size", {"shortest_edge": 0}),
        ("size", {"shortest_edge": -3}),
        ("size", {"shortest_edge": 3}),
        ("resample", []),
        ("resample", {}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_preprocessor_with_nonsense_is_refused(key: str, value: Any, folder: Path) -> None:
    edit_json(folder / "preprocessor_config.json", **{key: value})
    refused(folder)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors.index.json"])
def test_settings_that_are_huge_deep_or_no_object_are_refused(name: str, folder: Path) -> None:
    for content in (
        "[" * 200_000,
        '{"a":' * 200_000,
        " " * (17 * 2**20),
        "[]",
        "7",
        "",
        "{",
        "\0",
        '{"a": ' + "9" * 5000 + "}",
    ):
        (folder / name).write_text(content)
        assert name in refused(folder)


def test_facts_that_are_deep_or_huge_are_refused(tmp_path: Path) -> None:
    folder = make("vitrail", tmp_path)
    for content in ("[" * 200_000, '{"a":' * 200_000, '{"format": 1, "model": ' + "9" * 5000 + "}"):
        (folder / "vitrail.json").write_text(content)
        assert "vitrail.json" in refused(folder)


NONSENSE: list[Any] = [None, True, -1, 0, 1.5, 10**30, 10**400, float("nan"), float("inf"), "", "many", "a\nb", [], [[]], {}]
NONSENSE += [[-1, -1], [0, 0], [0, 0, 0], ["a", "b", "c"], [None, None, None], [10**400] * 3, {"a": {}}, "x" * 10_000]


def _leaves(content: Any, *above: Any) -> Iterator[tuple[Any, ...]]:
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _leaves(value, *above, key)


def _replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    head, *rest = path
    return {**content, head: _replaced(content[head], tuple(rest), value) if rest else value}


TIMM_CONFIG: dict[str, Any] = {
    "architecture": "vit_small",
    "num_classes": 5,
    "global_pool": "token",
    "label_names": ["a", "b", "c", "d", "e"],
    "model_args": {"num_heads": 3},
    "pretrained_cfg": {
        "input_size": [3, 10, 10],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
}


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("huggingface", "config.json"),
        ("huggingface", "preprocessor_config.json"),
        ("timm", "config.json"),
        ("vitrail", "vitrail.json"),
    ],
)
def test_any_nonsense_in_any_setting_is_overlooked_or_refused(format: Origin, name: str, tmp_path: Path) -> None:
    place = make(format, tmp_path)
    if format == "timm":
        (tmp_path / "timm").mkdir()
        place.rename(tmp_path / "timm" / "model.safetensors")
        place = tmp_path / "timm"
        (place / name).write_text(json.dumps(TIMM_CONFIG))
    content = json.loads((place / name).read_text())
    wrong = {}
    for path in _leaves(content):
        for value in NONSENSE:
            if path[-1] in ("depth", "width") and value in (10**30, 10**400):
                continue  # held against the file below, in a process with a limit
            (place / name).write_text(json.dumps(_replaced(content, path, value)))
            if (outcome := verdict(place)) not in ("loaded", "refused"):
                wrong[f"{'.'.join(path)} = {str(value)[:30]}"] = outcome[:100]
    assert wrong == {}


# Memory and time

BOUNDED = """
import json, os, resource, signal, sys
from vitrail.errors import VitrailError
from vitrail.weights.load import load

for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
        try:
            load(path)
            said = "loaded"
        except VitrailError as error:
            said = f"refused: {error}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(1, (json.dumps({"path": path, "said": said[:1000]}) + "\\n").encode())
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    os.write(1, (json.dumps({"path": path, "megabytes": usage.ru_maxrss // 1024, "status": status}) + "\\n").encode())
"""


def _zeros(path: Path, name: str, size: int, start: bytes = b"") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(name, "w") as entry:
        entry.write(start)
        for _ in range(size // 2**22):
            entry.write(bytes(2**22))


def _npz_bomb(path: Path) -> None:
    _zeros(path, "embedding/kernel.npy", 2**29, npy(np.zeros(0, np.uint8), shape=(2**29,)))


def _npz_bomb_that_lies_about_its_size(path: Path) -> None:
    _npz_bomb(path)
    whole, size = path.read_bytes(), (2**29 + 128).to_bytes(4, "little")
    assert whole.count(size) == 2
    path.write_bytes(whole.replace(size, (1000).to_bytes(4, "little")))


def _npz_that_claims_more(path: Path) -> None:
    write_arrays(path, {"embedding/kernel": npy(np.zeros(5, np.float32), shape=(2**40,))})


def _npz_with_a_long_header(path: Path) -> None:
    write_arrays(path, {"a": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"("}, zipfile.ZIP_DEFLATED)


def _npz_scanned(path: Path, shape: tuple[int, int]) -> None:
    arrays = {"embedding/kernel": np.zeros((5, 5, 3, 24), np.float32), "Transformer/encoderblock/a": np.zeros(shape, np.int8)}
    write_arrays(path, {name: npy(array) for name, array in arrays.items()})


def _safetensors_of_no_size(path: Path, name: str, shape: list[int]) -> None:
    tensors = read(make("timm", path.parent))
    save_file({n: t for n, t in tensors.items() if n != name} | {"empty": torch.zeros(1, 1, 0)}, path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header[name] = {**header.pop("empty"), "shape": shape}
    write_safetensors(path, header, whole[8 + length :])


def _expanded(path: Path) -> None:
    torch.save({**read(make("torchvision", path.parent)), "heads.head.weight": torch.ones(1, 1).expand(2**34, 24)}, path)


def _inside_itself(path: Path) -> None:
    content: dict[str, Any] = {}
    content["model"] = content
    torch.save(content, path)


def _compressed_pickle(path: Path) -> None:
    _zeros(path, "archive/data.pkl", 2**29, b"\x80\x02X" + struct.pack("<I", 2**29))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


def _facts(path: Path, model: dict[str, Any] | None = None, **changes: Any) -> None:
    make("vitrail", path.parent).rename(path)
    facts = json.loads((path / "vitrail.json").read_text())
    edit_json(path / "vitrail.json", model=model or {**facts["model"], **changes})


def _huge_facts(path: Path) -> None:
    _facts(path)
    (path / "vitrail.json").write_text('{"format": 1, "a": [' + "{}," * 2**24 + "{}]}")


BOMBS: dict[str, Callable[[Path], object]] = {
    "zeros.npz": _npz_bomb,
    "lying.npz": _npz_bomb_that_lies_about_its_size,
    "claiming.npz": _npz_that_claims_more,
    "long-header.npz": _npz_with_a_long_header,
    "empty-layers.npz": partial(_npz_scanned, shape=(2**40, 0)),
    "many-layers.npz": partial(_npz_scanned, shape=(2**22, 1)),
    "long-header.safetensors": lambda path: write_safetensors(path, b"{}", length=2**63),
    "claiming.safetensors": lambda path: write_safetensors(
        path, {"a": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}
    ),
    "many-places.safetensors": partial(_safetensors_of_no_size, name="pos_embed", shape=[1, 2**40 + 8, 0]),
    "wide.safetensors": partial(_safetensors_of_no_size, name="blocks.0.mlp.fc1.weight", shape=[2**62, 0]),
    "many-classes.safetensors": partial(_safetensors_of_no_size, name="head.weight", shape=[2**62, 0]),
    "expanded.pth": _expanded,
    "inside-itself.pth": _inside_itself,
    "compressed.pth": _compressed_pickle,
    "deep": partial(_facts, depth=10**9),
    "wide": partial(_facts, width=3 * 2**60),
    "wide-for-its-heads": partial(_facts, width=3 * 2**60 + 1),
    "deeper": partial(_facts, depth=10**30),
    "large": partial(_facts, image=[5 * 10**6, 5 * 10**6]),
    "large-sincos": partial(_facts, position="sincos2d", image=[5 * 10**5, 5 * 10**5]),
    "sincos-of-a-gigabyte": partial(_facts, position="sincos2d", image=[16_500, 16_500]),
    "large-rotary": partial(_facts, position="rotary", image=[5 * 10**5, 5 * 10**5]),
    "large-grid": partial(_facts, position="sincos2d", position_grid=[10**5, 10**5]),
    "large-relative": partial(_facts, position="relative", image=[5 * 10**5, 5 * 10**5]),
    "many-registers": partial(_facts, registers=10**18),
    "deep-resnet": partial(_facts, model={"family": "resnet", "stages": [10**9]}),
    "deep-stem": partial(_facts, patch=[1, 1], image=[8, 8], stem={"stages": [10**9]}),
    "huge-facts": _huge_facts,
}


@pytest.fixture(scope="module")
def fates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each bomb in a process of its own, with ten seconds and six gigabytes of addresses at most."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, plant in BOMBS.items():
        plant(folder / name)
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, *(folder / name for name in BOMBS)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found: dict[str, dict[str, Any]] = {name: {"said": "nothing"} for name in BOMBS}
    for line in map(json.loads, done.stdout.splitlines()):
        found[Path(line["path"]).name] |= line
    return found


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_little_memory_and_time(bomb: str, fates: dict[str, dict[str, Any]]) -> None:
    fate = fates[bomb]
    assert fate["said"].startswith("refused: "), fate
    assert fate["megabytes"] < ENOUGH, fate


# The hub


@pytest.mark.parametrize("kind", ["closed", "silent"])
def test_a_hub_that_does_not_answer_is_given_up_soon(kind: str, tmp_path: Path) -> None:
    script = (
        "from vitrail.errors import VitrailError; from vitrail.weights.load import load\n"
        "try:\n    load('hf:owner/name')\nexcept VitrailError as error:\n    print(error)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        if kind == "closed":
            server.close()
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
            env=environment | {"HF_HOME": str(tmp_path), "HF_ENDPOINT": endpoint},
            cwd=ROOT,
        )
    assert done.stdout == "hf:owner/name cannot be fetched: the hub cannot be reached and the model is not in the cache\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "name",
        "owner/",
        "/name",
        "owner/name/more",
        "../..",
        "owner/..",
        "./name",
        "-owner/name",
        "owner/na me",
        "owner/name\n",
        "owner/name@main",
        "owner\\name",
        "https://evil.example/name",
    ],
)
def test_a_malformed_name_of_the_hub_is_refused(name: str) -> None:
    assert "a model of the hub reads hf:owner/name, got" in refused(f"hf:{name}")


SOURCES = ["", ".", "gone.npz", "gone", "x" * 5000, "a\0b.pth", "/dev/null", "\ud800.npz"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: ascii(source)[:20])
def test_a_source_that_is_no_model_is_refused(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    refused(source)


# Anything else

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
    np.savez_compressed(folder / "compressed.npz", **_arrays(folder / "official.npz"))
    torch.save(read(folder / "torchvision.pth"), folder / "legacy.pth", _use_new_zipfile_serialization=False)
    return folder


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Some bytes changed, most of them in the headers at both ends, and sometimes the rest cut off."""
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
def test_damage_of_any_kind_is_survived(victim: str, damage: Callable[[bytes], bytes], originals: Path) -> None:
    path = originals / victim
    whole = path.read_bytes()
    try:
        path.write_bytes(damage(whole))
        assert verdict(path if path.parent == originals else path.parent) in ("loaded", "refused")
    finally:
        path.write_bytes(whole)
