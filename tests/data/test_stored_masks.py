"""Packs and shards keep masks, objects and the names of their classes, and notice when they are damaged (FAULTS 8)."""

import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray
from PIL import Image

from tests.data.images import image_bytes
from vitrail.data.dataset_check import check_dataset
from vitrail.data.pack_reader import read_pack
from vitrail.data.pack_writer import write_pack
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.dataset import IGNORED, Dataset, select_images, with_mask_targets
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.stored_masks import decode_mask_png, encode_mask_png, resize_mask
from vitrail.data.sources.tar_shards import read_shards
from vitrail.errors import VitrailError

NAMES = ("sky", "bird 2", "Café")
SIZES = ((41, 31), (23, 53), (37, 37), (31, 41))


@dataclass(frozen=True, eq=False)
class MaskedImages(Dataset):
    """JPEG files of several sizes with masks; every other one tells objects apart."""

    count: int = 6
    classes: int = 3

    @property
    def class_names(self) -> tuple[str, ...]:
        return NAMES

    mask_names = class_names

    @property
    def labels(self) -> ndarray:
        return np.full(self.count, -1, np.int64)

    @property
    def has_mask_targets(self) -> bool:
        return True

    def read(self, index: int) -> bytes:
        height, width = SIZES[index % len(SIZES)]
        return image_bytes(index, size=(height, width))

    def mask(self, index: int) -> ndarray:
        mask = np.random.default_rng(index).integers(IGNORED, self.classes, SIZES[index % len(SIZES)], np.int16)
        mask[:9, :11] = 2
        return mask

    def instances(self, index: int) -> ndarray | None:
        mask = self.mask(index).astype(np.int32)
        return None if index % 2 else np.where(mask > 0, mask + 300, 0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def _masks(dataset: Dataset) -> list[tuple[bytes, bytes]]:
    """Return mask and objects of every image, sorted."""
    rows = []
    for index in range(len(dataset)):
        mask, objects = dataset.mask(index), dataset.instances(index)
        assert mask.dtype == np.int16
        assert objects is None or objects.dtype == np.int32
        rows.append((mask.tobytes(), b"" if objects is None else objects.tobytes()))
    return sorted(rows)


@pytest.mark.parametrize(
    ("name", "store"),
    [("targets", "pixels"), ("targets", "jpeg"), ("targets", "shards"), ("labels", "pixels"), ("labels", "shards")],
)
def test_masks_come_out_as_they_went_in(store: str, name: str, tmp_path: Path) -> None:
    """Also those of a dataset with labels, which has masks besides."""
    panes = open_dataset("panes:train_size=12,size=24")
    parts: dict[str, Dataset] = (
        {"train": MaskedImages(), "validation": MaskedImages(3)} if name == "targets" else dict(panes.splits)
    )
    if store == "shards":
        write_shards(tmp_path / "out", parts, shard_size=6000)
    else:
        write_pack(tmp_path / "out", parts, store=store)
    after = open_dataset(tmp_path / "out")
    for split, dataset in parts.items():
        found = after.splits[split]
        assert found.mask_names == dataset.mask_names
        assert found.class_names == dataset.class_names
        assert found.has_mask_targets == dataset.has_mask_targets == (name == "targets")
        assert sorted(found.labels.tolist()) == sorted(dataset.labels.tolist())
        assert _masks(found) == _masks(dataset)
    assert with_mask_targets(after.train, "it").mask_names == parts["train"].mask_names


@pytest.mark.parametrize("size", [(17, 27), (16, 16), 19, None])
def test_masks_of_a_pack_are_resized_as_its_images(size: tuple[int, int] | int | None, tmp_path: Path) -> None:
    """Without interpolation: as Pillow takes the nearest pixel of the same crop."""
    before = MaskedImages()
    write_pack(tmp_path / "x.pack", {"train": before}, size=size)
    [packed] = read_pack(tmp_path / "x.pack")[0].values()
    for index in range(len(before)):
        image, mask = packed.read(index), before.mask(index)
        assert isinstance(image, ndarray)
        height, width = image.shape[:2]
        box = (0.0, 0.0, float(mask.shape[1]), float(mask.shape[0]))
        if isinstance(size, tuple):
            wide, high = min(mask.shape[1], mask.shape[0] * width / height), min(mask.shape[0], mask.shape[1] * height / width)
            left, top = (mask.shape[1] - wide) / 2, (mask.shape[0] - high) / 2
            box = (left, top, left + wide, top + high)
        nearest = Image.fromarray(mask.astype(np.int32)).resize((width, height), Image.Resampling.NEAREST, box)
        np.testing.assert_array_equal(packed.mask(index), np.asarray(nearest))


def test_a_mask_that_is_not_resized_is_the_same() -> None:
    mask = MaskedImages().mask(1)
    for crops in (False, True):
        np.testing.assert_array_equal(resize_mask(mask, (mask.shape[0], mask.shape[1]), crops), mask)


@pytest.mark.parametrize("classes", [2, 254, 255, 256, 30_000])
def test_as_many_classes_as_a_mask_can_have(classes: int) -> None:
    mask = np.array([[IGNORED, 0, 1], [classes - 1, classes - 2, IGNORED]], np.int16)
    np.testing.assert_array_equal(decode_mask_png(encode_mask_png(mask)), mask)


def test_the_fingerprint_has_the_masks(tmp_path: Path) -> None:
    for name, classes in (("a", 3), ("b", 2)):
        write_pack(tmp_path / name, {"train": MaskedImages(classes=classes)})
        write_shards(tmp_path / f"{name}-shards", {"train": MaskedImages(classes=classes)})
    for kind in ("", "-shards"):
        assert open_dataset(tmp_path / f"a{kind}").fingerprint != open_dataset(tmp_path / f"b{kind}").fingerprint


@pytest.mark.parity
def test_webdataset_reads_the_masks(tmp_path: Path) -> None:
    peer = pytest.importorskip("webdataset.tariterators")
    write_shards(tmp_path / "out", {"train": MaskedImages()})
    assert (tmp_path / "out/mask_classes.txt").read_text() == "sky\nbird 2\nCafé\n"
    before = MaskedImages()
    with open(tmp_path / "out/train-000000.tar", "rb") as stream:
        samples = list(peer.group_by_keys(peer.tar_file_expander([{"url": "train", "stream": stream}])))
    assert len(samples) == 6
    for sample in samples:
        index = int(sample["__key__"])
        np.testing.assert_array_equal(decode_mask_png(sample["mask.png"]), before.mask(index))
        assert ("objects.png" in sample) == (before.instances(index) is not None)


def test_a_damaged_mask_is_noticed(tmp_path: Path) -> None:
    write_shards(tmp_path / "out", {"train": MaskedImages()})
    write_pack(tmp_path / "x.pack", {"train": MaskedImages()})
    shard = tmp_path / "out/train-000000.tar"
    dataset = read_shards(tmp_path / "out")["train"]
    with tarfile.open(shard) as tar:
        place = next(info.offset_data for info in tar if info.name.endswith("mask.png")) + 60
    for path, at in ((shard, place), (tmp_path / "x.pack", -400)):
        content = bytearray(path.read_bytes())
        content[at] ^= 255
        path.write_bytes(content)
    with pytest.raises(VitrailError, match="is not what was indexed: the shard was damaged"):
        _masks(dataset)
    with pytest.raises(VitrailError, match="its checksum does not match"):
        read_pack(tmp_path / "x.pack")


def test_masks_without_names_and_images_without_masks_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path / "out", {"train": select_images(MaskedImages(), np.arange(4))})
    (tmp_path / "out/mask_classes.txt").unlink()
    with pytest.raises(VitrailError, match=r"no names of their classes; write one per line into .*mask_classes\.txt"):
        open_dataset(tmp_path / "out")
    (tmp_path / "out/mask_classes.txt").write_text("sky\n")
    with pytest.raises(VitrailError, match=r"has a mask with the class 2, and there are names of 1"):
        open_dataset(tmp_path / "out").train.mask(0)
    with tarfile.open(tmp_path / "out/train-000001.tar", "w") as tar:
        (tmp_path / "x.jpg").write_bytes(image_bytes(7))
        tar.add(tmp_path / "x.jpg", "x.jpg")
    with pytest.raises(VitrailError, match=r"x in .*000001\.tar has no mask but others have; add x\.mask\.png"):
        open_dataset(tmp_path / "out")


def test_an_image_whose_mask_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    class Broken(MaskedImages):
        def mask(self, index: int) -> ndarray:
            if index == 2:
                raise VitrailError("has a mask that is of another size")
            return super().mask(index)

    packed = write_pack(tmp_path / "x.pack", {"train": Broken(30)})
    sharded = write_shards(tmp_path / "out", {"train": Broken(30)})
    for report in (packed, sharded):
        assert report.counts == {"train": 29}
        assert [sentence for sentence in report.skipped if sentence.startswith("image 2 has a mask that")]
    check = check_dataset(open_dataset(tmp_path / "x.pack"))
    assert check.ok
