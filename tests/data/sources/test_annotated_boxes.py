"""Boxes of annotations as those of upright images, wherever the annotations come from."""

from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray
from PIL import Image

from tests.data.coco_images import write_image
from vitrail.data.decode import EXIF_TRANSPOSES, SIDEWAYS_ORIENTATIONS
from vitrail.data.sources.annotated_boxes import AnnotatedBoxes, Annotations, box_notes, with_annotations
from vitrail.data.sources.dataset import ImageFileDataset
from vitrail.errors import VitrailError

SIZE = (20, 32)
NAMES = ("cat", "dog")
BOXES = np.array([[3, 4, 11, 7], [0, 0, 32, 20], [5, 1, 6, 20]], float)


def annotated(folder: Path, boxes: ndarray, size: tuple[int, int] | None, exif: int = 1) -> AnnotatedBoxes:
    """Return a dataset of one image with these boxes, and another without any."""
    names = ["a.jpg", "b.jpg"]
    for seed, name in enumerate(names):
        write_image(folder / name, SIZE, seed, exif)
    images = ImageFileDataset(folder, names, np.full(2, -1), ())
    sizes = None if size is None else np.array([size, size])
    annotations = Annotations(np.zeros(len(boxes), np.int64), boxes, np.arange(len(boxes)) % 2, sizes)
    return with_annotations(images, annotations, NAMES, lambda index, number: f"{index}.txt, line {number}")


@pytest.mark.parametrize("exif", SIDEWAYS_ORIENTATIONS)
def test_boxes_of_the_image_as_it_is_stored_are_turned_with_it(exif: int, tmp_path: Path) -> None:
    objects = annotated(tmp_path, BOXES, SIZE, exif).objects(0)
    assert len(objects) == 3
    for box, (left, top, right, bottom) in zip(BOXES.astype(int), objects.boxes.astype(int).tolist(), strict=True):
        drawn = np.zeros(SIZE, np.uint8)
        drawn[box[1] : box[3], box[0] : box[2]] = 1
        upright = np.asarray(Image.fromarray(drawn).transpose(EXIF_TRANSPOSES[exif]))
        expected = np.zeros_like(upright)
        expected[top:bottom, left:right] = 1
        np.testing.assert_array_equal(upright, expected)
    np.testing.assert_array_equal(objects.areas, annotated(tmp_path, BOXES, SIZE).objects(0).areas)


@pytest.mark.parametrize("exif", [6, 8])
@pytest.mark.parametrize("size", [(32, 20), (0, 0)])
def test_boxes_of_the_upright_image_are_left_as_they_are(exif: int, size: tuple[int, int], tmp_path: Path) -> None:
    """If the size says so, or nothing: tools show images upright."""
    boxes = np.array([[3, 4, 11, 7], [0, 0, 20, 32], [30, 4, 35, 7]], float)  # the last is outside of it
    dataset = annotated(tmp_path, boxes, size, exif)
    np.testing.assert_array_equal(dataset.objects(0).boxes, boxes[:2])
    assert [(fault.number, fault.kind) for fault in dataset.box_faults()] == [(3, "outside")]


@pytest.mark.parametrize(("exif", "upright"), [(1, (20, 32)), (6, (32, 20))])
def test_fractions_are_of_the_upright_image(exif: int, upright: tuple[int, int], tmp_path: Path) -> None:
    fractions = np.array([[0.25, 0.5, 0.5, 1.0], [-0.004, 0, 0.5, 1.004], [0.9, 0.1, 1.2, 0.3], [1, 0.1, 1.2, 0.3]])
    dataset = annotated(tmp_path, fractions, None, exif)
    height, width = upright
    np.testing.assert_allclose(dataset.objects(0).boxes, fractions[:3] * [width, height, width, height])
    assert dataset.objects(0).areas[0] == height * width / 8
    assert [(fault.number, fault.kind) for fault in dataset.box_faults()] == [(3, "partly outside"), (4, "outside")]


def test_an_image_is_measured_once(tmp_path: Path) -> None:
    dataset = annotated(tmp_path, BOXES, SIZE)
    first = dataset.objects(0)
    (tmp_path / "a.jpg").unlink()
    np.testing.assert_array_equal(dataset.objects(0).boxes, first.boxes)
    (tmp_path / "b.jpg").unlink()
    assert len(dataset.objects(1)) == 0  # where nothing is, nothing can be turned


def test_annotations_of_another_image_are_refused(tmp_path: Path) -> None:
    for size in ((21, 32), SIZE[::-1]):
        with pytest.raises(VitrailError, match=f"is 32 x 20 pixels, and its annotations are of {size[1]} x {size[0]}"):
            annotated(tmp_path, BOXES, size).objects(0)


def test_notes_count_boxes_and_images_without_any(tmp_path: Path) -> None:
    dataset = annotated(tmp_path, BOXES[:1], SIZE)
    assert list(box_notes("a", {"train": dataset, "test": dataset})) == [
        "2 boxes of 2 classes (cat, dog): 1 in 2 images of train, 1 in 2 images of test",
        "1 class without a box: dog",
        f"2 images without objects, first {tmp_path / 'b.jpg'}",
    ]
