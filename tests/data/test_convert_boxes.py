"""Boxes that are written in another format are those of the dataset, read here without the readers of the package."""

import csv
import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.data.box_images import HEIGHT, NAMES, WIDTH, some_objects, write_boxed
from vitrail import open_dataset
from vitrail.cli.main import run
from vitrail.data import convert_boxes as convert_boxes_module
from vitrail.data.convert_boxes import convert_boxes
from vitrail.data.decode import ORIENTATION_TAG, decode
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.data.sources.objects import build_objects
from vitrail.errors import VitrailError

Found = dict[str, dict[str, list[tuple[str, tuple[float, ...], bool]]]]  # split: file: class, box, crowd
READ = ("coco", "yolo", "voc", "csv")  # formats with a reader
FOLDERS = {"train": "train", "validation": "val"}
Capture = pytest.CaptureFixture[str]


def parse_coco(root: Path) -> Found:
    found: Found = {}
    for split, folder in FOLDERS.items():
        content = json.loads((root / f"annotations/instances_{folder}.json").read_text())
        names = {category["id"]: category["name"] for category in content["categories"]}
        assert list(names.values()) == list(NAMES)
        files = {image["id"]: image["file_name"] for image in content["images"]}
        assert all((image["height"], image["width"]) == (HEIGHT, WIDTH) for image in content["images"])
        found[split] = {file: [] for file in files.values()}
        for each in content["annotations"]:
            left, top, width, height = each["bbox"]
            box = left, top, left + width, top + height
            found[split][files[each["image_id"]]].append((names[each["category_id"]], box, bool(each["iscrowd"])))
    return found


def parse_yolo(root: Path) -> Found:
    names = [json.loads(line.split(": ", 1)[1]) for line in (root / "data.yaml").read_text().splitlines() if line[0] == " "]
    assert names == list(NAMES)
    found: Found = {}
    for split, folder in FOLDERS.items():
        assert f"{folder}: images/{folder}\n" in (root / "data.yaml").read_text()
        found[split] = {}
        for path in (root / "labels" / folder).glob("*.txt"):
            rows = [line.split() for line in path.read_text().splitlines()]
            found[split][f"{path.stem}.jpg"] = [
                (names[int(label)], (x - w / 2, y - h / 2, x + w / 2, y + h / 2), False)
                for label, *numbers in rows
                for x, y, w, h in [np.array(numbers, float) * [WIDTH, HEIGHT, WIDTH, HEIGHT]]
            ]
    return found


def parse_voc(root: Path) -> Found:
    found: Found = {}
    for split, folder in FOLDERS.items():
        found[split] = {}
        for stem in (root / f"ImageSets/Main/{folder}.txt").read_text().split():
            annotation = ElementTree.parse(root / f"Annotations/{stem}.xml").getroot()
            found[split][str(annotation.findtext("filename"))] = [
                (
                    str(each.findtext("name")),
                    tuple(
                        float(each.findtext(f"bndbox/{name}") or "nan") - (name in ("xmin", "ymin"))
                        for name in ("xmin", "ymin", "xmax", "ymax")
                    ),
                    each.findtext("difficult") == "1",
                )
                for each in annotation.iter("object")
            ]
    return found


