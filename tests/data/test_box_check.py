"""The check of a dataset of boxes: counts are those by hand, and what looks wrong is named."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.box_images import HEIGHT, NAMES, WIDTH, BoxedFiles, some_objects, write_boxed
from vitrail import open_dataset
from vitrail.cli.data_check_output import print_report, report_json
from vitrail.cli.main import run
from vitrail.data import box_index, box_summary
from vitrail.data.box_index import index_boxes
from vitrail.data.box_summary import BoxSummary
from vitrail.data.dataset_check import check_dataset, drop_unusable
from vitrail.data.sources.box_faults import BoxFault
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.data.sources.objects import Objects, build_objects
from vitrail.errors import VitrailError

Capture = pytest.CaptureFixture[str]


def as_splits(train: Dataset, validation: Dataset) -> DatasetSplits:
    return open_dataset({"train": train, "validation": validation})


def check(data: DatasetSplits) -> BoxSummary:
    summary = check_dataset(data).boxes
    assert summary is not None
    return summary


def test_boxes_are_counted_as_by_hand(tmp_path: Path) -> None:
    data = as_splits(write_boxed(tmp_path / "a", some_objects()), write_boxed(tmp_path / "b", some_objects()[1:3]))
    report = check_dataset(data)
    boxes = check(data)
    assert report.ok
    cat, dog, bird = NAMES
    assert boxes.boxes == {
        cat: {"train": 1, "validation": 0, "test": 0},  # the other one is a crowd
        dog: {"train": 2, "validation": 1, "test": 0},
        bird: {"train": 2, "validation": 0, "test": 0},
    }
    assert report.classes == boxes.images == boxes.boxes  # no image has two of a class
    assert boxes.crowds == {"train": 1, "validation": 0, "test": 0}
    assert boxes.sizes[dog] == {"small": 3, "medium": 0, "large": 0}
    assert boxes.sizes[bird] == {"small": 1, "medium": 1, "large": 0}
    assert vars(boxes.per_image["train"]) == {"mean": 1.0, "median": 1.0, "most": 2, "empty": 1}
    assert list(boxes.per_image) == ["train", "validation"]
    assert boxes.absent == {"validation": (cat, bird)}
    assert (boxes.tiny, boxes.repeated, boxes.faults) == ({}, (), ())


def test_a_class_twice_in_an_image_is_one_image(tmp_path: Path) -> None:
    twice = build_objects([[1, 2, 9, 10], [20, 20, 40, 30], [1, 2, 9, 10]], [1, 1, 0])
    boxes = check(as_splits(write_boxed(tmp_path / "a", [twice, twice]), write_boxed(tmp_path / "b", [twice])))
    assert boxes.boxes[NAMES[1]]["train"] == 4
    assert boxes.images[NAMES[1]]["train"] == 2
    assert boxes.repeated == ()  # the equal box is of another class


@pytest.mark.parametrize(("shift", "is_repeated"), [(0.0, True), (0.4, True), (0.6, False)])
def test_boxes_that_are_nearly_equal_are_one_object(shift: float, is_repeated: bool, tmp_path: Path) -> None:
    """Of 20 pixels, shifted by 0.4: an IoU of 19.6 / 20.4 = 0.96; by 0.6 of 0.94."""
    objects = build_objects([[10, 5, 30, 25], [40, 5, 50, 25], [10 + shift, 5, 30 + shift, 25]], [2, 2, 2])
    data = as_splits(write_boxed(tmp_path / "a", [objects]), write_boxed(tmp_path / "b", [some_objects()[0]]))
    repeated = check(data).repeated
    assert len(repeated) == is_repeated
    assert check_dataset(data).ok != is_repeated
    if is_repeated:
        assert repeated[0].location == str(tmp_path / "a/0.jpg")
        assert repeated[0].label == NAMES[2]
        assert repeated[0].reason == f"has {NAMES[2]} twice, from {10 + shift:g}, 5 to {30 + shift:g}, 25"


def test_repeated_boxes_are_found_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In images of different numbers of boxes, some images at a time: those that a comparison of all pairs finds."""
    monkeypatch.setattr(box_summary, "MAX_PAIRS", 40)
    generator = np.random.default_rng(0)
    images = []
    for count in (0, 1, 2, 5, 5, 2, 7, 5):
        corners = generator.integers(0, 2, (count, 2)) * 10.0
        images.append(build_objects(np.concatenate([corners, corners + 10], axis=1), generator.integers(0, 2, count)))
    data = as_splits(write_boxed(tmp_path / "a", images), write_boxed(tmp_path / "b", images[:1]))
    expected = [
        (f"{tmp_path}/a/{image}.jpg", tuple(box))
        for image, objects in enumerate(images)
        for later, box in enumerate(objects.boxes.tolist())
        if any(
            (objects.boxes[later] == objects.boxes[earlier]).all() and objects.labels[later] == objects.labels[earlier]
            for earlier in range(later)
        )
    ]
    assert len(expected) >= 3
    assert [(each.location, each.box) for each in check(data).repeated] == expected


