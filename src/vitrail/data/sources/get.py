"""``vitrail data download``: well-known datasets as pack files. n images, h high, w wide, c channels.

Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from Debian's package or by download, CIFAR-10 and CIFAR-100 (Krizhevsky 2009) by
download, in their binary versions: no pickle is read. A file is verified against its published checksum before it is opened.
"""

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from einops import rearrange
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.pack import read_pack
from vitrail.data.packing import write_pack
from vitrail.data.sources.builtin import FASHION
from vitrail.data.sources.download import Remote, fetch
from vitrail.data.sources.source import Arrays, Progress, Source
from vitrail.errors import VitrailError, suggestion

TORONTO = "https://www.cs.toronto.edu/~kriz"
HERE = ("fashion", "panes")  # no download needed
ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"


@dataclass(frozen=True)
class Set:
    """The files of a public dataset and how to read them."""

    files: tuple[Remote, ...]
    read: Callable[[Path, tuple[Remote, ...]], dict[str, Source]]
    pictures: str = ""
    licence: str = ""
    installed: Path | None = None  # where a system package installs them
    package: str = ""

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def address(self) -> str:
        """The URL of the folder with its files."""
        return self.files[0].address.rpartition("/")[0]


def get(name: str, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a dataset to ``folder/NAME.pack``; by default in Vitrail's cache, where it is found by name."""
    if name in HERE:
        raise VitrailError(f"{name} comes with Vitrail and needs no download; the datasets to download are {', '.join(SETS)}")
    if name not in SETS:
        raise VitrailError(f"the datasets to download are {', '.join(SETS)}, got {name!r}{suggestion(name, SETS)}")
    folder, wanted = folder or cache.folder() / "datasets", SETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    target = place_of(name, folder)
    if _is_whole(target, progress):
        return target
    place, fetched = folder, list[Path]()
    if wanted.installed and all((wanted.installed / file.name).is_file() for file in wanted.files):
        place = wanted.installed
    else:
        again = f"vitrail data download {name}"
        new = [file for file in wanted.files if fetch(file, folder, again, wanted.package, progress)]
        fetched = [folder / file.name for file in new]
    provenance = {"dataset": name, "files": {file.address: file.sha256 for file in wanted.files}}
    write_pack(target, wanted.read(place, wanted.files), provenance=provenance, progress=progress)
    for path in fetched:  # files put there by hand stay
        path.unlink()
    return target


def place_of(name: str, folder: Path | None = None) -> Path:
    """Return where the pack of a dataset is, or will be."""
    return (folder or cache.folder() / "datasets") / f"{name}.pack"


def _is_whole(target: Path, progress: Progress | None) -> bool:
    try:
        return target.is_file() and bool(read_pack(target, progress))
    except VitrailError:
        return False


def idx(content: bytes, where: object) -> ndarray:
    """Parse MNIST's idx format: two zeros, the type (8: bytes), the number of axes, their lengths, the values."""
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    sizes = [int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes)]
    expected = 4 + 4 * axes + int(np.prod(sizes, dtype=object))
    if not axes or len(content) != expected:
        raise VitrailError(f"{where} is not an idx file of bytes, or is truncated: {len(content):,} bytes; download it again")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(sizes)


