"""Pascal VOC's XML as datasets of boxes."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.coco_images import write_image
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.fold import Fold
from vitrail.data.sources.folds import fold_splits
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError

SIZE = (20, 32)
BCCD = Path(__file__).parents[5] / "shared/real/bccd"
Box = tuple[Any, Any, Any, Any]
CAT, DOG = ("cat", (1, 3, 9, 12), 0), ("dog", (5, 2, 32, 20), 1)


def annotation(objects: list[tuple[str, Box, int]], size: tuple[int, int] | None = SIZE) -> str:
    """Return XML of objects: a name, the corners, and whether they are difficult."""
    sides = "" if size is None else f"<size><width>{size[1]}</width><height>{size[0]}</height><depth>3</depth></size>"
    of_objects = "".join(
        f"<object><name>{name}</name><part><name>ear</name><bndbox><xmin>7</xmin></bndbox></part><difficult>{difficult}"
        f"</difficult><bndbox><xmax>{box[2]}</xmax><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><ymax>{box[3]}</ymax></bndbox>"
        "</object>"
        for name, box, difficult in objects
    )
    return f"<?xml version='1.0'?>\n<annotation><filename>other.jpg</filename>{sides}{of_objects}</annotation>\n"


def write(root: Path, files: dict[str, str], images: str = "JPEGImages", xml: str = "Annotations") -> None:
    """Write images and annotations by ``split/name``."""
    for seed, (name, text) in enumerate(files.items()):
        split, _, stem = name.rpartition("/")
        write_image(root / images.format(split=split) / f"{stem}.png", SIZE, seed)
        path = root / xml.format(split=split) / f"{stem}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_lists(root: Path, **lists: list[str]) -> None:
    folder = root / "ImageSets/Main"
    folder.mkdir(parents=True)
    for name, stems in lists.items():
        (folder / f"{name}.txt").write_text("".join(f"{stem}  1\n" for stem in stems))


def read(root: Path, **options: Any) -> DatasetSplits:
    return open_dataset(root, split_fractions=SplitFractions(0.0, 0.0), **options)


def test_boxes_are_pixels_from_0_whose_right_and_bottom_are_outside(tmp_path: Path) -> None:
    """Pascal VOC counts from 1, and the last pixel is inside: its box of all of an image is from 1 to the width."""
    write(tmp_path, {"a": annotation([CAT, ("cat", (1, 1, SIZE[1], SIZE[0]), 0), DOG]), "b": annotation([])})
    data = read(tmp_path)
    assert data.class_names == data.train.box_names == ("cat", "dog")
    assert data.train.has_box_targets
    assert data.columns == Columns(boxes=True)
    objects = data.train.objects(0)
    np.testing.assert_array_equal(objects.boxes, [[0, 2, 9, 12], [0, 0, SIZE[1], SIZE[0]], [4, 1, 32, 20]])
    assert objects.labels.tolist() == [0, 0, 1]
    assert objects.crowd.tolist() == [False, False, True]
    assert objects.areas.tolist() == [90, SIZE[0] * SIZE[1], 28 * 19]
    assert len(data.train.objects(1)) == 0
    notes = "\n".join(data.notes)
    assert "3 boxes of 2 classes (cat, dog): 3 in 2 images\n" in notes
    assert "1 image without objects, first " in notes
    assert "1 object is difficult: not learned" in notes
    assert "count pixels from 1" in notes


def test_a_box_that_begins_at_0_shows_that_pixels_are_counted_from_0(tmp_path: Path) -> None:
    write(tmp_path, {"a": annotation([("cat", (3, 0, 9, 12), 0)]), "b": annotation([CAT])})
    data = read(tmp_path)
    np.testing.assert_array_equal(data.train.objects(1).boxes, [[1, 3, 9, 12]])
    assert any("a box begins at 0" in note for note in data.notes)


def test_splits_are_those_of_the_lists(tmp_path: Path) -> None:
    write(tmp_path, {name: annotation([CAT]) for name in "abcde"})
    write_lists(tmp_path, trainval=["a", "b", "nowhere"], test=["c"])
    data = open_dataset(tmp_path, columns=Columns(boxes=True), split_fractions=SplitFractions(0.0, 0.0))
    assert [data.train.title(index) for index in range(2)] == ["a.png", "b.png"]
    assert (len(data.train), len(data.test)) == (2, 1)
    notes = "\n".join(data.notes)
    assert "2 images are in no list of ImageSets/Main" in notes
    assert "1 name in ImageSets/Main without an image and annotations, left out, first " in notes
    assert [file.reason for file in data.left_out] == ["does not exist"]


@pytest.mark.parametrize(
    ("images", "xml"),
    [
        ("{split}", "{split}"),
        ("{split}/images", "{split}/annotations"),
        ("{split}/JPEGImages", "{split}/Annotations"),
        ("images/{split}", "Annotations/{split}"),
        ("images/{split}", "annotations/xmls/{split}"),
    ],
)
def test_splits_are_those_of_the_folders(images: str, xml: str, tmp_path: Path) -> None:
    files = {"train/a": annotation([CAT]), "train/b": annotation([DOG]), "valid/a": annotation([]), "test/c": annotation([])}
    write(tmp_path, files, images, xml)
    data = read(tmp_path)
    assert [len(part) for part in data.splits.values()] == [2, 1, 1]
    assert data.train.objects(1).labels.tolist() == [1]
    assert data.validation.class_names == ("cat", "dog")


def test_files_beside_each_other_are_split_by_content(tmp_path: Path) -> None:
    write(tmp_path, {f"{number}.v2": annotation([CAT]) for number in range(10)}, ".", ".")
    write_image(tmp_path / "unlabelled.png", SIZE, 99)
    (tmp_path / "imageless.xml").write_text(annotation([DOG]))
    data = open_dataset(tmp_path)
    assert [len(part) for part in data.splits.values()] == [8, 1, 1]
    assert {file.reason for file in data.left_out} == {"has no annotations", "is of no image"}
    assert "1 image that has no annotations, left out, first " in "\n".join(data.notes)
    assert data.class_names == ("cat",)
    assert not any("single class" in note for note in data.notes)  # one class is enough to detect


def test_degenerate_boxes_are_left_out_counted_and_named(tmp_path: Path) -> None:
    click, outside, partly = ("cat", (7, 8, 7, 8), 0), ("cat", (40, 1, 50, 9), 0), ("dog", (30, 1, 50, 9), 0)
    write(tmp_path, {"a": annotation([CAT, click, outside, partly]), "b": annotation([("cat", ("nan", 1, 5, 5), 0)])})
    data = read(tmp_path)
    assert data.train.objects(0).boxes.tolist() == [[0, 2, 9, 12], [29, 0, 50, 9]]
    assert [(fault.image, fault.number, fault.kind) for fault in data.train.box_faults()] == [
        (0, 2, "degenerate"), (0, 3, "outside"), (0, 4, "partly outside"), (1, 1, "not finite")
    ]  # fmt: skip
    file = tmp_path / "Annotations/a.xml"
    assert data.train.describe_object(0, 2) == f"{file}, object 2"
    assert f"1 box is degenerate, without a width or a height, and left out: {file}, object 2" in data.notes
    assert f"1 box is partly outside of the image and kept; training clips them: {file}, object 4" in data.notes


def test_an_image_of_unknown_size_is_measured(tmp_path: Path) -> None:
    """Which tools write that do not know it."""
    outside = ("cat", (40, 1, 50, 9), 0)
    write(tmp_path, {"a": annotation([CAT, outside], (0, 0)), "b": annotation([CAT, outside], None)})
    faults = read(tmp_path).train.box_faults()
    assert [(fault.image, fault.number, fault.kind) for fault in faults] == [(0, 2, "outside"), (1, 2, "outside")]


def test_annotations_of_another_size_than_their_image_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": annotation([CAT], (40, 64))})
    with pytest.raises(VitrailError, match="is 32 x 20 pixels, and its annotations are of 64 x 40"):
        read(tmp_path).train.objects(0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is empty"),
        ("<annotation><object>", "not valid XML, no element found in line 1"),
        ("<kml></kml>", "its root must be annotation, got 'kml'"),
        (annotation([("", (1, 2, 3, 4), 0)]), "whose object 1 has no name"),
        (annotation([CAT, ("cat", ("wide", 2, 3, 4), 0)]), "whose object 2 must have numbers in its bndbox, got xmin 'wide'"),
        ("<annotation><object><name>cat</name></object></annotation>", r"whose object 1 \(cat\) has no bndbox"),
        (annotation([CAT]).replace("xmax>", "x2>"), "whose object 1 has no xmax in its bndbox"),
        (
            "<!DOCTYPE a [<!ENTITY b '" + "c" * 99 + "'>]><annotation>&b;&b;</annotation>",
            "it declares a document type, which annotations do not need",
        ),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_object(text: str, sentence: str, tmp_path: Path) -> None:
    write(tmp_path, {"a": annotation([CAT]), "b": text})
    data = read(tmp_path)
    with pytest.raises(VitrailError, match=rf"has annotations .*b\.xml .*{sentence}"):
        data.train.objects(1)
    assert any("1 image whose annotations cannot be used, first" in note and "b.xml" in note for note in data.notes)
    assert len(data.train.objects(0)) == 1
    (tmp_path / "Annotations/a.xml").write_text(text)
    if "<annotation>" in text:
        with pytest.raises(VitrailError, match=rf"the first image has annotations .*a\.xml .*{sentence}"):
            read(tmp_path)


def test_entities_are_never_expanded_whatever_the_encoding(tmp_path: Path) -> None:
    write(tmp_path, {"a": annotation([CAT]), "b": ""})
    bomb = "<!DOCTYPE a [<!ENTITY b 'cccc'><!ENTITY d '&b;&b;&b;&b;'>]><annotation><object>&d;</object></annotation>"
    (tmp_path / "Annotations/b.xml").write_text(f"<?xml version='1.0' encoding='utf-16'?>{bomb}", encoding="utf-16")
    with pytest.raises(VitrailError, match="declares a document type"):
        read(tmp_path).train.objects(1)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a": annotation([CAT]), "b": annotation([CAT] * 50)})
    monkeypatch.setattr("vitrail.data.sources.voc.annotation_file.MAX_BYTES", 2000)
    with pytest.raises(VitrailError, match="more than 2,000 bytes"):
        read(tmp_path).train.objects(1)


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": annotation([])})
    with pytest.raises(VitrailError, match=r"the 1 annotations of .* have no object"):
        read(tmp_path)
    write_lists(tmp_path, train=["b"])
    with pytest.raises(VitrailError, match="has no image and annotation that ImageSets/Main lists"):
        read(tmp_path)
    (tmp_path / "JPEGImages/a.png").rename(tmp_path / "JPEGImages/c.png")
    with pytest.raises(
        VitrailError, match=r"has the name of one of its 1 XML files, such as Annotations/a.xml for JPEGImages/c.png"
    ):
        read(tmp_path)


def test_folders_of_classes_are_not_taken_for_boxes(tmp_path: Path) -> None:
    """Other XML may be beside images."""
    for name in ("cat", "dog"):
        write_image(tmp_path / name / "0.png", SIZE, 3)
        (tmp_path / name / "0.png.aux.xml").write_text("<PAMDataset></PAMDataset>")
    (tmp_path / "about.xml").write_text("<PAMDataset></PAMDataset>")
    assert read(tmp_path).class_names == ("cat", "dog")


def test_a_folder_without_boxes_is_refused_if_they_are_asked_for(tmp_path: Path) -> None:
    for folder in ("images", "Annotations"):
        write_image(tmp_path / folder / "0.png", SIZE, 3)
    with pytest.raises(VitrailError, match=r"has no boxes, which detection learns from; name a COCO file, a folder with"):
        read(tmp_path, columns=Columns(boxes=True))


def test_folders_are_classes_by_choice(tmp_path: Path) -> None:
    """And again when the run is resumed, with the columns that it has recorded."""
    write(tmp_path, {"a": annotation([CAT])})
    write_image(tmp_path / "cat/0.png", SIZE, 3)
    data = read(tmp_path, columns=Columns(masks=False, boxes=False))
    assert data.class_names == ("JPEGImages", "cat")
    assert any("which --task detect reads as boxes" in note for note in data.notes)
    assert read(tmp_path, columns=data.columns).fingerprint == data.fingerprint


def test_masks_beside_annotations_are_read_unless_boxes_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {"a": annotation([CAT]), "b": annotation([DOG])})
    for name in "ab":
        path = tmp_path / f"SegmentationClass/{name}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((np.arange(SIZE[0] * SIZE[1]).reshape(SIZE) % 2).astype(np.uint8)).save(path)
    (tmp_path / "classes.txt").write_text("background\nanimal\n")
    assert read(tmp_path).train.has_mask_targets
    data = read(tmp_path, columns=Columns(boxes=True))
    assert data.train.has_box_targets
    assert data.left_out == ()  # masks are no images without annotations


def test_missing_splits_and_folds_have_their_share_of_each_class(tmp_path: Path) -> None:
    """Also of one that is in few images."""
    rare = ("bird", (2, 2, 9, 9), 0)
    files = {str(number): annotation([CAT, rare] if number in (3, 11, 17, 29, 31) else [CAT]) for number in range(40)}
    write(tmp_path, {**files, "bad": "<annotation>"})
    data = open_dataset(tmp_path, split_fractions=SplitFractions(0.2, 0.2))
    birds = {split: sum(0 in part.objects(index).labels for index in range(len(part)) if part.title(index) != "bad.png")
             for split, part in data.splits.items()}  # fmt: skip
    assert birds == {"train": 3, "validation": 1, "test": 1}
    fold = fold_splits(data, Fold(2, 5), 0.0)
    assert fold.test.has_box_targets
    assert sum(0 in fold.test.objects(index).labels for index in range(len(fold.test))) == 1


def test_the_fingerprint_changes_with_any_box(tmp_path: Path) -> None:
    keys = set()
    for text in ([CAT, DOG], [DOG, CAT], [CAT], [("cat", (1, 3, 9, 13), 0), DOG], [("cat", CAT[1], 1), DOG]):
        write(tmp_path, {"a": annotation(text), "b": annotation([CAT, DOG])})
        data = read(tmp_path)
        keys.add((data.fingerprint, data.train.cache_key()))
    assert len({fingerprint for fingerprint, _ in keys}) == len({key for _, key in keys}) == 5


@pytest.mark.skipif(not BCCD.is_dir(), reason="the blood cells are not on this machine")
@pytest.mark.thorough
def test_blood_cells() -> None:
    data = open_dataset(BCCD)
    assert [len(part) for part in data.splits.values()] == [205, 87, 72]
    assert data.class_names == ("Platelets", "RBC", "WBC")
    faults = [fault for part in data.splits.values() for fault in part.box_faults()]
    assert [(fault.kind, fault.number) for fault in faults] == [("degenerate", 4), ("degenerate", 13)]
    found = Counter(
        data.class_names[label] for part in data.splits.values() for i in range(len(part)) for label in part.objects(i).labels
    )
    names = Counter(re.findall(r"<name>(.*?)</name>", "".join(path.read_text() for path in BCCD.glob("Annotations/*.xml"))))
    assert (names - found).total() == 2
    assert open_dataset(BCCD, columns=Columns(boxes=True)).fingerprint == data.fingerprint
