"""Boxes in datasets of Hugging Face's library."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError

pytestmark = pytest.mark.parity
datasets: Any = pytest.importorskip("datasets")
HEIGHT, WIDTH = 20, 32
CLASSES = datasets.ClassLabel(names=["dog", "cat"])
FLOATS = datasets.List(datasets.Value("float64"))


def image_bytes(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((HEIGHT, WIDTH, 3), number, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def save(
    folder: Path,
    objects: list[Any],
    fields: dict[str, Any] | None = None,
    as_list: bool = False,
    others: dict[str, tuple[Any, list[Any]]] | None = None,
) -> Path:
    """Save a dataset of images with these objects; ``others``: feature and values of more columns."""
    each = fields or {"bbox": FLOATS, "category": CLASSES}
    feature = datasets.List(each) if as_list else {name: datasets.List(kind) for name, kind in each.items()}
    images = [{"bytes": image_bytes(number), "path": None} for number in range(len(objects))]
    more = others or {}
    features = {"image": datasets.Image(), "objects": feature, **{name: kind for name, (kind, _) in more.items()}}
    content = {"image": images, "objects": objects, **{name: values for name, (_, values) in more.items()}}
    datasets.Dataset.from_dict(content, features=datasets.Features(features)).save_to_disk(folder)
    return folder


def read(folder: Path, **columns: Any) -> DatasetSplits:
    return open_dataset(folder, columns=Columns(**columns), split_fractions=SplitFractions(0.0, 0.0))


@pytest.mark.parametrize("as_list", [False, True])
def test_objects_are_lists_or_dictionaries(as_list: bool, tmp_path: Path) -> None:
    objects: list[Any] = [
        {"bbox": [[3, 4, 20, 10], [0, 0, 32, 20]], "category": [1, 0], "area": [12, 13], "iscrowd": [0, 1]},
        {"bbox": [], "category": [], "area": [], "iscrowd": []},
    ]
    if as_list:
        objects = [[dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)] for each in objects]
    numbers = datasets.Value("int64")
    fields = {"bbox": FLOATS, "category": CLASSES, "area": numbers, "iscrowd": numbers}
    data = read(save(tmp_path / "set", objects, fields, as_list))
    assert data.class_names == ("dog", "cat")
    assert data.columns == Columns(boxes=True)
    first = data.train.objects(0)
    assert first.boxes.tolist() == [[3, 4, 23, 14], [0, 0, 32, 20]]
    assert first.labels.tolist() == [1, 0]
    assert first.areas.tolist() == [12, 13]
    assert first.crowd.tolist() == [False, True]
    assert len(data.train.objects(1)) == 0
    assert "bbox of the column objects is taken as left, top, width and height, as COCO's, in pixels" in data.notes
    assert data.train.describe_object(0, 2).endswith("object 2")


def test_boxes_that_only_fit_as_corners_are_corners(tmp_path: Path) -> None:
    corners = [{"bbox": [[3, 4, 23, 14], [20, 5, 32, 18]], "category": [1, 0]}]
    data = read(save(tmp_path / "set", corners))
    assert data.train.objects(0).boxes.tolist() == corners[0]["bbox"]
    assert any("is taken as left, top, right and bottom, in pixels" in note for note in data.notes)


def test_fractions_and_sizes_of_images(tmp_path: Path) -> None:
    data = read(save(tmp_path / "a", [{"bbox": [[0.25, 0.5, 0.5, 0.25]], "category": [1]}]))
    assert data.train.objects(0).boxes.tolist() == [[8, 10, 24, 15]]
    sizes = {name: (datasets.Value("int64"), [value]) for name, value in (("width", 64), ("height", 40))}
    data = read(save(tmp_path / "b", [{"bbox": [[30, 4, 20, 10]], "category": [1]}], others=sizes))
    with pytest.raises(VitrailError, match="is 32 x 20 pixels, and its annotations are of 64 x 40"):
        data.train.objects(0)


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [("string", ["wolf", "bear"], ("bear", "wolf")), ("int64", [0, 2], ("0", "1", "2"))],
)
def test_classes_without_declared_names(kind: str, values: list[Any], names: tuple[str, ...], tmp_path: Path) -> None:
    objects = [{"bbox": [[3, 4, 20, 10]] * 2, "label": values}]
    data = read(save(tmp_path / "set", objects, {"bbox": FLOATS, "label": datasets.Value(kind)}))
    assert data.class_names == names
    assert [data.class_names[label] for label in data.train.objects(0).labels] == list(map(str, values))


def test_labels_of_images_are_the_targets_unless_boxes_are_asked_for(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", [{"bbox": [[3, 4, 20, 10]], "category": [1]}] * 2, others={"label": (CLASSES, [0, 1])})
    assert read(folder).train.labels.tolist() == [0, 1]
    assert read(folder, boxes=True).train.has_box_targets
    assert not open_dataset(folder, labelled=False).train.has_box_targets


def test_faults_are_named_by_their_row(tmp_path: Path) -> None:
    folder = save(
        tmp_path / "set", [{"bbox": [], "category": []}, {"bbox": [[3, 4, 20, 10], [3, 4, 0, 10]], "category": [1, 0]}]
    )
    data = read(folder)
    assert [(fault.image, fault.number, fault.kind) for fault in data.train.box_faults()] == [(1, 2, "degenerate")]
    assert f"1 box is degenerate, without a width or a height, and left out: row 2 of {folder}, object 2" in data.notes


@pytest.mark.parametrize(
    ("objects", "fields", "sentence"),
    [
        (
            {"bbox": [[1, 2, 3]], "category": [1]},
            None,
            r"row 1 of .*: objects must have four numbers for each box, got \[1.0, 2.0",
        ),
        (
            {"bbox": ["1 2 3 4"], "category": [1]},
            {"bbox": datasets.Value("string"), "category": CLASSES},
            "got 1 2 3 4 for object 1",
        ),
        ({"bbox": [[1, 2, 3, 4]], "category": []}, None, "must have as many of each for an image, got 1 bbox, 0 category"),
        ({"bbox": [[1, 2, 3, 4]], "category": [-1]}, None, "objects has the category -1, and there are 2 classes"),
    ],
)
def test_an_object_that_is_wrong_is_named(objects: Any, fields: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=sentence):
        read(save(tmp_path / "set", [objects], fields))


def test_a_dataset_without_boxes_is_refused_where_they_are_needed(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", [{"category": [1]}], {"category": CLASSES})
    with pytest.raises(VitrailError, match="has no column of objects with boxes, only objects; it is named objects"):
        read(folder, boxes=True)


def test_the_fingerprint_changes_with_any_box(tmp_path: Path) -> None:
    boxes = [[[3, 4, 20, 10]], [[3, 4, 20, 11]], []]
    folders = [
        save(tmp_path / str(number), [{"bbox": each, "category": [1] * len(each)}] * 2) for number, each in enumerate(boxes)
    ]
    assert len({read(folder).fingerprint for folder in folders}) == 3
