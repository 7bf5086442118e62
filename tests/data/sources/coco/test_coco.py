"""COCO files as datasets of masks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.data.coco_images import CATEGORIES, CLASSES, painted, random_annotations, write_coco, write_image
from vitrail.cli.main import run
from vitrail.data.dataset_check import check_dataset
from vitrail.data.mask_codes import encode_rle
from vitrail.data.sources.coco import json_stream
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import IGNORED
from vitrail.errors import VitrailError

SIZE = (21, 34)


def _annotations(
    seed: int, count: int, names: tuple[str, ...] = ("a.png", "b.png", "ç ü.png")
) -> dict[str, list[dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    return {name: random_annotations(rng, SIZE, count) for name in names}


def _write_official(root: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    parts = {"train": _annotations(0, 7), "val": _annotations(1, 6, ("d.png",))}
    for split, annotations in parts.items():
        write_coco(root / f"annotations/instances_{split}2017.json", root / f"{split}2017", annotations, SIZE)
    return parts


def test_masks_are_the_regions_of_the_annotations(tmp_path: Path) -> None:
    parts = _write_official(tmp_path)
    data = vitrail.open_dataset(tmp_path)
    assert data.class_names == data.train.mask_names == CLASSES
    assert data.train.has_mask_targets
    assert (len(data.train), len(data.validation), len(data.test)) == (3, 1, 0)
    for dataset, annotations in ((data.train, parts["train"]), (data.validation, parts["val"])):
        for index in range(len(dataset)):
            mask = dataset.mask(index)
            assert mask.dtype == np.int16
            np.testing.assert_array_equal(mask, painted(annotations[Path(dataset.describe(index)).name], SIZE))
    assert any("ids 1 to 7 with 4 gaps" in note for note in data.notes)
    assert any("of crowds" in note for note in data.notes)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_regions_are_those_of_pycocotools(tmp_path: Path) -> None:
    """Each object where it is alone in its image."""
    from pycocotools.coco import COCO  # type: ignore[import-untyped]

    annotations = {f"{each['id']}.png": [each] for each in random_annotations(np.random.default_rng(5), SIZE, 12)}
    write_coco(tmp_path / "annotations/train.json", tmp_path / "images", annotations, SIZE)
    coco, data = (
        COCO(tmp_path / "annotations/train.json"),
        vitrail.open_dataset(tmp_path, split_fractions=SplitFractions(0.0, 0.0)),
    )
    dataset = data.train
    for image in coco.loadImgs(coco.getImgIds()):
        index = next(index for index in range(len(dataset)) if dataset.title(index) == image["file_name"])
        [annotation] = coco.loadAnns(coco.getAnnIds(image["id"]))
        expected = coco.annToMask(annotation).astype(bool)
        np.testing.assert_array_equal(dataset.mask(index) != 0, expected)
        instances = dataset.instances(index)
        assert instances is not None
        np.testing.assert_array_equal(instances == 1, expected & (not annotation["iscrowd"]))


def test_the_smaller_region_is_on_top(tmp_path: Path) -> None:
    """Whatever the order in the file; of two equally large ones the later."""
    inside = np.zeros(SIZE, bool)
    inside[2:10, 3:20] = True
    small = np.roll(inside, 3, axis=1) & inside
    regions = [(3, inside), (1, small), (7, inside)]
    annotations = [
        {"id": n, "category_id": category, "segmentation": encode_rle(region), "iscrowd": 0}
        for n, (category, region) in enumerate(regions)
    ]
    write_coco(tmp_path / "a.json", tmp_path, {"a.png": annotations, "b.png": annotations[::-1]}, SIZE)
    dataset = vitrail.open_dataset(tmp_path / "a.json", split_fractions=SplitFractions(0.0, 0.0)).train
    for name, equal in (("a.png", 3), ("b.png", 2)):
        index = next(index for index in range(len(dataset)) if dataset.title(index) == name)
        np.testing.assert_array_equal(dataset.mask(index), np.where(small, 1, np.where(inside, equal, 0)))


@pytest.mark.parametrize(
    ("file", "images"),
    [
        ("{split}/_annotations.coco.json", "{split}"),
        ("annotations/{split}.json", "images/{split}"),
        ("annotations/instances_{split}.json", "{split}"),
        ("annotations/{split}.json", "images"),
        ("{split}.json", "images"),
        ("{split}/labels.json", "{split}/data"),
        ("labels/{split}.json", "data/{split}"),
    ],
)
def test_images_are_found_where_they_usually_are(tmp_path: Path, file: str, images: str) -> None:
    for split, name in (("train", "a.png"), ("valid", "b.png")):
        path = tmp_path / file.format(split=split)
        write_coco(path, tmp_path / images.format(split=split), _annotations(2, 3, (name,)), SIZE)
    data = vitrail.open_dataset(tmp_path)
    assert [data.train.title(0), data.validation.title(0), len(data.test)] == ["a.png", "b.png", 0]
    assert data.train.mask(0).shape == SIZE


def test_file_names_may_have_folders_of_another_machine(tmp_path: Path) -> None:
    annotations = _annotations(2, 3, ("a.png",))["a.png"]
    write_coco(tmp_path / "x.json", tmp_path, {"a.png": annotations}, SIZE)
    content = json.loads((tmp_path / "x.json").read_text())
    for name in ("/home/somebody/images/a.png", "C:\\data\\a.png", "../a.png"):
        content["images"][0]["file_name"] = name
        (tmp_path / "x.json").write_text(json.dumps(content))
        assert vitrail.open_dataset(tmp_path / "x.json").train.title(0) == "a.png"


def test_what_is_odd_is_told(tmp_path: Path) -> None:
    annotations = _annotations(3, 2, ("a.png", "gone.png", "empty.png"))
    annotations["empty.png"] = []
    full = encode_rle(np.ones(SIZE, bool))
    annotations["a.png"] = [
        {"id": 50, "category_id": 99, "segmentation": full, "iscrowd": 0},
        {"id": 51, "category_id": 1, "segmentation": [[1, 1, 5, 5]], "iscrowd": 0},
        {"id": 52, "category_id": 1, "bbox": [0, 0, 3, 3], "iscrowd": 0},
    ]
    write_coco(tmp_path / "train.json", tmp_path, annotations, SIZE)
    write_image(tmp_path / "unlisted.png", SIZE, 9)
    (tmp_path / "gone.png").unlink()
    content = json.loads((tmp_path / "train.json").read_text())
    content["annotations"].append({"id": 60, "image_id": 5, "category_id": 1, "segmentation": full})
    (tmp_path / "train.json").write_text(json.dumps(content))
    data = vitrail.open_dataset(tmp_path)
    notes = "\n".join(data.notes)
    for part in (
        "1 image left out, first gone.png, which does not exist", "1 image without annotations, all background, first empty",
        "1 annotation of no image in the file, first image_id 5", "1 annotation of no category in the file (ids 99), ignored",
        "1 annotation with a polygon of fewer than three points, first id 51", "1 annotation without a segmentation",
        "1 image in no COCO file, not used, first",
    ):  # fmt: skip
        assert part in notes
    assert [Path(file.location).name for file in data.left_out] == ["gone.png"]
    every = [dataset.mask(index) for dataset in data.splits.values() for index in range(len(dataset))]
    assert sorted(int(mask[0, 0]) for mask in every) == [IGNORED, 0]


def test_rotated_images(tmp_path: Path) -> None:
    """A mask that was drawn on the image as it is stored is turned with it; one of the upright image is not."""
    annotations = _annotations(4, 3, ("a.jpg",))
    upright = painted(annotations["a.jpg"], SIZE)
    for exif, size, expected in ((6, SIZE, np.rot90(upright, -1)), (6, SIZE[::-1], upright), (3, SIZE, upright)):
        write_coco(tmp_path / "a.json", tmp_path, annotations, SIZE)
        write_image(tmp_path / "a.jpg", size, 1, exif)
        np.testing.assert_array_equal(vitrail.open_dataset(tmp_path / "a.json").train.mask(0), expected)


def test_roots_of_roboflow_are_no_class(tmp_path: Path) -> None:
    categories = [{"id": 0, "name": "animals", "supercategory": "none"}]
    categories += [{**each, "supercategory": "animals"} for each in CATEGORIES]
    write_coco(
        tmp_path / "train/_annotations.coco.json", tmp_path / "train", _annotations(0, 7), SIZE, {"categories": categories}
    )
    assert vitrail.open_dataset(tmp_path).class_names == CLASSES


def test_a_category_called_background_is_the_background(tmp_path: Path) -> None:
    categories = [*CATEGORIES[1:], {"id": 7, "name": "Background"}]
    write_coco(tmp_path / "a.json", tmp_path, _annotations(0, 7), SIZE, {"categories": categories})
    data = vitrail.open_dataset(tmp_path / "a.json")
    assert data.class_names == ("cat", "parrot", "Background")
    assert {int(value) for mask in map(data.train.mask, range(len(data.train))) for value in np.unique(mask)} <= {-1, 0, 1, 2}


def _write_panoptic(root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the class and the object of each pixel of the only image."""
    categories = [{"id": 2, "name": "sky", "isthing": 0}, {"id": 9, "name": "bird", "isthing": 1}]
    numbers = np.zeros(SIZE, np.int64)
    numbers[:10], numbers[12:15, 3:9], numbers[14:20, 20:30], numbers[18:, :4] = 3_000_001, 70_000, 255, 42
    segments = [
        {"id": 3_000_001, "category_id": 2, "iscrowd": 0}, {"id": 70_000, "category_id": 9, "iscrowd": 0},
        {"id": 255, "category_id": 9, "iscrowd": 0}, {"id": 42, "category_id": 9, "iscrowd": 1},
    ]  # fmt: skip
    colours = np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], axis=2).astype(np.uint8)
    annotation = {"file_name": "a.png", "segments_info": segments}
    write_coco(
        root / "annotations/panoptic_train2017.json",
        root / "train2017",
        {"a.jpg": [annotation]},
        SIZE,
        {"categories": categories},
    )
    (root / "annotations/panoptic_train2017").mkdir()
    Image.fromarray(colours).save(root / "annotations/panoptic_train2017/a.png")
    mask = np.select([numbers == 3_000_001, np.isin(numbers, (70_000, 255))], [0, 1], IGNORED)
    return mask, numbers * np.isin(numbers, (70_000, 255))


