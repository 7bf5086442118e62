"""Polygons in YOLO's layout as datasets of masks."""

from pathlib import Path

import numpy as np
import pytest

import vitrail
from tests.data.coco_images import write_image
from vitrail.data.dataset_check import check_dataset
from vitrail.data.mask_codes import polygons_of, rasterise
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import IGNORED, DatasetSplits
from vitrail.data.sources.yolo.small_yaml import read_small_yaml
from vitrail.errors import VitrailError

SIZE = (20, 32)
YAML = "path: /content/somewhere\ntrain: images/train\nval: images/val\n\nnames:  # of the classes\n  0: cat\n  1: 'big dog'\n"
LARGE, SMALL = [2.0, 2.0, 30.0, 3.0, 25.0, 18.0], [5.0, 4.0, 20.0, 4.0, 20.0, 12.0, 5.0, 12.0]


def _line(number: int, polygon: list[float], size: tuple[int, int] = SIZE) -> str:
    sides = [size[1], size[0]] * (len(polygon) // 2)
    return " ".join([str(number), *(repr(place / side) for place, side in zip(polygon, sides, strict=True))])


def _write(root: Path, labels: dict[str, str | None], yaml: str = YAML, layout: str = "{role}/{split}") -> None:
    """Write images and label files by ``split/name``."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "data.yaml").write_text(yaml)
    for seed, (name, text) in enumerate(labels.items()):
        split, stem = name.split("/")
        write_image(root / layout.format(role="images", split=split) / f"{stem}.png", SIZE, seed)
        path = root / layout.format(role="labels", split=split) / f"{stem}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)


def _open(root: Path, columns: Columns | None = None) -> DatasetSplits:
    return vitrail.open_dataset(root, columns=columns, split_fractions=SplitFractions(0.0, 0.0))


@pytest.mark.parametrize(
    ("layout", "yaml"),
    [
        ("{role}/{split}", YAML),
        ("{split}/{role}", "train: ../train/images\nval: ../val/images\nnc: 2\nnames: ['cat', 'big dog']\n"),
        ("{split}/{role}", "train: train\nval: val\nnames:\n- cat\n- big dog\n"),
    ],
)
def test_masks_are_the_polygons(layout: str, yaml: str, tmp_path: Path) -> None:
    """The smaller one is on top; both are objects."""
    text = f"{_line(0, SMALL)}\n{_line(1, LARGE)}\n"
    _write(tmp_path, {"train/a": text, "val/b": _line(0, LARGE)}, yaml, layout)
    data = _open(tmp_path)
    assert data.class_names == data.train.mask_names == ("background", "cat", "big dog")
    assert (len(data.train), len(data.validation)) == (1, 1)
    small, large = rasterise([SMALL], SIZE), rasterise([LARGE], SIZE)
    np.testing.assert_array_equal(data.train.mask(0), np.where(small, 1, np.where(large, 2, 0)))
    np.testing.assert_array_equal(data.train.instances(0), np.where(small, 1, np.where(large, 2, 0)))
    np.testing.assert_array_equal(data.validation.mask(0), large.astype(np.int16))
    assert check_dataset(data).ok


def test_any_mask_comes_back_from_its_polygons(tmp_path: Path) -> None:
    """As fractions with all digits."""
    region = np.random.default_rng(0).random(SIZE) < 0.7
    _write(tmp_path, {"train/a": "\n".join(_line(1, polygon) for polygon in polygons_of(region))})
    np.testing.assert_array_equal(_open(tmp_path).train.mask(0), np.where(region, 2, 0))


def test_missing_and_empty_label_files_and_boxes_are_told(tmp_path: Path) -> None:
    box = "1 0.5 0.5 0.25 0.5"
    _write(tmp_path, {"train/a": _line(0, SMALL), "train/b": None, "train/c": "", "train/d": f"{box}\n{_line(0, SMALL)}"})
    data = _open(tmp_path)
    notes = "\n".join(data.notes)
    for part in (
        "1 images have no label file and count as background",
        "1 images have an empty label file",
        "1 lines have a box",
    ):
        assert part in notes
    masks = {data.train.title(index): data.train.mask(index) for index in range(4)}
    assert not masks["b.png"].any()
    assert not masks["c.png"].any()
    inside = np.zeros(SIZE, bool)
    inside[5:15, 12:20] = True
    np.testing.assert_array_equal(masks["d.png"], np.where(rasterise([SMALL], SIZE), 1, np.where(inside, IGNORED, 0)))


def test_polygons_are_of_the_upright_image(tmp_path: Path) -> None:
    _write(tmp_path, {"train/a": _line(0, SMALL, SIZE)})
    write_image(tmp_path / "images/train/a.png", SIZE[::-1], 0)
    (tmp_path / "images/train/a.png").rename(tmp_path / "images/train/a.jpg")
    write_image(tmp_path / "images/train/a.jpg", SIZE[::-1], 0, exif=6)
    np.testing.assert_array_equal(_open(tmp_path).train.mask(0), rasterise([SMALL], SIZE))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0 0.1 0.1 0.5", "line 1 must have a class and at least three corners"),
        (f"{_line(0, SMALL)}\n2 0 0 1 0 1 1", r"a\.txt whose line 2 must have a class from 0 to 1, got 2"),
        ("0 10 10 20 10 20 20", "must have fractions of the image from 0 to 1, got 10"),
        ("cat 0 0 1 0 1 1", "must have a class and numbers, got 'cat"),
        ("0 nan 0 1 0 1 1", "must have fractions"),
    ],
)
def test_a_line_that_is_wrong_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    _write(tmp_path, {"train/a": text, "train/b": _line(0, SMALL)})
    data = _open(tmp_path)
    with pytest.raises(VitrailError, match=sentence):
        data.train.mask(0)
    [bad] = check_dataset(data).bad
    assert bad.location.endswith("a.png")


@pytest.mark.parametrize(
    ("labels", "yaml", "sentence"),
    [
        ({"train/a": "0 0.5 0.5 0.2 0.2"}, YAML, r"has 1 boxes and no polygon in train, first .*a\.txt; a mask is drawn"),
        ({"train/a": None}, YAML, "has no label for any of 1 images in train"),
        ({"train/a": ""}, YAML.replace("images/train", "elsewhere"), "has train: elsewhere, and there is no such folder"),
        ({"train/a": ""}, YAML.replace("0: cat", "5: cat"), "must number its names from 0 to 1, got 5, 1"),
        ({"train/a": ""}, f"nc: 3\n{YAML}", "says nc: 3 and has 2 names"),
        ({"train/a": ""}, "train: images/train\nnames: [cat, cat]", "has a name twice"),
        (
            {"train/a": ""},
            "train: images/train\nnames: cat",
            r"must name its classes, got names: cat; write names: \[cat, dog\]",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(labels: dict[str, str | None], yaml: str, sentence: str, tmp_path: Path) -> None:
    _write(tmp_path, labels, yaml)
    with pytest.raises(VitrailError, match=sentence):
        _open(tmp_path / "data.yaml", Columns(masks=True))


def test_descriptions_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(
        "# a dataset\n---\npath: ../datasets/x  # root\ntrain:\n  - a/images\n  - 'b # 2'\nval: [\"v 1\", v2]\ntest:\n"
        "names: {0: cat, 1: \"it's a dog\", 2: 'o''clock'}\nmore: [one,\n  two, three]  # over two lines\n"
        "roboflow:\n  url: https://example.org/x\ndownload: |\n  import os\n    x = [1, {\n\n  done()\nnc: 3\n"
    )
    assert read_small_yaml(path) == {
        "path": "../datasets/x",
        "train": ["a/images", "b # 2"],
        "val": ["v 1", "v2"],
        "test": "",
        "names": {"0": "cat", "1": "it's a dog", "2": "o'clock"},
        "more": ["one", "two", "three"],
        "roboflow": {"url": "https://example.org/x"},
        "nc": "3",
    }
    path.write_text("names:\n  cat\n")
    with pytest.raises(VitrailError, match="line 2 cannot be read: 'cat'"):
        read_small_yaml(path)


def test_unlabelled_images_of_a_description(tmp_path: Path) -> None:
    _write(tmp_path, {"train/a": None, "val/b": None})
    data = vitrail.open_dataset(tmp_path / "data.yaml", labelled=False)
    assert (len(data.train), len(data.validation)) == (1, 1)
    assert not data.train.has_mask_targets
