"""A small file cannot use much memory or time."""

import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.weights.hostile.damage import (
    MAX_MEGABYTES,
    ROOT,
    edit_json,
    npy_bytes,
    read_tensors,
    save_small,
    write_arrays,
    write_safetensors,
)

LOAD_WITH_LIMITS = """
import json, os, resource, sys
from tests.peak_memory import peak_bytes
from vitrail.errors import VitrailError
from vitrail.weights.load import load

for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
        try:
            load(path)
            outcome = "loaded"
        except VitrailError as error:
            outcome = f"refused: {error}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        result = {"path": path, "outcome": outcome[:1000], "megabytes": peak_bytes() >> 20}
        os.write(1, (json.dumps(result) + "\\n").encode())
        os._exit(0)
    os.waitpid(child, 0)
"""


def _write_zeros(path: Path, name: str, size: int, start: bytes = b"") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(name, "w") as entry:
        entry.write(start)
        for _ in range(size // 2**22):
            entry.write(bytes(2**22))


def _npz_bomb(path: Path) -> None:
    _write_zeros(path, "embedding/kernel.npy", 2**29, npy_bytes(np.zeros(0, np.uint8), shape=(2**29,)))


def _npz_bomb_with_a_wrong_size(path: Path) -> None:
    _npz_bomb(path)
    whole, size = path.read_bytes(), (2**29 + 128).to_bytes(4, "little")
    assert whole.count(size) == 2
    path.write_bytes(whole.replace(size, (1000).to_bytes(4, "little")))


def _npz_that_claims_more(path: Path) -> None:
    write_arrays(path, {"embedding/kernel": npy_bytes(np.zeros(5, np.float32), shape=(2**40,))})


def _npz_with_a_long_header(path: Path) -> None:
    write_arrays(path, {"a": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"("}, zipfile.ZIP_DEFLATED)


def _npz_scanned(path: Path, shape: tuple[int, int]) -> None:
    arrays = {"embedding/kernel": np.zeros((5, 5, 3, 24), np.float32), "Transformer/encoderblock/a": np.zeros(shape, np.int8)}
    write_arrays(path, {name: npy_bytes(array) for name, array in arrays.items()})


def _empty_safetensors(path: Path, name: str, shape: list[int]) -> None:
    tensors = read_tensors(save_small("timm", path.parent))
    save_file({n: t for n, t in tensors.items() if n != name} | {"empty": torch.zeros(1, 1, 0)}, path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header[name] = {**header.pop("empty"), "shape": shape}
    write_safetensors(path, header, whole[8 + length :])


def _expanded(path: Path) -> None:
    torch.save(
        {**read_tensors(save_small("torchvision", path.parent)), "heads.head.weight": torch.ones(1, 1).expand(2**34, 24)}, path
    )


def _self_containing(path: Path) -> None:
    content: dict[str, Any] = {}
    content["model"] = content
    torch.save(content, path)


def _compressed_pickle(path: Path) -> None:
    _write_zeros(path, "archive/data.pkl", 2**29, b"\x80\x02X" + struct.pack("<I", 2**29))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


def _changed_config(path: Path, model: dict[str, Any] | None = None, **changes: Any) -> None:
    save_small("vitrail", path.parent).rename(path)
    metadata = json.loads((path / "vitrail.json").read_text())
    edit_json(path / "vitrail.json", model=model or {**metadata["model"], **changes})


def _huge_metadata(path: Path) -> None:
    _changed_config(path)
    (path / "vitrail.json").write_text('{"format": 1, "a": [' + "{}," * 2**24 + "{}]}")


BOMBS: dict[str, Callable[[Path], object]] = {
    "zeros.npz": _npz_bomb,
    "lying.npz": _npz_bomb_with_a_wrong_size,
    "claiming.npz": _npz_that_claims_more,
    "long-header.npz": _npz_with_a_long_header,
    "empty-layers.npz": partial(_npz_scanned, shape=(2**40, 0)),
    "many-layers.npz": partial(_npz_scanned, shape=(2**22, 1)),
    "long-header.safetensors": lambda path: write_safetensors(path, b"{}", length=2**63),
    "claiming.safetensors": lambda path: write_safetensors(
        path, {"a": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}
    ),
    "many-positions.safetensors": partial(_empty_safetensors, name="pos_embed", shape=[1, 2**40 + 8, 0]),
    "wide.safetensors": partial(_empty_safetensors, name="blocks.0.mlp.fc1.weight", shape=[2**62, 0]),
    "many-classes.safetensors": partial(_empty_safetensors, name="head.weight", shape=[2**62, 0]),
    "expanded.pth": _expanded,
    "inside-itself.pth": _self_containing,
    "compressed.pth": _compressed_pickle,
    "deep": partial(_changed_config, depth=10**9),
    "wide": partial(_changed_config, width=3 * 2**60),
    "wide-for-its-heads": partial(_changed_config, width=3 * 2**60 + 1),
    "deeper": partial(_changed_config, depth=10**30),
    "large": partial(_changed_config, image=[5 * 10**6, 5 * 10**6]),
    "large-sincos": partial(_changed_config, position="sincos2d", image=[5 * 10**5, 5 * 10**5]),
    "sincos-of-a-gigabyte": partial(_changed_config, position="sincos2d", image=[16_500, 16_500]),
    "large-rotary": partial(_changed_config, position="rotary", image=[5 * 10**5, 5 * 10**5]),
    "large-grid": partial(_changed_config, position="sincos2d", position_grid=[10**5, 10**5]),
    "large-relative": partial(_changed_config, position="relative", image=[5 * 10**5, 5 * 10**5]),
    "many-registers": partial(_changed_config, registers=10**18),
    "deep-resnet": partial(_changed_config, model={"family": "resnet", "stages": [10**9]}),
    "deep-stem": partial(_changed_config, patch=[1, 1], image=[8, 8], stem={"stages": [10**9]}),
    "huge-metadata": _huge_metadata,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Load each bomb in a separate process, limited to ten CPU seconds and six gigabytes, and return the outcomes."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, write in BOMBS.items():
        write(folder / name)
    done = subprocess.run(
        [sys.executable, "-c", LOAD_WITH_LIMITS, *(folder / name for name in BOMBS)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    outcomes: dict[str, dict[str, Any]] = {name: {"outcome": "nothing"} for name in BOMBS}
    for line in map(json.loads, done.stdout.splitlines()):
        outcomes[Path(line["path"]).name] |= line
    return outcomes


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_little_memory_and_time(bomb: str, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[bomb]
    assert outcome["outcome"].startswith("refused: "), outcome
    assert outcome["megabytes"] < MAX_MEGABYTES, outcome
