"""Shards contain what was written, to the byte, and appear whole or not at all (FAULTS 8, 10)."""

import fcntl
import json
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.images import image_bytes, write_class_folders, write_image
from vitrail.cli.main import run
from vitrail.data.dataset_check import check_dataset
from vitrail.data.decode import decode
from vitrail.data.pack_writer import write_pack
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.dataset import Dataset, DatasetSplits, ImageFileDataset, select_images
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders with files of several formats, one with a wrong extension."""
    root = write_class_folders(tmp_path / "data", {"ant": 20, "bee 2": 13, "Café": 17})
    for number, (name, form) in enumerate((("a.png", "PNG"), ("b.webp", "WEBP"), ("c.gif", "GIF"), ("d.tif", "TIFF"))):
        (root / "ant" / name).write_bytes(image_bytes(100 + number, format=form))
    for name, form in (("e.bmp", "BMP"), ("wrong.jpg", "PNG"), ("f.ppm", "PPM")):
        (root / "bee 2" / name).write_bytes(image_bytes(200 + ord(name[0]), format=form))
    return root


def nonempty_splits(data: DatasetSplits) -> dict[str, Dataset]:
    return {split: part for split, part in data.splits.items() if len(part)}


def classes_and_pixels(dataset: Dataset) -> list[tuple[str, bytes]]:
    """Return class and pixels of every image, sorted."""
    rows = []
    for index in range(len(dataset)):
        content = dataset.read(index)
        pixels = (
            np.asarray(decode(content)) if isinstance(content, bytes) else np.broadcast_to(content, (*content.shape[:2], 3))
        )
        label = int(dataset.labels[index])
        rows.append((dataset.class_names[label] if label >= 0 else "", pixels.tobytes()))
    return sorted(rows)


def member_names(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def file_contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir())}


# Round trip ----------------------------------------------------------------------------------------------------------


def test_images_labels_names_and_splits_come_back_and_the_bytes_are_the_files_own(folder: Path, tmp_path: Path) -> None:
    before = open_dataset(folder)
    built = write_shards(tmp_path / "out", nonempty_splits(before), shard_size=12_000)
    after = open_dataset(tmp_path / "out")
    assert after.class_names == before.class_names == ("Café", "ant", "bee 2")
    assert {split: len(part) for split, part in after.splits.items()} == built.counts
    for split, part in before.splits.items():
        ours, theirs = ([bytes(one.read(index)) for index in range(len(one))] for one in (part, after.splits[split]))
        assert sorted(ours) == sorted(theirs)
        assert ours != theirs  # but in another order
    # hash of contents, labels and splits
    assert check_dataset(after).data.fingerprint == check_dataset(before).data.fingerprint
    endings = {name.rpartition(".")[2] for path in (tmp_path / "out").glob("*.tar") for name in member_names(path)}
    assert endings == {"jpg", "png", "webp", "gif", "tiff", "bmp", "ppm", "cls"}


def test_a_key_is_the_index_in_the_split(folder: Path, tmp_path: Path) -> None:
    before = open_dataset(folder).train
    write_shards(tmp_path / "out", {"train": before}, shard_size=30_000)
    for path in (tmp_path / "out").glob("*.tar"):
        with tarfile.open(path) as tar:
            for info in tar:
                content, number = tar.extractfile(info), int(info.name.split(".")[0])
                assert content is not None
                wanted = before.read(number) if not info.name.endswith("cls") else str(before.labels[number]).encode()
                assert content.read() == wanted


@pytest.mark.parametrize("name", ["fashion", "panes:train_size=40,size=16", "pack", "shards", "list.csv"])
def test_any_dataset_can_be_sharded(name: str, folder: Path, tmp_path: Path) -> None:
    before = nonempty_splits(open_dataset(folder))
    if name == "pack":
        write_pack(tmp_path / name, before, size=(9, 7))
    elif name == "shards":
        write_shards(tmp_path / name, before, shard_size=9_000)
    elif name == "list.csv":
        rows = [f"{path},{path.parent.name}" for path in sorted(folder.rglob("*.jpg"))]
        (tmp_path / name).write_text("\n".join(["path,label", *rows]))
    dataset = open_dataset(tmp_path / name if (tmp_path / name).exists() else name)
    few = {split: select_images(part, np.arange(min(len(part), 200))) for split, part in dataset.splits.items()}
    write_shards(tmp_path / "out", few, shard_size=100_000)
    after = open_dataset(tmp_path / "out")
    assert after.class_names == dataset.class_names
    for split, part in few.items():
        assert classes_and_pixels(after.splits[split]) == classes_and_pixels(part)


def test_unlabelled_images_stay_unlabelled_and_partial_labels_are_refused(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    write_image(folder / "loose.jpg", 900)
    before = open_dataset(folder, labelled=False)
    assert (before.train.labels >= 0).any()
    with pytest.raises(VitrailError, match=r"1 images have no label but others have, first .*loose.jpg; label them, or"):
        write_shards(tmp_path / "out", nonempty_splits(before))
    assert run(["data", "shard", str(folder), str(tmp_path / "out"), "--unlabelled", "--json"]) == 0
    assert sum(json.loads(capsys.readouterr().out)["counts"].values()) == 58
    assert not (tmp_path / "out" / "classes.txt").exists()
    after = open_dataset(tmp_path / "out", labelled=False)
    assert (after.train.labels == -1).all()
    assert [pixels for _, pixels in classes_and_pixels(after.train)] == sorted(
        pixels for _, pixels in classes_and_pixels(before.train)
    )


@pytest.mark.parity
def test_webdataset_reads_the_same_samples(folder: Path, tmp_path: Path) -> None:
    peer = pytest.importorskip("webdataset.tariterators")
    write_shards(tmp_path / "out", nonempty_splits(open_dataset(folder)), shard_size=9_000)
    ours = open_dataset(tmp_path / "out").train
    paths = sorted((tmp_path / "out").glob("train-*.tar"))
    assert len(paths) > 2
    theirs = []
    for path in paths:
        with path.open("rb") as stream:
            theirs += list(peer.group_by_keys(peer.tar_file_expander([{"url": str(path), "stream": stream}])))
    assert len(theirs) == len(ours)
    for index, sample in enumerate(theirs):
        assert ours.describe(index).startswith(f"{sample['__key__']} in ")
        assert int(sample["cls"]) == ours.labels[index]
        assert ours.read(index) in sample.values()


# Format --------------------------------------------------------------------------------------------------------------


def test_the_same_images_size_and_seed_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    dataset = nonempty_splits(open_dataset(folder))
    for name, seed, workers in (("a", 0, 1), ("b", 0, 4), ("c", 1, 1)):
        write_shards(tmp_path / name, dataset, shard_size=9_000, seed=seed, workers=workers)
    assert file_contents(tmp_path / "a") == file_contents(tmp_path / "b") != file_contents(tmp_path / "c")
    with tarfile.open(tmp_path / "a" / "train-000000.tar") as tar:
        assert {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in tar} == {(0, 0, 0, "", 0o644)}


@pytest.mark.parametrize("size", [1, 4_000, 9_000, 50_000, 10**9])
def test_a_shard_is_as_large_as_allowed_and_no_larger(size: int, folder: Path, tmp_path: Path) -> None:
    built = write_shards(tmp_path / "out", nonempty_splits(open_dataset(folder)), shard_size=size)
    for split, sizes in built.shards.items():
        paths = [tmp_path / "out" / f"{split}-{number:06d}.tar" for number in range(len(sizes))]
        assert [path.stat().st_size for path in paths] == sizes
        counts = [len(member_names(path)) // 2 for path in paths]
        assert sum(counts) == built.counts[split]
        assert all(length <= size or count == 1 for length, count in zip(sizes, counts, strict=True))
        if size >= 9_000:  # the largest image takes less than half of that
            assert all(length > size / 2 for length in sizes[:-1])
    assert built.bytes == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar"))


def test_a_shard_mixes_the_classes(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path / "data", {"a": 40, "b": 40})
    built = write_shards(tmp_path / "out", {"train": ImageFileDataset(root, *listed_files(root))}, shard_size=30_000)
    assert len(built.shards["train"]) > 3
    for path in sorted((tmp_path / "out").glob("*.tar"))[:-1]:
        with tarfile.open(path) as tar:
            labels = [tar.extractfile(info).read() for info in tar if info.name.endswith("cls")]  # type: ignore[union-attr]
        assert 0.2 < labels.count(b"0") / len(labels) < 0.8


def listed_files(root: Path) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    paths = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    return paths, np.array([int(path[0] == "b") for path in paths]), ("a", "b")


def test_unreadable_images_are_skipped_and_named_and_too_many_are_refused(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    (folder / "ant" / "0.jpg").write_text("<html>")
    assert run(["data", "shard", str(folder), str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "skipped" in output
    assert "ant/0.jpg cannot be decoded: it is none of JPEG" in output
    assert "1 skipped" in output
    for number in range(1, 8):
        (folder / "ant" / f"{number}.jpg").write_text("")
    assert run(["data", "shard", str(folder), str(tmp_path / "more")]) == 2
    assert "more than the tolerated fraction of 0.05" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]


# Faults --------------------------------------------------------------------------------------------------------------

KILLED_SCRIPT = """
import os, signal, sys
from pathlib import Path
from vitrail.data import shard_writer
from vitrail.data.sources.open import open_dataset
shard_writer.CHUNK = 1
def kill_at(what, done, total):
    if what == "writing train" and done == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
