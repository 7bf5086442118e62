"""A user's own object whose targets are boxes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reference_libraries import reference_library
from vitrail.data.dataset_check import check_dataset
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.user_boxes import have_boxes
from vitrail.errors import VitrailError

HEIGHT, WIDTH = 20, 32
BOXES, LABELS = [[3, 4, 9.5, 6], [0, 0, 32, 20]], [2, 1]


def image(number: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))


def pairs(*targets: Any) -> list[Any]:
    return [(image(number), target) for number, target in enumerate(targets)]


def read(source: Any, **options: Any) -> DatasetSplits:
    return open_dataset(source, split_fractions=SplitFractions(0.0, 0.0), **options)


@pytest.mark.parametrize("as_type", [list, np.asarray, torch.tensor])
def test_dictionaries_of_boxes_and_labels(as_type: Any) -> None:
    target = {"boxes": as_type(BOXES), "labels": as_type(LABELS), "image_id": 3}
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    crowd = {"boxes": as_type(BOXES), "labels": as_type(LABELS), "iscrowd": as_type([0, 1]), "area": as_type([5.0, 6.0])}
    data = read(pairs(target, empty, crowd))
    train = data.train
    assert train.has_box_targets
    assert data.columns == Columns(boxes=True)
    assert data.class_names == ("0", "1", "2")
    assert train.objects(0).boxes.tolist() == BOXES
    assert train.objects(0).labels.tolist() == LABELS
    assert len(train.objects(1)) == 0
    assert train.objects(2).crowd.tolist() == [False, True]
    assert train.objects(2).areas.tolist() == [5, 6]
    assert train.read(0) is not None
    assert "4 boxes of 3 classes (0, 1, 2): 4 in 3 images" in data.notes
    assert check_dataset(data).ok
    assert read(pairs(target, empty, crowd), class_names=("sky", "cat", "dog")).class_names == ("sky", "cat", "dog")


def test_labels_may_be_names(tmp_path: Path) -> None:
    for number in range(2):
        image(number).save(tmp_path / f"{number}.png")
    source = [(str(tmp_path / f"{number}.png"), {"boxes": BOXES, "labels": ["dog", "cat"]}) for number in range(2)]
    data = read(source)
    assert data.class_names == ("cat", "dog")
    assert data.train.objects(1).labels.tolist() == [1, 0]
    assert data.train.path(1) == tmp_path / "1.png"


def test_annotations_as_cocos_datasets_give_them() -> None:
    annotations = [{"bbox": [3, 4, 5, 6], "category_id": 1, "area": 7, "iscrowd": 1}]
    data = read(pairs(annotations, []))
    assert data.train.objects(0).boxes.tolist() == [[3, 4, 8, 10]]
    assert (data.train.objects(0).crowd[0], data.train.objects(0).areas[0]) == (True, 7)
    assert len(data.train.objects(1)) == 0


@pytest.mark.parity
def test_boxes_of_torchvision_in_their_formats() -> None:
    tv_tensors = reference_library("torchvision.tv_tensors")
    for box_format, box in (("XYXY", [3, 4, 9, 6]), ("XYWH", [3, 4, 6, 2]), ("CXCYWH", [6, 5, 6, 2])):
        boxes = tv_tensors.BoundingBoxes([box], format=box_format, canvas_size=(HEIGHT, WIDTH))
        data = read(pairs({"boxes": boxes, "labels": torch.tensor([1])}))
        assert data.train.objects(0).boxes.tolist() == [[3, 4, 9, 6]]


def test_splits_faults_and_subsets() -> None:
    faulty = {"boxes": [[3, 4, 3, 6], [33, 4, 40, 6], [3, 4, 5, 6]], "labels": [0, 1, 1]}
    data = open_dataset({"train": pairs(faulty, {"boxes": BOXES, "labels": LABELS}), "val": pairs({"boxes": [], "labels": []})})
    assert [(fault.image, fault.number, fault.kind) for fault in data.train.box_faults()] == [
        (0, 1, "degenerate"),
        (0, 2, "outside"),
    ]
    assert data.train.objects(0).boxes.tolist() == [[3, 4, 5, 6]]
    assert data.validation.class_names == data.train.class_names
    split = open_dataset(pairs(*[{"boxes": BOXES, "labels": LABELS}] * 12))
    assert all(part.has_box_targets for part in split.splits.values())
    source: Any = pairs(faulty, {"boxes": BOXES, "labels": [0, 1]})
    dataset = torch.utils.data.Subset[Any](source, [1])
    assert read(dataset).train.objects(0).boxes.tolist() == BOXES


def test_boxes_that_differ_each_time_are_refused() -> None:
    class Random:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            left = float(np.random.default_rng().uniform(0, 9))
            return image(index), {"boxes": [[left, 4, left + 5, 6]], "labels": [0]}

    with pytest.raises(VitrailError, match="the boxes of image 0 differ each time they are read"):
        read(Random())


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ({"boxes": BOXES, "labels": [1]}, "the target of image 1 must have as many labels as boxes, got 2 boxes and 1 labels"),
        ({"boxes": [1, 2, 3, 4], "labels": [1]}, "must have boxes of left, top, right and bottom, n x 4 numbers, got a list"),
        ({"boxes": [["a", 2, 3, 4]], "labels": [1]}, "must have boxes of left, top, right and bottom"),
        ({"boxes": BOXES, "labels": [0, -1]}, "the target of image 1 has the label -1; a label must be a number from 0 to 1"),
        ({"boxes": BOXES, "labels": [0, 1.5]}, "has the label 1.5"),
        ("cat", "the target of image 1 must be a dictionary of boxes and labels, got a str"),
    ],
)
def test_a_target_that_is_wrong_is_named(target: Any, sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        read(pairs({"boxes": BOXES, "labels": [0, 1]}, target))


def test_an_image_without_a_target_cannot_be_used() -> None:
    data = read(pairs({"boxes": BOXES, "labels": [0, 1]}, None))
    with pytest.raises(VitrailError, match="has no boxes and labels as its target"):
        data.train.objects(1)
    assert check_dataset(data).bad[0].location == "image 1"


def test_other_targets_are_no_boxes() -> None:
    others: list[Any] = [{"boxes": BOXES}, [], [1, 2], None, [{"bbox": [1, 2, 3, 4]}], {"labels": [1]}]
    assert not any(have_boxes([target]) for target in others)


def test_the_fingerprint_changes_with_any_box() -> None:
    fingerprints = {
        read(pairs({"boxes": boxes, "labels": labels}, {"boxes": BOXES, "labels": [0, 1]})).fingerprint
        for boxes, labels in ((BOXES, [0, 1]), (BOXES, [1, 1]), (BOXES[:1], [0]), (np.array(BOXES) + 0.1, [0, 1]))
    }
    assert len(fingerprints) == 4