def test_a_box_in_a_crowd_is_not_repeated(tmp_path: Path) -> None:
    objects = build_objects([[10, 5, 30, 25], [10, 5, 30, 25]], [2, 2], np.array([True, False]))
    assert check(as_splits(write_boxed(tmp_path / "a", [objects]), write_boxed(tmp_path / "b", [objects]))).repeated == ()


def test_tiny_boxes_are_measured_in_pixels_of_the_input(tmp_path: Path) -> None:
    """In 224 x 224 pixels: one of 60 columns is 3.7 wide, one of 40 rows 5.6 high."""
    objects = build_objects([[10, 5, 11, 25], [10, 5, 30, 6], [10, 5, 10.5, 25], [10, 5, 20, 5.7]], [0, 0, 0, 1])
    data = as_splits(write_boxed(tmp_path / "a", [some_objects()[1], objects]), write_boxed(tmp_path / "b", [objects]))
    tiny = check(data).tiny
    assert list(tiny) == [NAMES[0], NAMES[1]]
    assert (tiny[NAMES[0]].count, tiny[NAMES[0]].first) == (4, str(tmp_path / "a/1.jpg"))
    assert tiny[NAMES[0]].fraction == pytest.approx(2 / 3)
    assert tiny[NAMES[0]].smallest == pytest.approx(0.5 * 224 / WIDTH)
    assert tiny[NAMES[0]].largest == pytest.approx(224 / WIDTH)
    assert tiny[NAMES[1]].smallest == pytest.approx(0.7 * 224 / HEIGHT)


def test_faults_are_named_with_their_object(tmp_path: Path, capsys: Capture) -> None:
    faults = BoxFault(1, 3, "degenerate", (3.0, 4.0, 3.0, 9.0)), BoxFault(2, 0, "partly outside", (50.0, 4.0, 70.0, 9.0))
    data = as_splits(write_boxed(tmp_path / "a", some_objects(), faults), write_boxed(tmp_path / "b", some_objects()[:1]))
    report = check_dataset(data)
    assert report.boxes is not None
    assert not report.ok
    [left_out], [outside] = report.boxes.faults, report.boxes.overhanging
    assert left_out.location == f"{tmp_path / 'a/1.jpg'}, object 3"
    assert outside.box == (50, 4, 70, 9)
    assert report_json(report, None)["boxes"]["faults"][0]["split"] == "train"  # type: ignore[index]
    print_report(report, None)
    printed = capsys.readouterr().out
    assert f"boxes left out: 1\n  {tmp_path / 'a/1.jpg'}, object 3 is degenerate, from 3, 4 to 3, 9" in printed
    assert "problems found: see above" in printed


class Broken(BoxedFiles):
    def objects(self, index: int) -> Objects:
        if index in (1, 3):
            raise VitrailError(f"line 3 of {index}.txt has no numbers")
        return super().objects(index)


