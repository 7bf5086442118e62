"""No pickle is executed, whatever its name."""

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.weights.hostile.damage import IMAGES, Exploit, load_outcome, read_tensors, refusal_message, save_small, write_tensors
from vitrail.weights.load import load

PICKLES: dict[str, Callable[[Any, Path], object]] = {
    "plain pickle": lambda content, path: path.write_bytes(pickle.dumps(content)),
    "old pickle": lambda content, path: path.write_bytes(pickle.dumps(content, protocol=0)),
    "torch": lambda content, path: torch.save(content, path),
    "legacy torch": lambda content, path: torch.save(content, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors", ".npz"])
@pytest.mark.parametrize("kind", PICKLES)
def test_no_pickle_is_executed_whatever_its_name(kind: str, suffix: str, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    for content in (Exploit(executed), {"cls_token": torch.zeros(3), "epoch": Exploit(executed)}):
        path = tmp_path / f"weights{suffix}"
        PICKLES[kind](content, path)
        assert str(path) in refusal_message(path)
        assert not executed.exists()


@pytest.mark.parametrize("kind", ["torch", "legacy torch"])
def test_the_message_names_what_the_pickle_would_call(kind: str, tmp_path: Path) -> None:
    PICKLES[kind]({"model": Exploit(tmp_path / "executed")}, tmp_path / "weights.pth")
    assert f"would execute code when read ({os.name}.mkdir), which is never done" in refusal_message(tmp_path / "weights.pth")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_no_pickle_in_a_folder_is_executed(name: str, tmp_path: Path) -> None:
    folder = save_small("huggingface", tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(Exploit(tmp_path / "executed"), folder / name)
    assert name in refusal_message(folder)
    assert not (tmp_path / "executed").exists()


def test_no_pickle_in_our_own_folder_is_executed(tmp_path: Path) -> None:
    folder = save_small("vitrail", tmp_path)
    torch.save(Exploit(tmp_path / "executed"), folder / "model.safetensors")
    refusal_message(folder)
    assert not (tmp_path / "executed").exists()


def test_a_legacy_torch_file_is_read(tmp_path: Path) -> None:
    path = save_small("torchvision", tmp_path)
    logits = load(path)(IMAGES)
    torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    assert_close(load(path)(IMAGES), logits, rtol=0, atol=0)


def test_a_pickle_without_tensors_is_refused(tmp_path: Path) -> None:
    contents: list[Any] = [None, 7, "weights", [torch.zeros(2)], torch.zeros(2), {}, {"epoch": 3}, {"model": {}}]
    for content in contents:
        torch.save(content, tmp_path / "weights.pth")
        assert "tensors by name" in refusal_message(tmp_path / "weights.pth")


UNUSUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": Tensor.to_sparse,
    "complex": partial(Tensor.to, dtype=torch.complex64),
    "meta": partial(Tensor.to, device="meta"),
    "quantised": lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:.*quantize")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_tensors_that_are_not_plain_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = save_small("torchvision", tmp_path)
    tensors = read_tensors(path)
    tensors["heads.head.weight"] = UNUSUAL[kind](tensors["heads.head.weight"])
    torch.save(tensors, path)
    assert "head" in refusal_message(path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
def test_unusual_dtypes_are_read_or_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    path = save_small("timm", tmp_path)
    write_tensors(path, {name: tensor.to(dtype) for name, tensor in read_tensors(path).items()})
    assert load_outcome(path) in ("loaded", "refused")
