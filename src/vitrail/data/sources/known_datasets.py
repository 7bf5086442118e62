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
from vitrail.data.pack_reader import read_pack
from vitrail.data.pack_writer import write_pack
from vitrail.data.sources.builtin import FASHION_CLASSES
from vitrail.data.sources.dataset import ArrayDataset, Dataset, Progress
from vitrail.data.sources.download import RemoteFile, download_file
from vitrail.errors import VitrailError, did_you_mean

CIFAR_URL = "https://www.cs.toronto.edu/~kriz"
BUILT_IN = ("fashion", "panes")  # no download needed
FASHION_MNIST_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"


@dataclass(frozen=True)
class KnownDataset:
    """The files of a public dataset and how to read them."""

    files: tuple[RemoteFile, ...]
    load: Callable[[Path, tuple[RemoteFile, ...]], dict[str, Dataset]]
    summary: str = ""
    licence: str = ""
    system_folder: Path | None = None  # where a system package installs them
    system_package: str = ""

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def url(self) -> str:
        """The URL of the folder with its files."""
        return self.files[0].url.rpartition("/")[0]


def download_dataset(name: str, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a dataset to ``folder/NAME.pack``; by default in Vitrail's cache, where it is found by name."""
    if name in BUILT_IN:
        raise VitrailError(
            f"{name} comes with Vitrail and needs no download; the datasets to download are {', '.join(KNOWN_DATASETS)}"
        )
    if name not in KNOWN_DATASETS:
        raise VitrailError(
            f"the datasets to download are {', '.join(KNOWN_DATASETS)}, got {name!r}{did_you_mean(name, KNOWN_DATASETS)}"
        )
    folder, dataset = folder or cache.cache_folder() / "datasets", KNOWN_DATASETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    target = pack_path(name, folder)
    if _is_complete(target, progress):
        return target
    source_folder, downloaded = folder, list[Path]()
    if dataset.system_folder and all((dataset.system_folder / file.name).is_file() for file in dataset.files):
        source_folder = dataset.system_folder
    else:
        command = f"vitrail data download {name}"
        new_files = [file for file in dataset.files if download_file(file, folder, command, dataset.system_package, progress)]
        downloaded = [folder / file.name for file in new_files]
    provenance = {"dataset": name, "files": {file.url: file.sha256 for file in dataset.files}}
    write_pack(target, dataset.load(source_folder, dataset.files), provenance=provenance, progress=progress)
    for path in downloaded:  # files put there by hand stay
        path.unlink()
    return target


def pack_path(name: str, folder: Path | None = None) -> Path:
    """Return where the pack of a dataset is, or will be."""
    return (folder or cache.cache_folder() / "datasets") / f"{name}.pack"


def _is_complete(target: Path, progress: Progress | None) -> bool:
    try:
        return target.is_file() and bool(read_pack(target, progress))
    except VitrailError:
        return False


def parse_idx(content: bytes, name: object) -> ndarray:
    """Parse MNIST's idx format: two zeros, the type (8: bytes), the number of axes, their lengths, the values."""
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    sizes = [int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes)]
    expected = 4 + 4 * axes + int(np.prod(sizes, dtype=object))
    if not axes or len(content) != expected:
        raise VitrailError(f"{name} is not an idx file of bytes, or is truncated: {len(content):,} bytes; download it again")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(sizes)


