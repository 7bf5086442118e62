"""Well-known datasets: a download is verified before it is read, is resumed after an interruption, and without a network the
file can be put in place by hand. No test leaves this machine."""

import gzip
import hashlib
import io
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from scripts.make_fashion import idx as plain_idx
from vitrail.data.pack_reader import read_pack
from vitrail.data.sources import download
from vitrail.data.sources import known_datasets as module
from vitrail.data.sources.builtin import FASHION_CLASSES, load_fashion
from vitrail.data.sources.download import RemoteFile
from vitrail.data.sources.known_datasets import KNOWN_DATASETS, KnownDataset, download_dataset, parse_cifar_records, parse_idx
from vitrail.errors import VitrailError

RNG = np.random.default_rng(3)


def error_message(name: str, folder: Path) -> str:
    with pytest.raises(VitrailError) as caught:
        download_dataset(name, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Small datasets in the true formats ----------------------------------------------------------------------------------


def idx_bytes(values: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape) + values.tobytes()


def small_fashion() -> dict[str, bytes]:
    files = {}
    for stem, count in (("train", 13), ("t10k", 5)):
        files[f"{stem}-images-idx3-ubyte.gz"] = gzip.compress(idx_bytes(RNG.integers(0, 256, (count, 28, 28), np.uint8)))
        files[f"{stem}-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(RNG.integers(0, 10, count, np.uint8)))
    return files


def archive(folder: str, members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def records(labels: np.ndarray, pixels: np.ndarray) -> bytes:
    """Write the records another way than they are read: image by image, channel by channel."""
    return b"".join(
        bytes(label) + b"".join(image[:, :, channel].tobytes() for channel in range(3))
        for label, image in zip(labels, pixels, strict=True)
    )


PIXELS = RNG.integers(0, 256, (12, 32, 32, 3), np.uint8)
FINE = RNG.integers(0, 7, (12, 1)).astype(np.uint8)
COARSE = np.full((12, 1), 19, np.uint8)


def small_cifar10() -> dict[str, bytes]:
    parts = {
        f"data_batch_{part + 1}.bin": records(FINE[part * 2 : part * 2 + 2], PIXELS[part * 2 : part * 2 + 2])
        for part in range(5)
    }
    names = "".join(f"name {number}\n" for number in range(7)) + "\n\n"
    members = {"batches.meta.txt": names.encode(), **dict(reversed(parts.items()))}
    return {
        "cifar-10-binary.tar.gz": archive("cifar-10-batches-bin", members | {"test_batch.bin": records(FINE[10:], PIXELS[10:])})
    }


def small_cifar100() -> dict[str, bytes]:
    both = np.concatenate([COARSE, FINE], 1)
    members = {
        "train.bin": records(both[:10], PIXELS[:10]),
        "test.bin": records(both[10:], PIXELS[10:]),
        "fine_label_names.txt": b"\r\n".join(b"name %d" % number for number in range(7)),
        "coarse_label_names.txt": b"no\n" * 20,
    }
    return {"cifar-100-binary.tar.gz": archive("cifar-100-binary", members)}


# A server on this machine --------------------------------------------------------------------------------------------


@dataclass
class ServerState:
    """Files to serve, faults to make, and requests received."""

    files: dict[str, bytes]
    cut: int | None = None  # bytes after which it closes the connection
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    def __init__(self, state: ServerState, *arguments: object) -> None:
        self.state = state
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name, byte_range = self.path.rsplit("/", 1)[1], self.headers["Range"]
        self.state.requests.append((name, byte_range))
        content = self.state.files.get(name)
        if content is None:
            self.send_error(404)
            return
        start = int(byte_range.removeprefix("bytes=").removesuffix("-")) if byte_range and self.state.ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[start : self.state.cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerState]:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = ServerState(small_fashion() | small_cifar10() | small_cifar100())
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, state)) as httpd:
        Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
        state.address = f"http://127.0.0.1:{httpd.server_address[1]}"
        monkeypatch.setattr(
            module, "KNOWN_DATASETS", {name: with_server_urls(dataset, state) for name, dataset in KNOWN_DATASETS.items()}
        )
        yield state
        httpd.shutdown()


def with_server_urls(dataset: KnownDataset, state: ServerState) -> KnownDataset:
    files = []
    for file in dataset.files:
        content = state.files[file.name]
        files.append(RemoteFile(f"{state.address}/{file.name}", len(content), hashlib.sha256(content).hexdigest()))
    return replace(dataset, files=tuple(files), system_folder=None)


# Downloads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_read_as_it_was_written(name: str, server: ServerState, tmp_path: Path) -> None:
    ticks: list[tuple[str, int, int | None]] = []
    path = download_dataset(name, tmp_path / "sets", lambda *tick: ticks.append(tick))
    splits, provenance = read_pack(path)
    assert list(splits) == ["train", "test"]
    assert splits["train"].class_names == tuple(f"name {number}" for number in range(7))
    both = [splits[split].read(index) for split in ("train", "test") for index in range(len(splits[split]))]
    assert (np.stack([np.asarray(one) for one in both]) == PIXELS).all()
    assert [*splits["train"].labels, *splits["test"].labels] == FINE[:, 0].tolist()
    assert provenance["dataset"] == name
    assert [item.name for item in (tmp_path / "sets").iterdir()] == [f"{name}.pack"]
    file = module.KNOWN_DATASETS[name].files[0]
    assert (f"downloading {file.name}", file.size, file.size) in ticks
    assert download_dataset(name, tmp_path / "sets") == path
    assert len(server.requests) == 1  # not downloaded twice


def test_fashion_mnist_is_read_as_it_was_written(server: ServerState, tmp_path: Path) -> None:
    splits, _ = read_pack(download_dataset("fashion-mnist", tmp_path))
    for split, stem in (("train", "train"), ("test", "t10k")):
        (tmp_path / "x.gz").write_bytes(server.files[f"{stem}-images-idx3-ubyte.gz"])
        images = plain_idx(tmp_path / "x.gz")
        assert (np.stack([np.asarray(splits[split].read(index)) for index in range(len(images))])[..., 0] == images).all()
        (tmp_path / "x.gz").write_bytes(server.files[f"{stem}-labels-idx1-ubyte.gz"])
        assert splits[split].labels.tolist() == plain_idx(tmp_path / "x.gz").tolist()
    assert splits["train"].class_names == FASHION_CLASSES


def test_by_default_a_dataset_is_stored_where_its_name_finds_it(server: ServerState, tmp_path: Path) -> None:
    assert download_dataset("cifar10") == tmp_path / "cache" / "datasets" / "cifar10.pack"


def test_a_damaged_pack_is_rebuilt(server: ServerState, tmp_path: Path) -> None:
    path = download_dataset("cifar10", tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert download_dataset("cifar10", tmp_path).read_bytes() == whole


SYSTEM_FOLDER = KNOWN_DATASETS["fashion-mnist"].system_folder


@pytest.mark.skipif(
    SYSTEM_FOLDER is None or not SYSTEM_FOLDER.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)
def test_debians_package_is_the_published_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gzip headers lack the files' names and times; with these restored, every file is the published one bit for bit."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    dataset = KNOWN_DATASETS["fashion-mnist"]
    assert dataset.system_folder
    for file in dataset.files:
        content = (dataset.system_folder / file.name).read_bytes()
        built = 1504176606 if file.name.startswith("train") else 1504176627  # 31 August 2017
        published = (
            b"\x1f\x8b\x08\x08" + built.to_bytes(4, "little") + b"\0\x03" + file.name[:-3].encode() + b"\0" + content[10:]
        )
        assert (len(published), hashlib.sha256(published).hexdigest()) == (file.size, file.sha256)
    monkeypatch.setattr(download, "open_url", None)  # nothing is downloaded
    splits, _ = read_pack(download_dataset("fashion-mnist", tmp_path))
    assert {split: len(dataset) for split, dataset in splits.items()} == {"train": 60_000, "test": 10_000}
    part = load_fashion("test")
    indices = np.sort(np.concatenate([np.flatnonzero(splits["test"].labels == label)[:200] for label in range(10)]))
    assert (splits["test"].labels[indices] == part.labels).all()
    assert all((np.asarray(splits["test"].read(int(indices[index]))) == part.read(index)).all() for index in range(0, 2000, 99))


# Faults --------------------------------------------------------------------------------------------------------------


def test_an_interrupted_download_is_resumed(server: ServerState, tmp_path: Path) -> None:
    size = module.KNOWN_DATASETS["cifar10"].files[0].size
    server.cut = 5000
    assert f"was interrupted at 5,000 of {size:,} bytes; run it again to resume" in error_message("cifar10", tmp_path)
    assert [item.name for item in tmp_path.glob("*.gz*")] == ["cifar-10-binary.tar.gz.part"]
    server.cut = None
    whole = download_dataset("cifar10", tmp_path).read_bytes()
    assert server.requests[-1] == ("cifar-10-binary.tar.gz", "bytes=5000-")
    assert download_dataset("cifar10", tmp_path / "unbroken").read_bytes() == whole


def test_a_server_without_ranges_is_asked_for_the_whole_file(server: ServerState, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(b"x" * 70)
    assert len(read_pack(download_dataset("cifar10", tmp_path))[0]["train"]) == 10


@pytest.mark.parametrize("left", ["wrong", "too long", "whole"])
def test_an_earlier_partial_download_is_verified(left: str, server: ServerState, tmp_path: Path) -> None:
    good = server.files["cifar-10-binary.tar.gz"]
    part = tmp_path / "cifar-10-binary.tar.gz.part"
    part.write_bytes({"wrong": b"x" * 70, "too long": good + b"x", "whole": good}[left])
    if left == "wrong":
        assert "is not the published file (its SHA-256 differs)" in error_message("cifar10", tmp_path)
        assert not part.exists()
    assert len(read_pack(download_dataset("cifar10", tmp_path))[0]["train"]) == 10
    assert not part.exists()


@pytest.mark.parametrize("sent", ["another", "longer"])
def test_a_file_with_another_checksum_is_never_opened(
    sent: str, server: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarfile, "open", None)  # would fail
    good = server.files["cifar-10-binary.tar.gz"]
    server.files["cifar-10-binary.tar.gz"] = good + b"x" * 3000 if sent == "longer" else bytes(len(good))
    assert "is not the published file (its SHA-256 differs); it was deleted" in error_message("cifar10", tmp_path)
    assert list(tmp_path.glob("cifar*")) == []


def test_a_file_put_in_place_by_hand_is_used_and_kept(server: ServerState, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"something else")
    assert f"{archive} is not the published file (its SHA-256 differs); delete it" in error_message("cifar10", tmp_path)
    assert archive.read_bytes() == b"something else"
    archive.write_bytes(server.files[archive.name])
    download_dataset("cifar10", tmp_path)
    assert archive.is_file()
    assert server.requests == []


@pytest.mark.parametrize("kind", ["closed", "silent", "no name", "not found"])
def test_without_a_network_the_path_for_the_file_is_named(
    kind: str, server: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        if kind == "closed":
            mute.close()
        hosts = {"no name": "http://no.invalid", "not found": f"{server.address}/gone"}
        host = hosts.get(kind, f"http://127.0.0.1:{port}")
        if kind == "not found":
            server.files.clear()
        for name, dataset in KNOWN_DATASETS.items():
            files = tuple(replace(file, url=f"{host}/{file.name}") for file in dataset.files)
            monkeypatch.setitem(module.KNOWN_DATASETS, name, replace(dataset, files=files, system_folder=None))
            sentence, file = error_message(name, tmp_path), files[0]
            assert sentence.startswith(f"{file.url} cannot be downloaded (")
            assert sentence.endswith(
                f"or put the file at {tmp_path / file.name} by hand and run `vitrail data download {name}` again"
            )
            assert ("apt install dataset-fashion-mnist" in sentence) == (name == "fashion-mnist")
    assert not list(tmp_path.glob("*.gz*"))


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    assert (
        "the datasets to download are fashion-mnist, cifar10, cifar100, got 'cifar-10'; did you mean 'cifar10'?"
        in error_message("cifar-10", tmp_path)
    )


# Formats -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x08\x00",
        b"\0\0\x08\x01\0\0\0\x05" + b"1234",
        b"\0\0\x08\x01\0\0\0\x05" + b"123456",
        b"\0\0\x0d\x01\0\0\0\x01" + b"1234",
        b"\0\0\x08\x03" + b"\xff" * 12 + b"1234",
        b"\0\0\x08\xff",
        b"<html>",
    ],
)
def test_an_inconsistent_idx_file_is_refused(content: bytes) -> None:
    with pytest.raises(VitrailError, match="here is not an idx file of bytes, or is truncated"):
        parse_idx(content, "here")


def test_idx_and_cifar_are_read_as_they_are_written() -> None:
    values = RNG.integers(0, 256, (3, 4, 5), np.uint8)
    assert (parse_idx(idx_bytes(values), "here") == values).all()
    pixels, labels = parse_cifar_records(records(np.concatenate([COARSE, FINE], 1), PIXELS), 2, "here")
    assert (pixels == PIXELS).all()
    assert labels.tolist() == FINE[:, 0].tolist()


def test_truncated_records_and_labels_without_names_are_refused(server: ServerState, tmp_path: Path) -> None:
    for content in (b"", bytes(3072), bytes(3073 * 2 - 1)):
        with pytest.raises(VitrailError, match="here is not a whole number of records of 3073 bytes"):
            parse_cifar_records(content, 1, "here")
    names = {"batches.meta.txt": b"cat\ndog\n"} | {f"data_batch_{part}.bin": bytes(3073) for part in range(1, 6)}
    bad = {
        "has labels up to 2 for 2 class names": archive("x", names | {"test_batch.bin": b"\x02" + bytes(3072)}),
        "has no test_batch.bin": archive("x", names),
        "cannot be unpacked": b"no archive",
        "cannot be unpacked (unexpected end": archive("x", names | {"test_batch.bin": RNG.bytes(3073)})[:-2000],
    }
    for sentence, content in bad.items():
        server.files["cifar-10-binary.tar.gz"] = content
        module.KNOWN_DATASETS["cifar10"] = with_server_urls(KNOWN_DATASETS["cifar10"], server)
        assert sentence in error_message("cifar10", tmp_path)
        assert not (tmp_path / "cifar10.pack").exists()
        (tmp_path / "cifar-10-binary.tar.gz").unlink()


def test_fashion_files_that_do_not_match_are_refused(server: ServerState, tmp_path: Path) -> None:
    good = dict(server.files)
    bad = {
        "that do not match": ("t10k-labels-idx1-ubyte.gz", gzip.compress(idx_bytes(np.zeros(6, np.uint8)))),
        "is not an idx file": ("t10k-labels-idx1-ubyte.gz", gzip.compress(b"hello")),
        "cannot be unpacked": ("train-images-idx3-ubyte.gz", b"hello"),
    }
    for number, (sentence, (name, content)) in enumerate(bad.items()):
        server.files = good | {name: content}
        module.KNOWN_DATASETS["fashion-mnist"] = with_server_urls(KNOWN_DATASETS["fashion-mnist"], server)
        assert sentence in error_message("fashion-mnist", tmp_path / str(number))
    other = replace(
        module.KNOWN_DATASETS["fashion-mnist"],
        files=tuple(
            replace(file, unpacked_sha256="0" * 64) for file in with_server_urls(KNOWN_DATASETS["fashion-mnist"], server).files
        ),
    )
    server.files = good
    for name, content in good.items():
        (tmp_path / name).write_bytes(content)
    module.KNOWN_DATASETS["fashion-mnist"] = replace(other, system_folder=tmp_path)
    assert "is not the published file (the SHA-256 of its content differs)" in error_message("fashion-mnist", tmp_path / "more")