def test_panoptic_segments(tmp_path: Path) -> None:
    mask, objects = _write_panoptic(tmp_path)
    dataset = vitrail.open_dataset(tmp_path).train
    assert dataset.mask_names == ("sky", "bird")
    np.testing.assert_array_equal(dataset.mask(0), mask)
    instances = dataset.instances(0)
    assert instances is not None
    pairs = {(int(found), int(true)) for found, true in zip(instances.ravel(), objects.ravel(), strict=True)}
    assert len(pairs) == 3  # a number for each object
    assert (0, 0) in pairs


def test_a_panoptic_segment_that_is_not_listed_is_named(tmp_path: Path) -> None:
    _write_panoptic(tmp_path)
    path = tmp_path / "annotations/panoptic_train2017.json"
    path.write_text(path.read_text().replace("70000", "70001"))
    with pytest.raises(VitrailError, match=r"segment 70000 in .*a\.png, which .*panoptic_train2017\.json does not have"):
        vitrail.open_dataset(tmp_path).train.mask(0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"annotations": [{"id": 1, "image_id": 1000, "category_id": 1, "bbox": [1, 2, 3, 4]}]},
            "has 1 boxes in 3 categories and no",
        ),
        ({"annotations": [{"id": 1, "image_id": 1000, "caption": "a cat"}]}, "1 annotations without a region"),
        ({"categories": 3}, r"got annotations, images; add categories"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, "category id 1 twice"),
        ({"images": []}, "has no images"),
        ({"images": [{"id": 1}]}, "entry 0 of images has no file_name"),
        ({"images": [{"id": [1], "file_name": "a.png"}]}, "entry 0 of images is not valid"),
        ({"images": [{"id": 1, "file_name": "a.png"}] * 2}, "image id 1 twice"),
        ({"images": [{"id": 1, "file_name": "nowhere.png"}]}, "none of the 1 images of .* such as nowhere.png"),
        ({"images": [{"id": 1, "file_name": "a.png", "height": 10**6, "width": 10**6}]}, "pixels are allowed"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    write_coco(tmp_path / "a.json", tmp_path, _annotations(0, 2), SIZE, changes)
    with pytest.raises(VitrailError, match=sentence):
        vitrail.open_dataset(tmp_path / "a.json", columns=Columns(masks=True))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_coco(path, tmp_path, _annotations(0, 2), SIZE)
    content = path.read_bytes()
    for damaged in (content[:-40], content.replace(b"]", b";", 1), content.replace(b'"iscrowd"', b'"\xff"', 1)):
        path.write_bytes(damaged)
        with pytest.raises(VitrailError, match=r"a\.json is not valid JSON at byte"):
            vitrail.open_dataset(path)
    for other in (b"[1, 2]", b'{"images": [' + b"[" * 100_000, b'{"model": 1}', b"", b"\x00\x01"):
        path.write_bytes(other)
        with pytest.raises(VitrailError, match="is not a COCO file"):
            vitrail.open_dataset(path)
    path.write_bytes(content)
    dataset = vitrail.open_dataset(path).train
    path.write_bytes(b"{}" + content[2:].replace(b'"id"', b'"xy" '))
    with pytest.raises(VitrailError, match="was changed"):
        dataset.mask(0)


def test_a_file_is_read_in_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the parts end, the index is the same."""
    write_coco(tmp_path / "a.json", tmp_path, _annotations(0, 4), SIZE)
    content = (tmp_path / "a.json").read_bytes()
    expected = [vitrail.open_dataset(tmp_path / "a.json").train.mask(0).tobytes()]
    for chunk in (1, 7, 100):
        monkeypatch.setattr(json_stream, "CHUNK", chunk)
        monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / f"cache-{chunk}"))
        with open(tmp_path / "a.json", "rb") as file:
            stream = json_stream.JsonStream(tmp_path / "a.json", file)
            read = {key: list(elements) if elements else None for key, elements in stream.members()}
        for element, begin, end in [each for elements in read.values() for each in elements or ()]:
            assert json.loads(content[begin:end]) == element
        assert [vitrail.open_dataset(tmp_path / "a.json").train.mask(0).tobytes()] == expected


def test_unlabelled_images_of_a_file(tmp_path: Path) -> None:
    write_coco(tmp_path / "a.json", tmp_path, _annotations(0, 2), SIZE)
    data = vitrail.open_dataset(tmp_path / "a.json", labelled=False)
    assert sum(map(len, data.splits.values())) == 3
    assert not data.train.has_mask_targets


def test_masks_that_are_chosen_are_read_where_no_labels_are_needed(tmp_path: Path) -> None:
    """As segmentation opens its data, by option and when a run is resumed: the masks are the targets."""
    annotations = _annotations(3, 4)
    write_coco(tmp_path / "annotations.json", tmp_path / "images", annotations, SIZE)
    for source in (tmp_path, tmp_path / "annotations.json"):
        found = vitrail.open_dataset(source, columns=Columns(masks=True), labelled=False)
        assert found.train.has_mask_targets
        assert found.class_names == CLASSES
        assert not vitrail.open_dataset(source, labelled=False).train.has_mask_targets


def test_folders_of_classes_beside_a_coco_file_are_read_by_choice(tmp_path: Path) -> None:
    """And again when the run is resumed, with the columns that it has recorded."""
    write_coco(tmp_path / "annotations.json", tmp_path / "images", _annotations(3, 4), SIZE)
    write_image(tmp_path / "cat/0.png", SIZE, 7)
    data = vitrail.open_dataset(tmp_path, columns=Columns(masks=False))
    assert data.class_names == ("cat", "images")
    assert vitrail.open_dataset(tmp_path, columns=data.columns).class_names == data.class_names


def test_files_of_splits_are_matched_by_the_names_of_their_categories(tmp_path: Path) -> None:
    """Whatever their ids in each file."""
    annotations = _annotations(0, 7)
    write_coco(tmp_path / "a.json", tmp_path / "images", annotations, SIZE)
    content = json.loads((tmp_path / "a.json").read_text())
    for each in (*content["categories"], *content["annotations"]):
        key = "id" if "name" in each else "category_id"
        each[key] = 100 - each[key]
    (tmp_path / "b.json").write_text(json.dumps(content))
    data = vitrail.open_dataset({"train": tmp_path / "a.json", "validation": tmp_path / "b.json"})
    assert data.validation.class_names == CLASSES
    for index in range(len(data.train)):
        np.testing.assert_array_equal(data.validation.mask(index), data.train.mask(index))
    checked = check_dataset(data)
    assert checked.leaks
    assert not checked.conflicts


def test_the_fingerprint_has_the_annotations(tmp_path: Path) -> None:
    fingerprints = []
    for seed in (0, 1):
        write_coco(tmp_path / "a.json", tmp_path / "images", _annotations(seed, 3), SIZE)
        fingerprints.append(vitrail.open_dataset(tmp_path / "a.json").fingerprint)
    assert fingerprints[0] != fingerprints[1]


def test_the_command_names_file_and_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_coco(tmp_path / "a.json", tmp_path, _annotations(0, 2), SIZE, {"categories": [{"id": 1}]})
    assert run(["data", "check", str(tmp_path / "a.json")]) == 2
    assert "a.json: entry 0 of categories has no name" in capsys.readouterr().err.replace("\n", " ")