splits = {split: part for split, part in open_dataset(sys.argv[1]).splits.items() if len(part)}
shard_writer.write_shards(Path(sys.argv[2]), splits, shard_size=9_000, progress=kill_at)
"""


@pytest.mark.parametrize("moment", [3, 30])
def test_a_killed_job_leaves_nothing_complete_and_is_resumed(
    moment: int, folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.part"
    write_shards(tmp_path / "unbroken", nonempty_splits(open_dataset(folder)), shard_size=9_000)
    done = subprocess.run([sys.executable, "-c", KILLED_SCRIPT, str(folder), str(out), str(moment)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    assert not list(partial.glob("*.tar"))
    with pytest.raises(VitrailError, match="has no images"):
        open_dataset(partial)
    assert run(["data", "shard", str(folder), str(out), "--shard-size", "9000", "--seed", "1"]) == 2
    assert "belongs to another job: other data or other options; delete it" in capsys.readouterr().err
    first = next(iter(sorted(partial.glob("train-*.part"))))
    stamp = first.stat().st_mtime_ns
    assert run(["data", "shard", str(folder), str(out), "--shard-size", "9000", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["resumed"]
    assert (before > 0) == (moment == 30) == ((out / "train-000000.tar").stat().st_mtime_ns == stamp)
    assert file_contents(out) == file_contents(tmp_path / "unbroken")
    assert not partial.exists()


def test_a_job_interrupted_while_renaming_is_resumed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = nonempty_splits(open_dataset(folder))
    write_shards(tmp_path / "unbroken", dataset, shard_size=9_000)
    replace, left = Path.replace, [2]

    def rename(path: Path, target: Path) -> Path:
        if target.suffix == ".tar":
            left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", rename)
        with pytest.raises(KeyboardInterrupt):
            write_shards(tmp_path / "out", dataset, shard_size=9_000)
    assert len(list((tmp_path / "out.part").glob("*.tar"))) == 2
    built = write_shards(tmp_path / "out", dataset, shard_size=9_000)
    assert built.resumed_shards == sum(map(len, built.shards.values()))
    assert file_contents(tmp_path / "out") == file_contents(tmp_path / "unbroken")


FULL_DISK_SCRIPT = """
import resource, signal, sys
from vitrail.cli.main import run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(run(sys.argv[1:]))
"""


def test_a_full_disk_is_one_sentence_and_the_job_is_resumed(folder: Path, tmp_path: Path) -> None:
    arguments = ["data", "shard", str(folder), str(tmp_path / "out"), "--shard-size", "40kB"]
    done = subprocess.run([sys.executable, "-c", FULL_DISK_SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "out cannot be written: File too large; partial output is in" in done.stderr
    assert not (tmp_path / "out").exists()
    assert run(arguments) == 0
    assert len(open_dataset(tmp_path / "out").train) == len(open_dataset(folder).train)


def test_two_processes_a_foreign_folder_and_a_lost_shard_are_refused(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    partial, arguments = tmp_path / "out.part", ["data", "shard", str(folder), str(tmp_path / "out"), "--shard-size", "9000"]
    partial.mkdir()
    with open(partial / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(arguments) == 2
        assert f"another process is writing {partial}" in capsys.readouterr().err
    (partial / "mine.txt").write_text("precious")
    assert run(arguments) == 2
    assert "is in the way and cannot be resumed; delete it or name another OUT" in capsys.readouterr().err
    assert (partial / "mine.txt").read_text() == "precious"
    shutil.rmtree(partial)
    subprocess.run([sys.executable, "-c", KILLED_SCRIPT, str(folder), str(tmp_path / "out"), "30"], check=False)
    (partial / "train-000000.part").write_bytes(b"")
    assert run(arguments) == 2
    assert "train-000000.part is not what was written there; delete" in capsys.readouterr().err


def test_a_truncated_shard_is_noticed(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    write_shards(tmp_path / "out", nonempty_splits(open_dataset(folder)), shard_size=9_000)
    path = tmp_path / "out" / "train-000001.tar"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert run(["data", "check", str(tmp_path / "out")]) == 2
    assert "train-000001.tar is" in (message := capsys.readouterr().err)
    assert "truncated" in message


@pytest.mark.parametrize("word", ["1XB", "0", "-3", "1e9", "", "0.0001", "5_000", "1GiBB", "GB", "٣MB"])
def test_an_invalid_size_is_one_sentence(word: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["data", "shard", "fashion", str(tmp_path / "out"), f"--shard-size={word}"]) == 2
    message = capsys.readouterr().err
    assert f"--shard-size must be a number of bytes such as 1GB, 500MB or 64KiB, got {word!r}; try --shard-size 1GB" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "size"),
    [("2000", 2000), ("64KiB", 65_536), ("1.5 mb", 1_500_000), ("1g", 10**9), ("500MB", 5 * 10**8), ("2TiB", 2**41)],
)
def test_a_size_is_a_number_and_a_unit(word: str, size: int, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["data", "shard", str(folder), str(tmp_path / "out"), "--shard-size", word, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size"] == size


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("missing/out", "OUT must be in a folder that exists"),
        ("full", "OUT must be a folder that is new or empty"),
        ("full/file", "OUT must be a folder that is new or empty"),
        ("data/ant/out", "OUT must not be inside the dataset"),
        ("data", "OUT must not be inside the dataset"),
        ("/proc", "OUT must be a folder that is new or empty"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_the_work(
    out: str, sentence: str, folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert run(["data", "shard", str(folder), str(tmp_path / out)]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1


def test_an_empty_folder_or_a_link_to_one_is_written_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    write_shards(tmp_path / "link", nonempty_splits(open_dataset(folder)))
    assert "classes.txt" in file_contents(tmp_path / "empty")


@pytest.mark.parametrize("name", ["b\nc", " lead", "cr\rx", "\udce9"])
def test_a_class_name_that_is_not_one_line_is_refused(name: str, tmp_path: Path) -> None:
    root = write_class_folders(tmp_path / "data", {"a": 3, name: 3})
    with pytest.raises(VitrailError, match=r"cannot be a line of classes.txt; give it another name"):
        write_shards(
            tmp_path / "out", {"train": ImageFileDataset(root, ["a/0.jpg", f"{name}/0.jpg"], np.array([0, 1]), ("a", name))}
        )
    assert not (tmp_path / "out.part").exists()
