"""Random access to tar shards agrees with webdataset's sequential reading; damage is noticed when indexing or reading."""

import gzip
import io
import json
import os
import pickle
import tarfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.tar_shards import read_shards
from vitrail.errors import VitrailError

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def image_bytes(number: int, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((3, 5 + number % 7, 3), number * 9 % 256, np.uint8)).save(stream, kind)
    return stream.getvalue()


def samples(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    return [
        member
        for number in range(start, start + count)
        for member in ((f"{number:04d}.png", image_bytes(number)), (f"{number:04d}.cls", str(number % 3).encode()))
    ]


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def error_message(location: object, **options: Path) -> str:
    with pytest.raises(VitrailError) as caught:
        read_shards(location, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents(dataset: Dataset) -> list[bytes]:
    return [bytes(dataset.read(index)) for index in range(len(dataset))]


# Reading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("form", FORMATS)
def test_webdataset_reads_the_same_samples_in_the_same_order(form: int, tmp_path: Path) -> None:
    peer = pytest.importorskip("webdataset.tariterators")
    long = "folder.with.dots/" + "n" * 90 + "/ä-1"
    members = [
        *samples(5),
        ("__meta__/x.jpg", b"no sample"),
        (".hidden.jpg", b"no sample"),
        (f"{long}.JPG", image_bytes(7, "JPEG")),
        (f"{long}.json", json.dumps({"label": 2, "other": [1]}).encode()),
        (f"{long}.seg.png", image_bytes(8)),
        ("./b.txt", b"a caption"),
        ("./b.webp", image_bytes(9, "WEBP")),
        ("./b.cls", b" 1\n"),
    ]
    path = write_tar(tmp_path / "x.tar", members, form)
    dataset = read_shards(path)[""]
    with path.open("rb") as stream:
        theirs = list(peer.group_by_keys(peer.tar_file_expander([{"url": str(path), "stream": stream}])))
    expected = []
    for sample in theirs:
        kind = next((kind for kind in ("jpg", "png", "webp") if kind in sample), None)
        if kind:
            label = int(sample["cls"]) if "cls" in sample else json.loads(sample["json"])["label"]
            expected.append((sample["__key__"], sample[kind], label))
    assert len(expected) == 7
    labels = dataset.labels.tolist()
    assert [
        (dataset.describe(index).removesuffix(f" in {path}"), dataset.read(index), labels[index]) for index in range(7)
    ] == expected


@pytest.mark.parity
def test_what_webdataset_writes_is_read_in_any_order_by_threads_and_other_processes(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for shard in range(3):
        with webdataset.TarWriter(str(tmp_path / f"part-{shard:03d}.tar")) as writer:
            for number in range(shard * 4, shard * 4 + 4):
                writer.write({"__key__": f"s{number}", "png": image_bytes(number), "cls": number % 5})
    dataset = read_shards(str(tmp_path / "part-{000..002}.tar"))[""]
    assert dataset.labels.tolist() == [number % 5 for number in range(12)]
    order = [11, 3, 3, 0, 7, 4, 9, 1]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(dataset.read, order)) == [image_bytes(number) for number in order]
    assert pickle.loads(pickle.dumps(dataset)).read(5) == image_bytes(5)


def test_a_folder_a_list_a_glob_and_braces_name_the_same_shards(tmp_path: Path) -> None:
    paths = [write_tar(tmp_path / f"s-{shard}.tar", samples(2, shard * 2)) for shard in range(8, 12)]
    expected = [image_bytes(number) for number in range(16, 24)]
    assert contents(read_shards(str(tmp_path / "s-{8..11}.tar"))[""]) == expected
    assert contents(read_shards([tmp_path / "s-{8,9}.tar", *paths[2:], paths[2]])[""]) == expected
    assert sorted(contents(read_shards(tmp_path)[""])) == sorted(expected)
    assert sorted(contents(read_shards(str(tmp_path / "s-*.tar"))[""])) == sorted(expected)
    assert contents(read_shards(str(tmp_path / "{s,t}-{11..11}.tar".replace(",t", ",s")))[""]) == expected[6:]
    named = "2 of 6 shards are missing, first " + str(tmp_path / "s-12.tar")
    assert named in error_message(str(tmp_path / "s-{8..13}.tar"))
    assert "there is no shard" in error_message(tmp_path / "t.tar")
    assert "has no .tar files" in error_message(str(tmp_path / "t*.tar"))
    assert "more than 100,000 shards" in error_message("s-{0..999999999}.tar")


def test_splits_are_part_of_the_names_of_files_or_folders(tmp_path: Path) -> None:
    for name, start in (("set1k-train-0000", 0), ("set1k-train-0001", 2), ("set1k-validation-0000", 4), ("set1k-test-0000", 6)):
        write_tar(tmp_path / "a" / f"{name}.tar", samples(2, start))
    splits = read_shards(tmp_path / "a")
    assert list(splits) == ["train", "validation", "test"]
    assert contents(splits["train"]) == [image_bytes(number) for number in range(4)]
    assert contents(splits["test"]) == [image_bytes(6), image_bytes(7)]
    assert {dataset.class_names for dataset in splits.values()} == {("0", "1", "2")}
    write_tar(tmp_path / "b" / "train" / "0.tar", samples(2))
    write_tar(tmp_path / "b" / "val" / "0.tar", samples(2))
    assert list(read_shards(tmp_path / "b")) == ["train", "validation"]
    assert list(read_shards(tmp_path / "b" / "val")) == [""]  # a single folder's name is no split
    write_tar(tmp_path / "a" / "more.tar", samples(2))
    assert "set1k-test-0000.tar names its split and more.tar does not" in error_message(tmp_path / "a")


# Labels --------------------------------------------------------------------------------------------------------------


def write_labelled_tar(tmp_path: Path, *labels: str | None, kind: str = "cls") -> Path:
    members = [
        member
        for number, label in enumerate(labels)
        for member in ((f"{number}.png", image_bytes(number)), (f"{number}.{kind}", (label or "").encode()))
        if label is not None or member[0].endswith("png")
    ]
    return write_tar(tmp_path / "l.tar", members)


def test_numbers_are_labels_themselves_and_names_are_sorted(tmp_path: Path) -> None:
    dataset = read_shards(write_labelled_tar(tmp_path, "3", "1"))[""]
    assert (dataset.labels.tolist(), dataset.class_names) == ([3, 1], ("0", "1", "2", "3"))
    (tmp_path / "classes.txt").write_text("ant\nbee\ncrane\ncrane\n", encoding="utf-8-sig")
    dataset = read_shards(tmp_path / "l.tar")[""]
    assert (dataset.labels.tolist(), dataset.class_names) == ([3, 1], ("ant", "bee", "crane", "crane (2)"))
    (tmp_path / "others.txt").write_text("ant\nbee\ncow")
    assert "must name 4 classes, one per line, got 3 lines" in error_message(
        tmp_path / "l.tar", classes=tmp_path / "others.txt"
    )
    dataset = read_shards(write_labelled_tar(tmp_path, "wolf", "bear", "wolf"))[""]
    assert (dataset.labels.tolist(), dataset.class_names) == ([1, 0, 1], ("bear", "wolf"))
    dataset = read_shards(write_labelled_tar(tmp_path, '{"label": "wolf"}', '{"label": 7}', kind="json"))[""]
    assert (dataset.labels.tolist(), dataset.class_names) == ([1, 0], ("7", "wolf"))
    dataset = read_shards(write_labelled_tar(tmp_path, "999999999", "20"))[""]
    assert (dataset.labels.tolist(), dataset.class_names) == ([1, 0], ("20", "999999999"))


def test_unlabelled_images_are_a_dataset_and_partial_labels_are_refused(tmp_path: Path) -> None:
    dataset = read_shards(write_labelled_tar(tmp_path, None, None, None))[""]
    assert (dataset.labels.tolist(), dataset.class_names) == ([-1, -1, -1], ())
    assert "2 in " in error_message(write_labelled_tar(tmp_path, "1", "2", None))
    assert "has no label but others have; add 2.cls" in error_message(tmp_path / "l.tar")


@pytest.mark.parametrize("text", ["[1]", "{", '{"label": [[1]]}', '{"label": 1.5}', "[" * 100_000, '{"label": "a\\u0000b"}'])
def test_an_invalid_label_is_named(text: str, tmp_path: Path) -> None:
    assert "0.json in" in error_message(write_labelled_tar(tmp_path, text, kind="json"))
    assert "has no valid label; it needs a number or a name" in error_message(tmp_path / "l.tar")


def test_a_duplicate_sample_or_none_at_all_is_refused(tmp_path: Path) -> None:
    assert "has 0.png twice" in error_message(write_tar(tmp_path / "x.tar", [("0.png", b"1"), ("0.PNG", b"2")]))
    assert "has no images" in error_message(write_tar(tmp_path / "y.tar", [("0.txt", b"1"), ("png", b"2")]))
    assert "has no images" in error_message(write_tar(tmp_path / "z.tar", []))


# Damage --------------------------------------------------------------------------------------------------------------


def test_every_truncation_is_noticed_when_indexing(tmp_path: Path) -> None:
    """Any length that loses a byte of a member, a header or the whole end marker is noticed."""
    path = write_tar(tmp_path / "x.tar", samples(2), tarfile.GNU_FORMAT)
    whole = path.read_bytes()
    last = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(1, last, 97), last - 512, last - 1, last]:
        path.write_bytes(whole[:length])
        sentence = error_message(path)
        assert any(words in sentence for words in ("truncated", "not a tar file")), (length, sentence)
        assert str(path) in sentence
        assert sentence.endswith("; download it again")
    path.write_bytes(whole[: last + 512])  # one block of the end marker is enough
    assert len(read_shards(path)[""]) == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty; download it again"),
        (b"<html>not found</html>" * 90, "is not a tar file; download it again"),
        (gzip.compress(b"x" * 900, mtime=0), "is compressed (gzip), which rules out random access; unpack it"),
        (b"\x28\xb5\x2f\xfd" + bytes(900), "is compressed (zstd)"),
    ],
)
def test_a_file_that_is_not_a_tar_is_named(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    assert sentence in error_message(path)


def test_a_damaged_header_and_a_joined_tar_are_not_taken_for_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", samples(3), tarfile.GNU_FORMAT)
    whole = bytearray(path.read_bytes())
    second = bytes(whole).index(b"0001.png")
    whole[second + 2] ^= 1
    path.write_bytes(whole)
    with tarfile.open(path) as file:
        assert len(file.getnames()) == 2  # the standard library notices nothing
    assert f"is damaged or truncated at byte {second:,}" in error_message(path)
    other = write_tar(tmp_path / "y.tar", samples(2, 5))
    path.write_bytes(other.read_bytes() * 2)
    assert "continues after its end marker" in error_message(path)


def test_an_image_that_changes_after_indexing_is_noticed_and_the_others_are_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", samples(3))
    dataset = read_shards(path)[""]
    status = path.stat()
    whole = bytearray(path.read_bytes())
    whole[bytes(whole).index(image_bytes(1)) + 20] ^= 1
    path.write_bytes(whole)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the cached index still seems valid
    for again in (dataset, read_shards(path)[""]):
        with pytest.raises(VitrailError, match=r"0001 in .*x\.tar is not what was indexed: the shard was damaged or replaced"):
            again.read(1)
        assert again.read(2) == image_bytes(2)
    path.write_bytes(whole[:600])
    with pytest.raises(VitrailError, match="is not what was indexed"):
        dataset.read(2)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        dataset.read(0)


def test_the_index_is_cached_and_a_damaged_one_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "x.tar", samples(3))
    first = read_shards(path)[""]
    (cache_file,) = (tmp_path / "cache").rglob("*.npz")
    monkeypatch.setattr("vitrail.data.sources.tar_index._walk_tar", None)  # would fail
    second = read_shards(path)[""]
    assert (contents(first), first.labels.tolist(), first.describe(2)) == (
        contents(second),
        second.labels.tolist(),
        second.describe(2),
    )
    monkeypatch.undo()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    good = cache_file.read_bytes()
    for damage in (b"", good[:100], good[:-30], b"no index", good.replace(b"labels", b"lapels")):
        cache_file.write_bytes(damage)
        assert contents(read_shards(path)[""]) == contents(first)
    write_tar(path, samples(4, 2))
    assert contents(read_shards(path)[""]) == [image_bytes(number) for number in range(2, 6)]


