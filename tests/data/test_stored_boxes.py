"""Packs and shards keep boxes and the names of their classes, and notice when they are damaged."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from tests.data.images import image_bytes
from vitrail.data.pack_reader import read_pack
from vitrail.data.pack_writer import write_pack
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.dataset import Dataset, with_box_targets
from vitrail.data.sources.objects import NO_OBJECTS, Objects, build_objects
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.stored_boxes import decode_objects, encode_objects, resize_objects
from vitrail.data.sources.tar_shards import read_shards
from vitrail.errors import VitrailError

NAMES = ("sky", "bird 2", "Café")
SIZES = ((41, 31), (23, 53), (37, 37), (31, 41))


@dataclass(frozen=True, eq=False)
class BoxedImages(Dataset):
    """JPEG files of several sizes with boxes; every third one has none."""

    count: int = 6
    shift: float = 0.0

    @property
    def class_names(self) -> tuple[str, ...]:
        return NAMES

    box_names = class_names

    @property
    def labels(self) -> ndarray:
        return np.full(self.count, -1, np.int64)

    @property
    def has_box_targets(self) -> bool:
        return True

    def read(self, index: int) -> bytes:
        height, width = SIZES[index % len(SIZES)]
        return image_bytes(index, size=(height, width))

    def objects(self, index: int) -> Objects:
        if index % 3 == 2:
            return NO_OBJECTS
        rng, (height, width) = np.random.default_rng(index), SIZES[index % len(SIZES)]
        corners = np.sort(rng.uniform(0, 1, (4, 2, 2)), axis=1).reshape(4, 4) * [width, height, width, height]
        return build_objects(corners + self.shift, rng.integers(0, 3, 4), rng.random(4) < 0.5, rng.uniform(1, 99, 4))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def as_bytes(objects: Objects) -> bytes:
    return b"|".join(np.ascontiguousarray(column).tobytes() for column in vars(objects).values())


def boxes_of(dataset: Dataset) -> list[bytes]:
    return sorted(as_bytes(dataset.objects(index)) for index in range(len(dataset)))


@pytest.mark.parametrize(
    ("name", "store"),
    [("targets", "pixels"), ("targets", "jpeg"), ("targets", "shards"), ("labels", "pixels"), ("labels", "shards")],
)
def test_boxes_come_out_as_they_went_in(store: str, name: str, tmp_path: Path) -> None:
    """Also those of a dataset with labels, which has boxes and masks besides."""
    panes = open_dataset("panes:train_size=12,size=24")
    parts: dict[str, Dataset] = (
        {"train": BoxedImages(), "validation": BoxedImages(3)} if name == "targets" else dict(panes.splits)
    )
    if store == "shards":
        write_shards(tmp_path / "out", parts, shard_size=6000)
    else:
        write_pack(tmp_path / "out", parts, store=store)
    after = open_dataset(tmp_path / "out")
    for split, dataset in parts.items():
        found = after.splits[split]
        assert found.box_names == dataset.box_names
        assert found.mask_names == dataset.mask_names
        assert found.class_names == dataset.class_names
        assert found.has_box_targets == dataset.has_box_targets == (name == "targets")
        assert not found.has_mask_targets
        assert boxes_of(found) == boxes_of(dataset)
    assert with_box_targets(after.train, "it").box_names == parts["train"].box_names


def test_the_targets_of_images_with_boxes_and_masks_are_those_that_were_chosen(tmp_path: Path) -> None:
    panes = open_dataset("panes:train_size=4,size=24").train
    chosen = {"train": with_box_targets(panes, "panes")}
    write_shards(tmp_path / "shards", chosen)
    write_pack(tmp_path / "pack", chosen)
    for name in ("shards", "pack"):
        dataset = open_dataset(tmp_path / name).train
        assert dataset.has_box_targets
        assert not dataset.has_mask_targets
        assert dataset.class_names == panes.box_names


@pytest.mark.parametrize("size", [(17, 27), (16, 16), 19, None])
def test_boxes_of_a_pack_are_resized_as_its_images(size: tuple[int, int] | int | None, tmp_path: Path) -> None:
    """A box that the crop leaves outside is left out."""
    before = BoxedImages()
    write_pack(tmp_path / "x.pack", {"train": before}, size=size)
    [packed] = read_pack(tmp_path / "x.pack")[0].values()
    for index in range(len(before)):
        image, objects = packed.read(index), before.objects(index)
        assert isinstance(image, ndarray)
        (height, width), (high, wide) = image.shape[:2], SIZES[index % len(SIZES)]
        scale = max(height / high, width / wide) if isinstance(size, tuple) else None
        x, y = (scale, scale) if scale else (width / wide, height / high)
        centres = np.array([wide / 2, high / 2] * 2) if scale else np.zeros(4)
        shifts = np.array([width / 2, height / 2] * 2) if scale else np.zeros(4)
        expected = (objects.boxes - centres) * [x, y, x, y] + shifts
        inside = (expected[:, 2:] > 0).all(axis=1) & (expected[:, :2] < [width, height]).all(axis=1)
        np.testing.assert_allclose(packed.objects(index).boxes, expected[inside], atol=1e-9)
        np.testing.assert_allclose(packed.objects(index).areas, objects.areas[inside] * x * y)
        assert packed.objects(index).labels.tolist() == objects.labels[inside].tolist()


def test_a_box_outside_of_the_crop_is_left_out() -> None:
    objects = build_objects([[0, 0, 3, 10], [4, 0, 20, 10]], [1, 2])
    kept = resize_objects(objects, (10, 20), (5, 5), crops=True)
    assert kept.labels.tolist() == [2]
    assert kept.boxes.tolist() == [[-0.5, 0, 7.5, 5]]


def test_an_image_whose_boxes_cannot_be_read_is_skipped_and_named(tmp_path: Path) -> None:
    class Faulty(BoxedImages):
        def objects(self, index: int) -> Objects:
            if index == 1:
                raise VitrailError("has annotations that cannot be used")
            return super().objects(index)

    report = write_pack(tmp_path / "x.pack", {"train": Faulty()})
    assert report.counts == {"train": 5}
    assert report.skipped == ["image 1 has annotations that cannot be used"]
    [packed] = read_pack(tmp_path / "x.pack")[0].values()
    assert boxes_of(packed) == sorted(as_bytes(BoxedImages().objects(index)) for index in (0, 2, 3, 4, 5))


def test_the_fingerprint_changes_with_any_box(tmp_path: Path) -> None:
    fingerprints = set()
    for number, shift in enumerate((0.0, 1e-9)):
        write_pack(tmp_path / f"{number}.pack", {"train": BoxedImages(shift=shift)})
        write_shards(tmp_path / f"{number}", {"train": BoxedImages(shift=shift)})
        fingerprints |= {open_dataset(tmp_path / name).fingerprint for name in (f"{number}.pack", f"{number}")}
    assert len(fingerprints) == 4


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"boxes": [[1, 2, 3, 4]], "labels": [], "crowd": [], "areas": []}', b'{"boxes": [[1, 2, 3, "x"]]}',
     b'{"boxes": [[1, 2, 3, NaN]], "labels": [0], "crowd": [false], "areas": [1]}'],
)  # fmt: skip
def test_boxes_that_are_damaged_are_refused(content: bytes) -> None:
    with pytest.raises(VitrailError, match="has boxes that cannot be read; they are JSON of boxes, labels, crowd and areas"):
        decode_objects(content)


def test_boxes_are_written_with_all_digits() -> None:
    objects = BoxedImages().objects(1)
    assert as_bytes(decode_objects(encode_objects(objects))) == as_bytes(objects)
    assert as_bytes(decode_objects(encode_objects(NO_OBJECTS))) == as_bytes(NO_OBJECTS)


def test_shards_whose_boxes_are_incomplete_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path / "out", {"train": BoxedImages()})
    path = tmp_path / "out/train-000000.tar"
    (tmp_path / "out/box_classes.txt").rename(tmp_path / "names")
    with pytest.raises(VitrailError, match=r"the boxes in .* have no names of their classes; write one per line into"):
        read_shards(tmp_path / "out")
    (tmp_path / "names").rename(tmp_path / "out/box_classes.txt")
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member)) for member in tar.getmembers()]
        files = [(member, file.read()) for member, file in members if file is not None]
    with tarfile.open(path, "w") as tar:
        for member, content in files:
            if not member.name.startswith("000000003.boxes"):
                (tmp_path / "part").write_bytes(content)
                tar.add(tmp_path / "part", member.name)
    with pytest.raises(VitrailError, match=r"has no file of boxes but others have; add 000000003\.boxes\.json"):
        read_shards(tmp_path / "out")


def test_a_class_without_a_name_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path / "out", {"train": BoxedImages()})
    (tmp_path / "out/box_classes.txt").write_text("sky\n")
    dataset = open_dataset(tmp_path / "out").train
    with pytest.raises(VitrailError, match="has a box of the class 2, and there are names of 1"):
        boxes_of(dataset)
    assert json.loads(encode_objects(NO_OBJECTS)) == {"boxes": [], "labels": [], "crowd": [], "areas": []}
