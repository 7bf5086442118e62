"""A pack has the images it was made of, and a damaged one is noticed (FAULTS 8, 10)."""

import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.data.images import image_bytes, write_class_folders, write_image
from vitrail.data.decode import decode
from vitrail.data.pack_reader import PackedDataset, is_pack, pack_checksum, read_pack
from vitrail.data.pack_writer import write_pack
from vitrail.data.sources.builtin import load_fashion
from vitrail.data.sources.dataset import ArrayDataset, Dataset
from vitrail.data.sources.image_folder import read_image_folder
from vitrail.errors import VitrailError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Dataset]:
    """Images of two sizes in two splits."""
    write_class_folders(tmp_path / "data" / "train", {"a": 5, "b": 4})
    write_class_folders(tmp_path / "data" / "val", {"a": 2, "b": 1}, first=50)
    write_image(tmp_path / "data" / "train" / "b" / "large.jpg", 99, (90, 60))
    return read_image_folder(tmp_path / "data")[0]


def decoded_pixels(dataset: Dataset, index: int) -> np.ndarray:
    content = dataset.read(index)
    return content if isinstance(content, np.ndarray) else np.asarray(decode(content))


def test_images_come_out_as_they_went_in(parts: dict[str, Dataset], tmp_path: Path) -> None:
    built = write_pack(tmp_path / "x.pack", parts, provenance={"source": "here"})
    assert built.counts == {"train": 10, "validation": 3}
    assert built.bytes == (tmp_path / "x.pack").stat().st_size
    packed, provenance = read_pack(tmp_path / "x.pack")
    assert provenance == {"source": "here"}
    assert isinstance(packed["train"], PackedDataset)
    assert isinstance(packed["validation"], ArrayDataset)  # all of one size
    for split, dataset in parts.items():
        assert np.array_equal(packed[split].labels, dataset.labels)
        assert packed[split].class_names == dataset.class_names
        for index in range(len(dataset)):
            assert np.array_equal(decoded_pixels(packed[split], index), decoded_pixels(dataset, index))


def test_any_tool_that_reads_safetensors_reads_a_pack(parts: dict[str, Dataset], tmp_path: Path) -> None:
    write_pack(tmp_path / "x.pack", parts, size=(16, 12))
    tensors = load_file(tmp_path / "x.pack")
    assert tensors["train.pixels"].shape == (10, 16, 12, 3)
    packed = read_pack(tmp_path / "x.pack")[0]["train"]
    assert torch.equal(tensors["train.labels"], torch.from_numpy(packed.labels))
    assert np.array_equal(tensors["train.pixels"].numpy()[3], decoded_pixels(packed, 3))


def test_a_short_side_is_never_exceeded_and_never_enlarged(parts: dict[str, Dataset], tmp_path: Path) -> None:
    write_pack(tmp_path / "x.pack", parts, size=30)
    shapes = {decoded_pixels(read_pack(tmp_path / "x.pack")[0]["train"], index).shape[:2] for index in range(10)}
    assert shapes == {(24, 20), (45, 30)}


def test_stored_files_are_the_files(parts: dict[str, Dataset], tmp_path: Path) -> None:
    write_pack(tmp_path / "x.pack", parts, store="jpeg")
    packed = read_pack(tmp_path / "x.pack")[0]
    assert [packed["train"].read(i) for i in range(10)] == [parts["train"].read(i) for i in range(10)]
    with pytest.raises(VitrailError, match="store must be 'pixels' or 'jpeg', got 'png'"):
        write_pack(tmp_path / "y.pack", parts, store="png")


def test_bad_images_are_skipped_and_reported(parts: dict[str, Dataset], tmp_path: Path) -> None:
    (tmp_path / "data" / "train" / "a" / "2.jpg").write_bytes(b"<html>")
    for keep in ("pixels", "jpeg"):
        built = write_pack(tmp_path / "x.pack", parts, store=keep)
        assert built.counts["train"] == 9
        (sentence,) = built.skipped
        assert "2.jpg cannot be decoded" in sentence
        assert read_pack(tmp_path / "x.pack")[0]["train"].labels.tolist() == [0] * 4 + [1] * 5


def test_the_same_images_make_the_same_pack(parts: dict[str, Dataset], tmp_path: Path) -> None:
    one = write_pack(tmp_path / "1.pack", parts, workers=1)
    two = write_pack(tmp_path / "2.pack", parts, workers=3)
    assert one.sha256 == two.sha256
    assert (tmp_path / "1.pack").read_bytes() == (tmp_path / "2.pack").read_bytes()


