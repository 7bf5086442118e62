"""Label sets and numbers survive packs and shards."""

import json
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import vitrail
from tests.data.images import image_bytes, write_image
from vitrail.data.dataset_check import check_dataset
from vitrail.data.pack_writer import write_pack
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.tar_shards import read_shards
from vitrail.errors import VitrailError

SPLITS = ["train"] * 7 + ["val"] * 3 + ["test"] * 2


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def write_table(folder: Path, kind: str) -> Path:
    """Write 12 images of several sizes, and a table of them."""
    header = {"several": "path,labels,split", "numbers": "path,age,width,split"}[kind]
    lines = [header]
    for number, split in enumerate(SPLITS):
        write_image(folder / f"{number}.jpg", number, (20 + number % 3, 18))
        labels = ";".join(name for bit, name in enumerate(("ant", "bee", "cat", "dog")) if number >> bit & 1)
        lines.append(f"{number}.jpg,{labels if kind == 'several' else f'{number / 7},{number**2}'},{split}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


def by_content(data: DatasetSplits) -> dict[str, dict[bytes, list[float]]]:
    """Return the target of each image, by split and by the image's file or pixels."""
    return {
        split: {
            bytes(content if isinstance(content := part.read(index), bytes) else content.tobytes()): np.asarray(
                part.target(index)
            ).tolist()
            for index in range(len(part))
        }
        for split, part in data.splits.items()
    }


@pytest.mark.parametrize("form", ["files", "pixels", "one size", "shards"])
@pytest.mark.parametrize("kind", ["several", "numbers"])
def test_targets_survive_packs_and_shards(kind: str, form: str, tmp_path: Path) -> None:
    target = ["age", "width"] if kind == "numbers" else None
    before = vitrail.open_dataset(write_table(tmp_path, kind), target=target)
    out = tmp_path / "out"
    if form == "shards":
        write_shards(out, before.splits, shard_size=6000)
        assert len(list(out.glob("train-*.tar"))) > 1
    else:
        size = (16, 16) if form == "one size" else None
        write_pack(out, before.splits, store="jpeg" if form == "files" else "pixels", size=size)
    after = vitrail.open_dataset(out)
    assert after.class_names == before.class_names
    assert after.target_names == before.target_names == tuple(target or ())
    if form in ("files", "shards"):
        assert by_content(after) == by_content(before)
        assert check_dataset(after).data.fingerprint == check_dataset(before).data.fingerprint
    for split, part in after.splits.items():
        ours, theirs = ([np.asarray(of[index][1]).tolist() for index in range(len(of))] for of in (part, before.splits[split]))
        assert sorted(ours) == sorted(theirs)
        assert (part.label_sets is not None) == (kind == "several")
        assert (part.array_shape is not None) == (form == "one size")


def test_images_that_cannot_be_packed_take_their_targets_along(tmp_path: Path) -> None:
    table = write_table(tmp_path, "several")
    before = by_content(vitrail.open_dataset(table))
    (tmp_path / "2.jpg").write_bytes(b"no image")
    report = write_pack(tmp_path / "x.pack", vitrail.open_dataset(table).splits, store="jpeg")
    assert len(report.skipped) == 1
    after = by_content(vitrail.open_dataset(tmp_path / "x.pack"))
    assert len(after["train"]) == 6
    assert after["train"].items() <= before["train"].items()


def write_samples(path: Path, samples: list[object]) -> Path:
    with tarfile.open(path, "w") as tar:
        for number, sample in enumerate(samples):
            for extension, content in (("jpg", image_bytes(number)), ("json", json.dumps(sample).encode())):
                info = tarfile.TarInfo(f"{number:04d}.{extension}")
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
    return path


def test_shards_of_others_have_names_or_class_numbers(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "train.tar", [{"labels": ["hat", "tie"]}, {"labels": []}, {"labels": ["hat"], "id": 3}])
    train = read_shards(path)["train"]
    assert train.class_names == ("hat", "tie")
    assert [train.target(index).tolist() for index in range(3)] == [[1, 1], [0, 0], [1, 0]]
    numbers = read_shards(write_samples(tmp_path / "other.tar", [{"labels": [3, 0]}, {"labels": [2]}]))[""]
    assert numbers.class_names == ("0", "1", "2", "3")
    assert numbers.target(0).tolist() == [1, 0, 0, 1]
    (tmp_path / "classes.txt").write_text("hat\ntie\nshoe\n")
    named = read_shards(write_samples(tmp_path / "named.tar", [{"labels": [2, 0]}, {"labels": []}]))[""]
    assert named.class_names == ("hat", "tie", "shoe")
    assert [named.target(index).tolist() for index in range(2)] == [[1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ([{"labels": ["a", 1]}], "0000.json in .* has no valid label; it needs a number or a name, a list of them as labels"),
        ([{"labels": [["a"]]}], "0000.json in .* has no valid label"),
        ([{"labels": ["a", " "]}], "0000.json in .* has no valid label"),
        ([{"targets": {"age": "old"}}], "0000.json in .* has no valid label"),
        ([{"targets": {"age": float("nan")}}], "0000.json in .* has no valid label"),
        ([{"labels": ["a"]}, {"label": "b"}], "0001 in .* has a target of another kind than 0000 in"),
        ([{"targets": {"age": 1}}, {"targets": {"size": 1}}], "0001 in .* must have the targets age, got size"),
    ],
)
def test_an_invalid_target_of_a_shard_is_named(samples: list[object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=sentence):
        vitrail.open_dataset(write_samples(tmp_path / "train.tar", samples))