def test_progress_counts_bytes_and_ends_at_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write_tar(tmp_path / f"{shard}.tar", samples(3, shard * 3)) for shard in range(2)]
    monkeypatch.setattr("vitrail.data.sources.tar_index.SAMPLES_PER_REPORT", 2)
    ticks: list[tuple[str, int, int | None]] = []
    read_shards(paths, progress=lambda *tick: ticks.append(tick))
    total = sum(path.stat().st_size for path in paths)
    assert [done for _, done, _ in ticks] == sorted(done for _, done, _ in ticks)
    assert ticks[-1] == ("indexing", total, total)
    assert len(ticks) == 4


# Hostile tars --------------------------------------------------------------------------------------------------------


def test_links_devices_and_folders_are_not_images(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as file:
        kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
        for kind in kinds:
            info = tarfile.TarInfo(f"bad{ord(kind)}.png")
            info.type, info.linkname = kind, "/etc/passwd"
            file.addfile(info)
        info = tarfile.TarInfo("good.png")
        info.size = len(image_bytes(4))
        file.addfile(info, io.BytesIO(image_bytes(4)))
    assert contents(read_shards(path)[""]) == [image_bytes(4)]


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 4 + size.to_bytes(8, "big", signed=True) if size < 0 else b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (header("0.png", -512), "is truncated"),
        (header("0.png", 8**11 - 1), "is truncated"),
        (header("L", -1024, tarfile.GNUTYPE_LONGNAME), "is truncated"),
        (header("x", -1024, tarfile.XHDTYPE), "is truncated"),
        (header("x", 2**21, tarfile.XHDTYPE) + bytes(2**21), "has a label or a name of 2,097,152 bytes"),
        (header("x", 512, tarfile.XHDTYPE) + b"0 path=x\n".ljust(512, b"\0"), "has a damaged header"),
        (header("x", 512, tarfile.XHDTYPE) + b"99999 path=x\n".ljust(512, b"\0"), "has a damaged header"),
        (header("x", 512, tarfile.XHDTYPE) + b"13 path=/a.png\n".ljust(512, b"\0") + header("a", 0), "damaged header"),
        (header("x", 512, tarfile.XHDTYPE) + b"15 path=/a.png\n".ljust(512, b"\0") + header("a", 0), "an absolute path"),
        (header("x", 512, tarfile.XHDTYPE) + b"22 GNU.sparse.major=1\n".ljust(512, b"\0") + header("a", 0), "a sparse file"),
        (header("0.png", 0, tarfile.GNUTYPE_SPARSE), "a sparse file"),
        (header("x", 5120, tarfile.XHDTYPE) + b"5012 size=".ljust(5011, b"9") + b"\n" + bytes(108) + header("a", 0), "damaged"),
        (header("x", 512, tarfile.XHDTYPE) + b"14 size=99999\n".ljust(512, b"\0") + header("0.png", 0), "is truncated"),
        (header("0.png", 0) + header("0.cls", 2**21) + bytes(2**21), "has a label or a name of 2,097,152 bytes"),
    ],
)
def test_a_hostile_header_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(content + bytes(1024))
    assert sentence in error_message(path)