def test_grey_stays_grey(tmp_path: Path) -> None:
    test_images = load_fashion("test")
    write_pack(
        tmp_path / "x.pack",
        {"test": ArrayDataset(test_images.images[:7], test_images.labels[:7], test_images.class_names)},
        size=(14, 10),
    )
    packed = read_pack(tmp_path / "x.pack")[0]["test"]
    assert decoded_pixels(packed, 0).shape == (14, 10, 1)


DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "header only": lambda content: content[:100],
    "empty": lambda content: b"",
    "grown": lambda content: content + b"x",
    "a flipped bit": lambda content: content[:-200] + bytes([content[-200] ^ 1]) + content[-199:],
    "a flipped header": lambda content: content[:40] + b"}" + content[41:],
    "a header of any length": lambda content: b"\xff" * 8 + content[8:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_pack_is_noticed(damage: str, parts: dict[str, Dataset], tmp_path: Path) -> None:
    path = tmp_path / "x.pack"
    write_pack(path, parts)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))  # type: ignore[no-untyped-call]
    with pytest.raises(VitrailError, match=r"x.pack (is truncated or too long|is damaged|is not a readable pack).*rebuild it"):
        read_pack(path)


def test_damage_is_noticed_after_the_checksum_was_verified_once(parts: dict[str, Dataset], tmp_path: Path) -> None:
    path = tmp_path / "x.pack"
    write_pack(path, parts)
    read_pack(path)
    content = bytearray(path.read_bytes())
    content[-300] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(VitrailError, match="is damaged: its checksum"):
        read_pack(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda header: header["train.labels"].update(shape=[3]), "is inconsistent"),
        (lambda header: header["train.labels"].update(data_offsets=[0, 80]), "is inconsistent"),
        (lambda header: header.pop("train.labels"), "is inconsistent"),
        (lambda header: header["__metadata__"].update(version="9"), "is a pack of version 9, not 1"),
        (lambda header: header["train.starts"].update(data_offsets=[-8, 80]), "is inconsistent"),
    ],
)
def test_an_inconsistent_header_is_refused(change: object, sentence: str, parts: dict[str, Dataset], tmp_path: Path) -> None:
    path = tmp_path / "x.pack"
    write_pack(path, parts)
    content = path.read_bytes()
    room = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + room])
    change(header)  # type: ignore[operator]
    metadata = {key: value for key, value in header.pop("__metadata__").items() if key != "sha256"}
    data = hashlib.sha256(content[8 + room :]).hexdigest()
    header["__metadata__"] = {**metadata, "sha256": pack_checksum(data, metadata, header)}  # forged with a valid checksum
    path.write_bytes(content[:8] + json.dumps(header).encode().ljust(room) + content[8 + room :])
    with pytest.raises(VitrailError, match=sentence):
        read_pack(path)


FULL_DISK_SCRIPT = """
import resource, sys
from pathlib import Path
from vitrail.data.pack_writer import write_pack
from vitrail.data.sources.builtin import load_fashion
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    write_pack(Path(sys.argv[1]), {"train": load_fashion("train")})
except OSError as error:
    print("refused", error.strerror)
"""


def test_a_full_disk_leaves_the_old_pack_and_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pack"
    few = load_fashion("test")
    write_pack(path, {"test": few})
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", FULL_DISK_SCRIPT, str(path)], capture_output=True, text=True, check=True)
    assert "refused" in done.stdout
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.pack"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2**20


def test_a_pack_is_recognised_by_its_content(tmp_path: Path, parts: dict[str, Dataset]) -> None:
    write_pack(tmp_path / "no-ending", parts)
    assert is_pack(tmp_path / "no-ending")
    (tmp_path / "x.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}              ")
    assert not is_pack(tmp_path / "x.safetensors")
    assert not is_pack(tmp_path / "missing")


def test_large_images_are_downsampled_as_by_pillow(tmp_path: Path) -> None:
    content = image_bytes(3, (400, 300))
    write_image(tmp_path / "data" / "a" / "0.jpg", 3, (400, 300))
    write_pack(tmp_path / "x.pack", {"train": read_image_folder(tmp_path / "data")[0][""]}, size=100)
    (resized,) = (decoded_pixels(dataset, 0) for dataset in read_pack(tmp_path / "x.pack")[0].values())
    exact = np.asarray(decode(content).resize((100, 133), Image.Resampling.BICUBIC))
    assert resized.shape == (133, 100, 3)
    assert np.abs(resized.astype(int) - exact).mean() < 2  # decoded at half the size first, then resized