def _fashion(folder: Path, files: tuple[Remote, ...]) -> dict[str, Source]:
    arrays = {file.name.split("-ubyte")[0]: idx(_unpacked(folder / file.name, file), folder / file.name) for file in files}
    parts: dict[str, Source] = {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        images, labels = arrays[f"{stem}-images-idx3"], arrays[f"{stem}-labels-idx1"]
        if images.ndim != 3 or labels.shape != images.shape[:1] or labels.max(initial=0) >= len(FASHION):
            raise VitrailError(
                f"{folder} has images {images.shape} and labels {labels.shape} that do not match; download them again"
            )
        parts[split] = Arrays(images[..., None], labels.astype(np.int64), FASHION, f"fashion-mnist ({split})")
    return parts


def _unpacked(path: Path, file: Remote) -> bytes:
    try:
        with gzip.open(path) as stream:
            content = stream.read(2**26)  # more than the largest file
    except (OSError, EOFError, zlib.error) as error:
        raise VitrailError(f"{path} cannot be unpacked ({error}); download it again") from None
    if file.unpacked and hashlib.sha256(content).hexdigest() != file.unpacked:
        raise VitrailError(
            f"{path} is not the published file (the SHA-256 of its content differs); reinstall or download it again"
        )
    return content


def _cifar10(folder: Path, files: tuple[Remote, ...]) -> dict[str, Source]:
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return _cifar(folder / files[0].name, {"train": batches, "test": ["test_batch.bin"]}, "batches.meta.txt", 1)


def _cifar100(folder: Path, files: tuple[Remote, ...]) -> dict[str, Source]:
    return _cifar(folder / files[0].name, {"train": ["train.bin"], "test": ["test.bin"]}, "fine_label_names.txt", 2)


def _cifar(archive: Path, splits: dict[str, list[str]], names: str, labels: int) -> dict[str, Source]:
    members = _members(archive, [names, *(name for split in splits.values() for name in split)])
    classes = tuple(line.strip() for line in members[names].decode(errors="replace").splitlines() if line.strip())
    parts: dict[str, Source] = {}
    for split, batches in splits.items():
        images, numbers = cifar_records(b"".join(members[name] for name in batches), labels, f"{archive} ({split})")
        if numbers.max(initial=0) >= len(classes):
            raise VitrailError(f"{archive} has labels up to {numbers.max()} for {len(classes)} class names; download it again")
        parts[split] = Arrays(images, numbers, classes, f"{archive.name.split('-binary')[0]} ({split})")
    return parts


def cifar_records(content: bytes, labels: int, where: object) -> tuple[ndarray, ndarray]:
    """Parse images (n h w c) and labels (n). A record is one or two labels, the finest last, and one plane per channel."""
    if not content or len(content) % (labels + 3072):
        raise VitrailError(
            f"{where} is not a whole number of records of {labels + 3072} bytes: {len(content):,}; download it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, labels + 3072)
    images = rearrange(records[:, labels:], "n (c h w) -> n h w c", c=3, h=32)
    return np.ascontiguousarray(images), records[:, labels - 1].astype(np.int64)


def _members(archive: Path, names: list[str]) -> dict[str, bytes]:
    """Read members of an archive by base name, in memory: nothing is written."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|gz") as file:
            for info in file:
                stream = file.extractfile(info) if info.isreg() and os.path.basename(info.name) in names else None
                if stream and info.size < 2**28:
                    found[os.path.basename(info.name)] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise VitrailError(f"{archive} cannot be unpacked ({error}); download it again") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise VitrailError(f"{archive} has no {missing[0]}; download it again")
    return found


UNSAID = "none stated; its authors ask to be cited (Krizhevsky 2009)"

SETS = {
    "fashion-mnist": Set(
        (
            Remote(
                f"{ZALANDO}/train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            Remote(
                f"{ZALANDO}/train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            Remote(
                f"{ZALANDO}/t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            Remote(
                f"{ZALANDO}/t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        _fashion,
        "60,000 + 10,000, 28 x 28, grey, 10 classes",
        "MIT",
        Path("/usr/share/datasets/fashion-mnist"),
        "dataset-fashion-mnist",
    ),
    "cifar10": Set(
        (
            Remote(
                f"{TORONTO}/cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        _cifar10,
        "50,000 + 10,000, 32 x 32, 10 classes",
        UNSAID,
    ),
    "cifar100": Set(
        (
            Remote(
                f"{TORONTO}/cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        _cifar100,
        "50,000 + 10,000, 32 x 32, 100 classes",
        UNSAID,
    ),
}
