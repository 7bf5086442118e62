"""Boxes that cannot be used are found by one rule, and named wherever a dataset is seen from."""

from dataclasses import dataclass

import numpy as np
import pytest

from vitrail.data.sources.box_faults import KINDS, BoxFault, describe_faults, find_faults
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.dataset import ArrayDataset, Subset

HEIGHT, WIDTH = 30, 40


@pytest.mark.parametrize(
    ("box", "kind"),
    [
        ((0, 0, 40, 30), ""),
        ((-1, -0.5, 41, 30.5), ""),  # by rounding
        ((3, 4, 3, 9), "degenerate"),
        ((3, 9, 5, 9), "degenerate"),
        ((5, 4, 3, 9), "degenerate"),
        ((float("nan"), 4, 5, 9), "not finite"),
        ((3, 4, float("inf"), 9), "not finite"),
        ((40, 4, 45, 9), "outside"),
        ((3, 30, 5, 31), "outside"),
        ((-5, 4, 0, 9), "outside"),
        ((3, -4, 5, 0), "outside"),
        ((38, 4, 45, 9), "partly outside"),
        ((3, 28, 5, 45), "partly outside"),
        ((-2, 4, 5, 9), "partly outside"),
    ],
)
def test_what_is_wrong_with_a_box_is_told_by_its_numbers_and_the_size_of_its_image(box: tuple[float, ...], kind: str) -> None:
    (code,) = find_faults(np.array([box], float), np.array([[HEIGHT, WIDTH]]))
    assert KINDS[code] == kind


def test_a_box_in_an_image_of_unknown_size_is_only_outside_of_it_to_the_left_and_above() -> None:
    boxes = np.array([[900, 4, 905, 9], [-9, 4, -5, 9], [-9, 4, 5, 9]], float)
    codes = find_faults(boxes, np.zeros((3, 2), np.int64))
    assert [KINDS[code] for code in codes] == ["", "outside", "partly outside"]


@dataclass(frozen=True, eq=False)
class FaultyDataset(ArrayDataset):
    def box_faults(self) -> tuple[BoxFault, ...]:
        return (BoxFault(1, 3, "degenerate", (3.0, 4.0, 3.0, 9.0)), BoxFault(2, 1, "partly outside", (38.0, 4.0, 45.0, 9.0)))


def faulty() -> FaultyDataset:
    return FaultyDataset(np.zeros((4, 3, 5, 3), np.uint8), np.full(4, -1), (), "made up")


def test_a_subset_has_the_faults_of_its_images_and_a_concatenation_those_of_all() -> None:
    subset = Subset(faulty(), np.array([2, 0, 1, 2]))
    assert [(fault.image, fault.number) for fault in subset.box_faults()] == [(0, 1), (2, 3), (3, 1)]
    assert subset.describe_object(2, 3) == "image 1 of made up, object 3"
    both = ConcatDataset([subset, faulty()])
    assert [fault.image for fault in both.box_faults()] == [0, 2, 3, 5, 6]
    assert both.describe_object(5, 3) == "image 1 of made up, object 3"


def test_a_note_names_the_first_boxes_of_each_kind() -> None:
    faults = [*faulty().box_faults(), *(BoxFault(image, 7, "degenerate", (3.0, 4.0, 3.0, 9.0)) for image in range(3))]
    assert list(describe_faults(faults, lambda image, number: f"{image}.xml object {number}")) == [
        "4 boxes are degenerate, without a width or a height, and left out: 1.xml object 3, 0.xml object 7, 1.xml object 7 "
        "and 1 more",
        "1 box is partly outside of the image and kept; training clips them: 2.xml object 1",
    ]
    assert faults[0].is_left_out
    assert not faults[1].is_left_out
    assert faults[0].reason == "is degenerate, from 3, 4 to 3, 9"