def test_an_image_with_unusable_boxes_is_unusable(tmp_path: Path) -> None:
    good = write_boxed(tmp_path / "a", some_objects())
    data = as_splits(Broken(*vars(good).values()), write_boxed(tmp_path / "b", some_objects()))
    report = check_dataset(data)
    assert [(Path(bad.location).name, bad.reason) for bad in report.bad] == [
        ("1.jpg", "cannot be used: line 3 of 1.txt has no numbers"),
        ("3.jpg", "cannot be used: line 3 of 3.txt has no numbers"),
    ]
    assert len(report.data.train) == 3
    assert report.boxes is not None
    assert report.boxes.boxes[NAMES[2]]["train"] == 2
    with pytest.raises(VitrailError, match=r"2 of 10 images cannot be used, .* first .*1\.jpg, which cannot be used: line 3"):
        drop_unusable(data)


def test_the_same_image_with_other_boxes_is_a_conflict_and_another_dataset(tmp_path: Path) -> None:
    first = write_boxed(tmp_path / "a", some_objects())
    moved = [replace(each, boxes=each.boxes + (number == 2)) for number, each in enumerate(some_objects())]
    second = BoxedFiles(first.root, first.paths, first.labels, NAMES, moved, key=b"moved")
    report = check_dataset(as_splits(first, second))
    assert len(report.leaks) == 5
    assert [Path(group.locations[0]).name for group in report.conflicts] == ["2.jpg"]
    assert all(kind.startswith("boxes ") for kind in report.conflicts[0].classes)
    other = write_boxed(tmp_path / "b", some_objects())
    fingerprints = {check_dataset(as_splits(train, other)).data.fingerprint for train in (first, second)}
    assert len(fingerprints) == 2


def test_boxes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    dataset = write_boxed(tmp_path / "a", some_objects())
    first = index_boxes(dataset)
    monkeypatch.setattr(BoxedFiles, "objects", lambda *_: pytest.fail("the boxes were read again"))
    again = index_boxes(write_boxed_again(dataset))
    for name, column in vars(first.objects).items():
        np.testing.assert_array_equal(getattr(again.objects, name), column)
    assert again.counts.tolist() == [2, 0, 1, 2, 1]
    picked = again.select(np.array([3, 0]))
    assert picked.images.tolist() == [0, 0, 1, 1]
    assert picked.objects.crowd.tolist() == [False, True, False, False]


def write_boxed_again(dataset: BoxedFiles) -> BoxedFiles:
    return BoxedFiles(*vars(dataset).values())


def test_exact_boxes_are_not_read_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset("panes:train_size=10,size=16", columns=Columns(boxes=True))
    monkeypatch.setattr(box_index, "index_boxes", lambda *_: pytest.fail("exact boxes were read"))
    assert drop_unusable(data).boxes is None


def test_the_command(tmp_path: Path, capsys: Capture) -> None:
    assert (
        run(
            [
                "data",
                "check",
                "panes:train_size=20,size=16x32",
                "--task",
                "detect",
                "--json",
                "--page",
                str(tmp_path / "x.html"),
            ]
        )
        == 0
    )
    boxes = json.loads(capsys.readouterr().out)["boxes"]
    assert set(boxes) == {"counts", "sizes", "per_image", "crowds", "tiny", "faults", "repeated", "overhanging"}
    assert boxes["counts"]["figure"]["train"] == 20
    assert sum(boxes["sizes"]["figure"].values()) == 28
    assert set(boxes["per_image"]["train"]) == {"mean", "median", "most", "empty"}
    page = (tmp_path / "x.html").read_text()
    assert "<h2>Boxes</h2>" in page
    assert "medium one of up to 96 x 96" in page
    assert run(["data", "check", "panes:train_size=20,size=16x32", "--task", "detect"]) == 0
    printed = capsys.readouterr().out
    assert "train: 1.0 boxes per image" in printed
    assert "has conflicting boxes" in printed
    assert run(["data", "check", "panes:train_size=20,size=16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["boxes"] is None