def _load_fashion_mnist(folder: Path, files: tuple[RemoteFile, ...]) -> dict[str, Dataset]:
    arrays = {file.name.split("-ubyte")[0]: parse_idx(_unpack(folder / file.name, file), folder / file.name) for file in files}
    splits: dict[str, Dataset] = {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        images, labels = arrays[f"{stem}-images-idx3"], arrays[f"{stem}-labels-idx1"]
        if images.ndim != 3 or labels.shape != images.shape[:1] or labels.max(initial=0) >= len(FASHION_CLASSES):
            raise VitrailError(
                f"{folder} has images {images.shape} and labels {labels.shape} that do not match; download them again"
            )
        splits[split] = ArrayDataset(images[..., None], labels.astype(np.int64), FASHION_CLASSES, f"fashion-mnist ({split})")
    return splits


def _unpack(path: Path, file: RemoteFile) -> bytes:
    try:
        with gzip.open(path) as stream:
            content = stream.read(2**26)  # more than the largest file
    except (OSError, EOFError, zlib.error) as error:
        raise VitrailError(f"{path} cannot be unpacked ({error}); download it again") from None
    if file.unpacked_sha256 and hashlib.sha256(content).hexdigest() != file.unpacked_sha256:
        raise VitrailError(
            f"{path} is not the published file (the SHA-256 of its content differs); reinstall or download it again"
        )
    return content


def _load_cifar10(folder: Path, files: tuple[RemoteFile, ...]) -> dict[str, Dataset]:
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return _load_cifar(folder / files[0].name, {"train": batches, "test": ["test_batch.bin"]}, "batches.meta.txt", 1)


def _load_cifar100(folder: Path, files: tuple[RemoteFile, ...]) -> dict[str, Dataset]:
    return _load_cifar(folder / files[0].name, {"train": ["train.bin"], "test": ["test.bin"]}, "fine_label_names.txt", 2)


def _load_cifar(archive: Path, splits: dict[str, list[str]], names_file: str, num_labels: int) -> dict[str, Dataset]:
    members = _read_members(archive, [names_file, *(name for split in splits.values() for name in split)])
    class_names = tuple(line.strip() for line in members[names_file].decode(errors="replace").splitlines() if line.strip())
    datasets: dict[str, Dataset] = {}
    for split, batches in splits.items():
        images, encoded_labels = parse_cifar_records(
            b"".join(members[name] for name in batches), num_labels, f"{archive} ({split})"
        )
        if encoded_labels.max(initial=0) >= len(class_names):
            raise VitrailError(
                f"{archive} has labels up to {encoded_labels.max()} for {len(class_names)} class names; download it again"
            )
        datasets[split] = ArrayDataset(images, encoded_labels, class_names, f"{archive.name.split('-binary')[0]} ({split})")
    return datasets


def parse_cifar_records(content: bytes, num_labels: int, name: object) -> tuple[ndarray, ndarray]:
    """Parse images (n h w c) and labels (n). A record is one or two labels, the finest last, and one plane per channel."""
    if not content or len(content) % (num_labels + 3072):
        raise VitrailError(
            f"{name} is not a whole number of records of {num_labels + 3072} bytes: {len(content):,}; download it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, num_labels + 3072)
    images = rearrange(records[:, num_labels:], "n (c h w) -> n h w c", c=3, h=32)
    return np.ascontiguousarray(images), records[:, num_labels - 1].astype(np.int64)


def _read_members(archive: Path, names: list[str]) -> dict[str, bytes]:
    """Read members of an archive by base name, in memory: nothing is written."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|gz") as file:
            for info in file:
                stream = file.extractfile(info) if info.isreg() and os.path.basename(info.name) in names else None
                if stream and info.size < 2**28:
                    contents[os.path.basename(info.name)] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise VitrailError(f"{archive} cannot be unpacked ({error}); download it again") from None
    missing = [name for name in names if name not in contents]
    if missing:
        raise VitrailError(f"{archive} has no {missing[0]}; download it again")
    return contents


NO_LICENCE_STATED = "none stated; its authors ask to be cited (Krizhevsky 2009)"

KNOWN_DATASETS = {
    "fashion-mnist": KnownDataset(
        (
            RemoteFile(
                f"{FASHION_MNIST_URL}/train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            RemoteFile(
                f"{FASHION_MNIST_URL}/train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            RemoteFile(
                f"{FASHION_MNIST_URL}/t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            RemoteFile(
                f"{FASHION_MNIST_URL}/t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        _load_fashion_mnist,
        "60,000 + 10,000, 28 x 28, grey, 10 classes",
        "MIT",
        Path("/usr/share/datasets/fashion-mnist"),
        "dataset-fashion-mnist",
    ),
    "cifar10": KnownDataset(
        (
            RemoteFile(
                f"{CIFAR_URL}/cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        _load_cifar10,
        "50,000 + 10,000, 32 x 32, 10 classes",
        NO_LICENCE_STATED,
    ),
    "cifar100": KnownDataset(
        (
            RemoteFile(
                f"{CIFAR_URL}/cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        _load_cifar100,
        "50,000 + 10,000, 32 x 32, 100 classes",
        NO_LICENCE_STATED,
    ),
}
