"""Boxes of COCO files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.coco_images import random_annotations, write_coco, write_image
from vitrail.data.dataset_check import check_dataset
from vitrail.data.mask_codes import encode_rle
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError

SIZE = (40, 64)
BOXES = Columns(boxes=True)
Annotations = dict[str, list[dict[str, Any]]]


def box(category: int, *bbox: Any, **others: Any) -> dict[str, Any]:
    return {"id": 17, "category_id": category, "bbox": list(bbox), **others}


def write(path: Path, annotations: Annotations, changes: dict[str, Any] | None = None) -> Path:
    write_coco(path, path.parent / "images", annotations, SIZE, changes)
    return path


def read(path: Path, columns: Columns | None = None) -> DatasetSplits:
    return open_dataset(path, columns=columns, split_fractions=SplitFractions(0.0, 0.0))


def test_a_file_with_boxes_alone_is_read_as_boxes(tmp_path: Path) -> None:
    """Whatever the ids: 1, 3 and 7 are the classes 0, 1 and 2, in the order of their ids."""
    crowd = box(3, 0, 0, 64, 40, iscrowd=1, area=77.5)
    path = write(
        tmp_path / "a.json", {"a.png": [box(7, 3, 4.5, 10, 5, area=12), crowd], "b.png": [], "c.png": [box(1, 1, 2, 3, 4)]}
    )
    data = read(path)
    assert data.class_names == ("cat", "parrot", "dog")
    assert data.columns == BOXES
    objects = data.train.objects(0)
    assert objects.boxes.tolist() == [[3, 4.5, 13, 9.5], [0, 0, 64, 40]]
    assert objects.labels.tolist() == [2, 1]
    assert objects.crowd.tolist() == [False, True]
    assert objects.areas.tolist() == [12, 77.5]
    assert len(data.train.objects(1)) == 0
    assert data.train.objects(2).areas.tolist() == [12]
    notes = "\n".join(data.notes)
    for part in (
        "3 boxes of 3 classes (cat, parrot, dog): 3 in 3 images",
        "1 image without objects, first ",
        "3 categories, ids 1 to 7 with 4 gaps; their order numbers the 3 classes from 0",
        "a.json: 1 annotation of crowds: not learned",
    ):
        assert part in notes
    assert check_dataset(data).ok


def test_polygons_are_masks_unless_boxes_are_asked_for(tmp_path: Path) -> None:
    annotations = {"a.png": random_annotations(np.random.default_rng(0), SIZE, 7)}
    path = write(tmp_path / "annotations/instances_train2017.json", annotations)
    (tmp_path / "annotations/images").rename(tmp_path / "train2017")
    (tmp_path / "annotations/panoptic_train2017.json").write_text(path.read_text())
    for source in (path, tmp_path):
        assert read(source).train.has_mask_targets
        data = read(source, BOXES)
        assert not data.train.has_mask_targets
        assert "background" not in data.class_names
        expected = [[left, top, left + width, top + height] for left, top, width, height in
                    (each["bbox"] for each in annotations["a.png"])]  # fmt: skip
        assert data.train.objects(0).boxes.tolist() == expected
        assert data.train.objects(0).crowd.tolist() == [each["iscrowd"] == 1 for each in annotations["a.png"]]
        assert data.train.objects(0).areas.tolist() == [each["area"] for each in annotations["a.png"]]
    assert open_dataset(tmp_path, columns=BOXES).columns == BOXES
    assert read(tmp_path, Columns(masks=False, boxes=True)).fingerprint == read(tmp_path, BOXES).fingerprint


def test_a_region_without_a_box_has_one_around_it(tmp_path: Path) -> None:
    inside = np.zeros(SIZE, bool)
    inside[5:9, 30:50] = True
    regions = [
        {"id": 1, "category_id": 1, "segmentation": [[3.5, 4, 9, 4, 9, 11.5], [20, 2, 21, 2, 21, 3]]},
        {"id": 2, "category_id": 1, "segmentation": encode_rle(inside)},
        {"id": 3, "category_id": 1, "caption": "a cat"},
    ]
    data = read(write(tmp_path / "a.json", {"a.png": regions}), BOXES)
    assert data.train.objects(0).boxes.tolist() == [[3.5, 2, 21, 11.5], [30, 5, 50, 9]]
    assert "a.json: 2 annotations without a bbox, whose box is that around the segmentation" in data.notes
    assert "a.json: 1 annotation without a box, left out" in data.notes


def test_faulty_boxes_are_left_out_and_named_by_their_id(tmp_path: Path) -> None:
    boxes = [box(1, 1, 2, 3, 0, id=5), box(1, 1, 2, 3, 4, id=6), box(1, 64, 2, 3, 4, id="x7"), box(7, 60, 2, 30, 4, id=8)]
    path = write(tmp_path / "a.json", {"b.png": [], "a.png": [*boxes, box(1, float("nan"), 2, 3, 4, id=9)]})
    data = read(path)
    assert data.train.objects(1).labels.tolist() == [0, 2]
    assert [(fault.image, fault.kind) for fault in data.train.box_faults()] == [
        (1, "degenerate"), (1, "outside"), (1, "partly outside"), (1, "not finite")
    ]  # fmt: skip
    notes = "\n".join(data.notes)
    assert f"1 box is degenerate, without a width or a height, and left out: {path}, annotation id 5 of a.png" in notes
    assert f"1 box is wholly outside of the image and left out: {path}, annotation id x7 of a.png" in notes


def test_annotations_that_belong_nowhere_are_left_out(tmp_path: Path) -> None:
    known = [{**box(1, 1, 2, 3, 4), "image_id": 1000}]
    others = [{**box(99, 1, 2, 3, 4), "image_id": 1000}, {**box(1, 1, 2, 3, 4), "image_id": 5}]
    path = write(tmp_path / "a.json", {"a.png": [], "gone.png": []}, {"annotations": [*others, *known]})
    (tmp_path / "images/gone.png").unlink()
    write_image(tmp_path / "images/unlisted.png", SIZE, 5)
    data = read(path)
    assert len(data.train) == len(data.train.objects(0)) == 1
    assert [file.reason for file in data.left_out] == ["does not exist"]
    notes = "\n".join(data.notes)
    for part in ("1 annotation of no image in the file", "of no category in the file (ids 99)", "1 image in no COCO file"):
        assert part in notes


def test_the_splits_of_a_folder_and_of_a_mapping_have_the_same_classes(tmp_path: Path) -> None:
    for split, category in (("train", 7), ("valid", 1)):
        write(tmp_path / split / "_annotations.coco.json", {f"{split}.png": [box(category, 1, 2, 3, 4)]})
    data = read(tmp_path)
    assert (len(data.train), len(data.validation)) == (1, 1)
    assert data.validation.objects(0).labels.tolist() == [0]
    path = tmp_path / "valid/_annotations.coco.json"
    content = json.loads(path.read_text())
    content["categories"] = [{"id": 1, "name": "wolf"}, *content["categories"][:1]]
    path.write_text(json.dumps(content))
    data = read_mapping = open_dataset({"train": tmp_path / "train/_annotations.coco.json", "validation": path})
    assert data.class_names == ("cat", "dog", "parrot", "wolf")
    assert read_mapping.validation.objects(0).labels.tolist() == [3]
    assert data.train.objects(0).labels.tolist() == [1]
    assert data.columns == BOXES


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"annotations": [{**box(1, "left", 2, 3, 4), "image_id": 1000}]},
            r'annotation id 17 has the bbox \["left", 2, 3, 4\]; a box is',
        ),
        ({"annotations": [{"id": 3, "category_id": 1, "bbox": "1 2 3 4", "image_id": 1000}]}, 'id 3 has the bbox "1 2 3 4"'),
        ({"annotations": [{**box(1, 1, 2, 3), "image_id": 1000}]}, r"has the bbox \[1, 2, 3\]"),
        ({"annotations": [{**box(1, 1, 2, 3, True), "image_id": 1000}]}, r"has the bbox \[1, 2, 3, true\]"),
        ({"annotations": [{**box(1, 1, 2, 3, 10**400), "image_id": 1000}]}, r"has the bbox \[1, 2, 3, 1000"),
        ({"annotations": [{"id": 1, "image_id": 1000, "caption": "a"}]}, "2 images and 1 annotations without a box"),
        ({"categories": []}, "has no categories"),
        (
            {"annotations": [{"id": 1, "image_id": 1000, "file_name": "a.png", "segments_info": []}]},
            "is panoptic, and has no boxes",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    path = write(tmp_path / "a.json", {"a.png": [box(1, 1, 2, 3, 4)], "b.png": []}, changes)
    with pytest.raises(VitrailError, match=sentence):
        read(path, BOXES)


def test_boxes_that_are_wrong_do_not_matter_to_masks(tmp_path: Path) -> None:
    annotations = random_annotations(np.random.default_rng(0), SIZE, 3)
    annotations[1]["bbox"] = "none"
    path = write(tmp_path / "a.json", {"a.png": annotations})
    assert read(path).train.mask(0).shape == SIZE
    with pytest.raises(VitrailError, match='annotation id 2 has the bbox "none"'):
        read(path, BOXES)


def test_the_fingerprint_changes_with_any_box(tmp_path: Path) -> None:
    fingerprints = set()
    for boxes in ([box(1, 1, 2, 3, 4)], [box(1, 1, 2, 3, 5)], [box(7, 1, 2, 3, 4)], [box(1, 1, 2, 3, 4, iscrowd=1)], []):
        data = read(write(tmp_path / "a.json", {"a.png": boxes, "b.png": [box(3, 1, 2, 3, 4)]}))
        fingerprints.add(data.fingerprint)
    assert len(fingerprints) == 5


def test_images_are_read_without_boxes_where_none_are_needed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"a.png": [box(1, 1, 2, 3, 4)]})
    for source in (path, tmp_path):
        data = open_dataset(source, labelled=False)
        assert sum(map(len, data.splits.values())) == 1
        assert not data.train.has_box_targets
        assert open_dataset(source, labelled=False, columns=BOXES).train.has_box_targets