def parse_csv(root: Path) -> Found:
    found: Found = {split: {} for split in FOLDERS}
    with open(root / "boxes.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            of_image = found[row["split"]].setdefault(Path(row["path"]).name, [])
            assert (root / row["path"]).is_file()
            if row["label"]:
                box = tuple(float(row[side]) for side in ("left", "top", "right", "bottom"))
                of_image.append((row["label"], box, row["crowd"] == "1"))
    return found


PARSERS: dict[str, Callable[[Path], Found]] = {"coco": parse_coco, "yolo": parse_yolo, "voc": parse_voc, "csv": parse_csv}


def splits(root: Path) -> dict[str, Dataset]:
    one = build_objects([[3, 4, 5, 6]], [1])
    return {"train": write_boxed(root / "a", some_objects()), "validation": write_boxed(root / "b", [one, some_objects()[1]])}


def file_contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", PARSERS)
def test_what_is_written_is_the_dataset(to: str, tmp_path: Path) -> None:
    """Every box with its class, images without any, and each image byte for byte."""
    data = splits(tmp_path)
    report = convert_boxes(tmp_path / "out", data, to)
    found = PARSERS[to](tmp_path / "out")
    assert report.counts == {"train": 5, "validation": 2}
    images = {path.stem: path.read_bytes() for path in (tmp_path / "out").rglob("*.jpg")}
    assert len(images) == 7
    for split, dataset in data.items():
        # the second split has names that the first one has, too
        stems = [f"{index}" if split == "train" else f"{index}-2" for index in range(len(dataset))]
        assert set(found[split]) == {f"{stem}.jpg" for stem in stems}
        for index, stem in enumerate(stems):
            assert images[stem] == dataset.read(index)
            objects = dataset.objects(index)
            if to == "yolo":
                objects = objects[~objects.crowd]
            rows = found[split][f"{stem}.jpg"]
            assert [name for name, _, _ in rows] == [NAMES[label] for label in objects.labels]
            assert [crowd for _, _, crowd in rows] == objects.crowd.tolist()
            is_clipped = to in ("yolo", "voc")
            expected = np.clip(objects.boxes, 0, [WIDTH, HEIGHT] * 2) if is_clipped else objects.boxes
            np.testing.assert_allclose(np.array([box for _, box, _ in rows]).reshape(-1, 4), expected, atol=1e-6)


def test_what_a_format_cannot_hold_is_said(tmp_path: Path) -> None:
    data = splits(tmp_path)
    assert convert_boxes(tmp_path / "coco", data, "coco").notes == []
    area = "has no areas: metrics sort an object by the area of its box, no longer by another one"
    outside = "are inside of their image: a box that reaches out ends at its edge"
    assert set(convert_boxes(tmp_path / "yolo", data, "yolo").notes) == {
        f"YOLO {area}",
        f"boxes of YOLO {outside}",
        "YOLO has no crowds: a crowd is left out, and counts as background",
    }
    pixel = build_objects([[3, 4, 4, 9]], [1])
    data |= {"test": write_boxed(tmp_path / "c", [pixel, pixel])}
    assert set(convert_boxes(tmp_path / "voc", data, "voc").notes) == {
        f"Pascal VOC {area}",
        f"boxes of Pascal VOC {outside}",
        "2 boxes of one pixel have the same corner twice in Pascal VOC, and will be taken for degenerate",
        "Pascal VOC has no list of classes, so their order becomes that of their names",
    }
    only_dogs = {"train": write_boxed(tmp_path / "d", [build_objects([[3, 4, 5, 9]], [1])])}
    assert convert_boxes(tmp_path / "dogs", only_dogs, "voc").notes[0] == (
        "Pascal VOC has no list of classes, so those without a box are lost: cat, bird & wing"
    )


@pytest.mark.parametrize("to", PARSERS)
def test_an_interrupted_job_is_resumed(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is not read again, and the result is the same."""
    data = splits(tmp_path)
    convert_boxes(tmp_path / "unbroken", data, to)
    monkeypatch.setattr(convert_boxes_module, "CHUNK", 2)

    def stop(what: str, done: int, total: int | None) -> None:
        if (what, done) == ("writing train", 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_boxes(tmp_path / "out", data, to, progress=stop)
    assert not (tmp_path / "out").exists()
    with open(tmp_path / "out.part/.records.jsonl", "a") as file:
        file.write('{"split": "tr')  # as of a killed process
    (tmp_path / "a/0.jpg").unlink()  # is written already
    with pytest.raises(VitrailError, match="belongs to another job"):
        convert_boxes(tmp_path / "out", data, "csv" if to == "coco" else "coco")
    report = convert_boxes(tmp_path / "out", data, to)
    assert report.resumed_images == 4
    assert not report.skipped
    assert file_contents(tmp_path / "out") == file_contents(tmp_path / "unbroken")
    assert not (tmp_path / "out.part").exists()


def test_images_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    data: dict[str, Dataset] = {"train": write_boxed(tmp_path / "a", some_objects() * 8)}
    (tmp_path / "a/3.jpg").write_bytes(b"<html>")
    report = convert_boxes(tmp_path / "out", data, "coco")
    assert report.counts == {"train": 39}
    assert [sentence.split(": ")[0] for sentence in report.skipped] == [f"{tmp_path / 'a/3.jpg'} cannot be decoded"]
    for number in (4, 5):
        (tmp_path / f"a/{number}.jpg").unlink()
    with pytest.raises(VitrailError, match=r"3 images cannot be used, more than the tolerated fraction of 0\.05, the last"):
        convert_boxes(tmp_path / "other", data, "coco")
    assert not (tmp_path / "other").exists()


def test_names_of_files(tmp_path: Path) -> None:
    """Spaces, which lists of names are separated at, and names that differ in nothing but their case."""
    data = write_boxed(tmp_path / "a", some_objects()[:3])
    for old, new in (("0.jpg", "my cat.JPG"), ("1.jpg", "X.jpg"), ("2.jpg", "x.jpeg")):
        (tmp_path / "a" / old).rename(tmp_path / "a" / new)
    object.__setattr__(data, "paths", ["my cat.JPG", "X.jpg", "x.jpeg"])
    convert_boxes(tmp_path / "out", {"train": data}, "voc")
    assert sorted(path.name for path in (tmp_path / "out/JPEGImages").iterdir()) == ["X.jpg", "my_cat.JPG", "x-2.jpeg"]
    assert (tmp_path / "out/ImageSets/Main/train.txt").read_text().split() == ["my_cat", "X", "x-2"]


def test_the_command(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["data", "convert", "panes:train_size=5,size=16x32", str(tmp_path / "out"), "--to", "csv"]
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["counts"] == {"train": 5, "validation": 1, "test": 1}
    assert result["classes"] == ["figure"]
    assert result["path"] == str(tmp_path / "out/boxes.csv")
    assert result["boxes"]["train"] == (tmp_path / "out/boxes.csv").read_text().count(",train,")
    assert set(result) == {"path", "to", "classes", "counts", "boxes", "skipped", "resumed", "notes"}
    assert run(arguments) == 2
    assert "OUT must be a folder that is new or empty" in capsys.readouterr().err
    assert run([*arguments[:3], str(tmp_path / "text"), "--to", "yolo"]) == 0
    assert "wrote 5 train with" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["fashion", "table"])
def test_what_has_no_boxes_is_refused(source: str, tmp_path: Path, capsys: Capture) -> None:
    write_boxed(tmp_path / "photos/cat", some_objects())
    write_boxed(tmp_path / "photos/dog", some_objects())
    name = "fashion" if source == "fashion" else str(tmp_path / "photos")
    assert run(["data", "convert", name, str(tmp_path / "out"), "--to", "coco"]) == 2
    error = capsys.readouterr().err
    assert f"{name} has no boxes, which detection learns from; name a COCO file" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.part").exists()


def test_other_refusals(tmp_path: Path) -> None:
    data = splits(tmp_path)
    with pytest.raises(VitrailError, match="boxes can be written as coco, yolo, voc, csv, got 'vok'; did you mean 'voc'"):
        convert_boxes(tmp_path / "out", data, "vok")
    object.__setattr__(data["train"], "class_names", ("cat", "d\nog", "bird"))
    with pytest.raises(VitrailError, match=r"the class 'd\\nog' cannot be written as text"):
        convert_boxes(tmp_path / "out", data, "voc")


def test_open_dataset_takes_boxed_files(tmp_path: Path) -> None:
    data = open_dataset(splits(tmp_path))
    assert data.train.has_box_targets
    assert data.class_names == NAMES


Content = dict[str, dict[str, list[tuple[str, list[float], bool]]]]  # split: hash of the image: class, box and crowd


def content(data: DatasetSplits) -> Content:
    """Return the objects of every image, by the image's own bytes."""
    found: Content = {}
    for split, part in data.splits.items():
        found[split] = {}
        for index in range(len(part)):
            image, objects = part.read(index), part.objects(index)
            assert isinstance(image, bytes)
            columns = objects.labels.tolist(), objects.boxes.round(5).tolist(), objects.crowd.tolist()
            rows = [(data.class_names[label], box, crowd) for label, box, crowd in zip(*columns, strict=True)]
            found[split][hashlib.sha256(image).hexdigest()] = rows
    return found


def read_boxes(path: Path) -> DatasetSplits:
    table = path / "boxes.csv"
    return open_dataset(table if table.is_file() else path, columns=Columns(boxes=True))


def every_split(root: Path) -> dict[str, Dataset]:
    """Return splits with whole boxes in fractions of pixels, without crowds, and an image that its EXIF turns."""
    inside = some_objects()[:3]
    data: dict[str, Dataset] = {split: write_boxed(root / split, inside) for split in ("train", "validation", "test")}
    image = Image.open(root / "train/0.jpg")
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(root / "train/0.jpg", exif=exif)
    assert decode(root / "train/0.jpg").size == (WIDTH, HEIGHT)
    return data


@pytest.mark.parametrize("second", READ)
@pytest.mark.parametrize("first", READ)
def test_a_dataset_is_read_back_from_every_pair_of_formats(first: str, second: str, tmp_path: Path) -> None:
    convert_boxes(tmp_path / "first", every_split(tmp_path / "source"), first)
    before = read_boxes(tmp_path / "first")
    convert_boxes(tmp_path / "second", before.splits, second)
    after = read_boxes(tmp_path / "second")
    assert content(before) == content(after)
    assert [len(part) for part in after.splits.values()] == [3, 3, 3]
    assert set(after.class_names) == set(NAMES)
    if {first, second} <= {"coco", "yolo"}:  # which list their classes
        assert after.class_names == NAMES


def test_a_chain_of_formats_ends_where_it_began(tmp_path: Path) -> None:
    data = every_split(tmp_path / "source")
    convert_boxes(tmp_path / "start", data, READ[0])
    expected, path = content(read_boxes(tmp_path / "start")), tmp_path / "start"
    assert sum(len(rows) for of_split in expected.values() for rows in of_split.values()) == 9
    for to in (*READ[1:], READ[0]):
        source = path / "boxes.csv" if (path / "boxes.csv").is_file() else path
        assert run(["data", "convert", str(source), str(tmp_path / f"to-{to}"), "--to", to]) == 0
        path = tmp_path / f"to-{to}"
    assert content(read_boxes(path)) == expected


@pytest.mark.parametrize("to", ["coco", "voc", "csv"])
def test_crowds_and_areas_come_back(to: str, tmp_path: Path) -> None:
    data = splits(tmp_path)
    convert_boxes(tmp_path / "out", data, to)
    after = read_boxes(tmp_path / "out")
    assert sum(part.objects(index).crowd.sum() for part in after.splits.values() for index in range(len(part))) == 1
    if to == "coco":
        areas = [part.objects(index).areas.tolist() for part in after.splits.values() for index in range(len(part))]
        assert [100.0] in areas


def test_a_full_disk_is_one_sentence_and_no_skipped_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, write = splits(tmp_path), Path.write_bytes

    def fail(path: Path, content: bytes) -> int:
        if path.name == "3.jpg":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail)
        with pytest.raises(OSError, match=r"out cannot be written: No space left on device; partial output is in"):
            convert_boxes(tmp_path / "out", data, "coco")
    assert not (tmp_path / "out").exists()
    report = convert_boxes(tmp_path / "out", data, "coco")
    assert (report.counts, report.skipped) == ({"train": 5, "validation": 2}, [])
