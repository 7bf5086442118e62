"""A user's own object is a dataset: lists, torch's and torchvision's datasets, mappings; others are refused in a line."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset as TorchConcatDataset
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset
from torch.utils.data import Subset as TorchSubset

import vitrail
from tests.data.images import image_bytes, make_image, write_class_folders, write_image
from vitrail.data.dataset_check import check_dataset
from vitrail.data.decode import decode
from vitrail.data.loader import build_eval_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import ArrayDataset, Dataset
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.user_dataset import as_dataset
from vitrail.errors import VitrailError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


class VisionDataset(TorchDataset[Any]):
    """A dataset like those of torchvision."""

    target_transform: Any = None

    def __init__(self, count: int = 30) -> None:
        self.classes, self.targets = ["ant", "bee", "cat"], [number % 3 for number in range(count)]
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
        self.reads.append(index)
        target = self.targets[index]
        return make_image(index, (8, 6)), target if self.target_transform is None else self.target_transform(target)


def tensors(count: int = 30, channels: int = 3) -> TensorDataset:
    images = torch.randint(0, 256, (count, channels, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(images, torch.arange(count) % 3)


def pairs(count: int = 30) -> list[tuple[Any, Any]]:
    return [(np.asarray(make_image(number, (8, 6))), ["ant", "bee", "cat"][number % 3]) for number in range(count)]


def test_every_kind_of_image_is_read_as_its_file_is(tmp_path: Path) -> None:
    content = image_bytes(3, (9, 7), "PNG")
    path = write_image(tmp_path / "3.png", 3, (9, 7))
    array = np.asarray(decode(content))
    grey = array[..., 0].copy()
    opaque = np.concatenate([array, np.full((9, 7, 1), 255, np.uint8)], axis=2)
    tensor = torch.from_numpy(array.copy())
    same: list[Any] = [path, str(path), content, Image.open(path), array, opaque, tensor.permute(2, 0, 1)]
    dataset = as_dataset([(image, 0) for image in same])
    for image, label in dataset:
        assert label == 0
        assert np.array_equal(np.asarray(image), array)
    assert [dataset.path(index) for index in range(3)] == [path, path, None]
    assert [dataset.describe(index) for index in (0, 2, 6)] == [str(path), "image 2", "image 6"]
    assert dataset.title(0) == "3.png"
    for one in (grey, grey[..., None], torch.from_numpy(grey), torch.from_numpy(grey)[None], Image.fromarray(grey)):
        assert np.array_equal(as_dataset([(one, 0)]).read(0), grey[..., None])
    batch = build_eval_loader(dataset, Preprocess((9, 7)), 10).batch(0)
    assert torch.equal(batch.images, batch.images[:1].expand(7, -1, -1, -1))


def test_torchs_tensors_are_a_dataset() -> None:
    source = tensors()
    data = vitrail.open_dataset(source)
    assert data.class_names == ("0", "1", "2")
    assert [len(split) for split in data.splits.values()] == [24, 3, 3]
    everything = as_dataset(source)
    assert np.array_equal(everything.read(4), source.tensors[0][4].permute(1, 2, 0))
    assert everything.labels.tolist() == source.tensors[1].tolist()
    assert data.name == open_dataset(tensors()).name
    assert data.name.startswith("TensorDataset-")
    assert data.fingerprint == open_dataset(tensors()).fingerprint != open_dataset(tensors(29)).fingerprint


def test_torchvisions_classes_and_targets_are_used_without_reading_images() -> None:
    source = VisionDataset()
    dataset = as_dataset(source)
    assert source.reads == [0]
    assert dataset.class_names == ("ant", "bee", "cat")
    assert dataset.labels.tolist() == source.targets
    assert dataset.describe(5) == dataset.title(5) == "image 5 of VisionDataset"
    source.target_transform = lambda target: 2 - target
    assert as_dataset(source).labels.tolist() == [2 - target for target in source.targets]
    assert np.array_equal(np.asarray(dataset[7][0]), np.asarray(make_image(7, (8, 6))))


def test_a_list_of_pairs_has_named_classes_and_is_split_by_content() -> None:
    data = open_dataset(pairs())
    assert data.class_names == ("ant", "bee", "cat")
    assert [np.bincount(split.labels).tolist() for split in data.splits.values()] == [[8, 8, 8], [1, 1, 1], [1, 1, 1]]
    turned = open_dataset(pairs()[::-1])
    for split, part in data.splits.items():
        assert {np.asarray(image).tobytes() for image, _ in part} == {
            np.asarray(image).tobytes() for image, _ in turned.splits[split]
        }
    assert data.notes == ("no splits given; validation and test are split off by content",)
    assert len(open_dataset(pairs(), split_fractions=SplitFractions(0.0, 0.0)).train) == 30
    report = check_dataset(open_dataset(pairs() + pairs()[:1]))
    assert report.ok
    assert len(report.duplicates) == 1


def test_torchs_subset_and_concatenation_keep_names_and_targets() -> None:
    source = VisionDataset()
    subset = as_dataset(TorchSubset(source, [4, 2, 9]))
    assert source.reads == [0]
    assert (subset.class_names, subset.labels.tolist()) == (("ant", "bee", "cat"), [1, 2, 0])
    joined = as_dataset(TorchConcatDataset([source, TorchSubset(source, [4])]))
    assert joined.labels.tolist() == [*source.targets, 1]
    assert np.array_equal(joined.read(30), subset.read(0))


@pytest.mark.parametrize(
    ("targets", "labels", "names"),
    [
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        (["10", "9", "10"], [1, 0, 1], ("9", "10")),
        ([0, 3, 1], [0, 3, 1], ("0", "1", "2", "3")),
        ([True, False, True], [1, 0, 1], ("0", "1")),
        ([np.int64(1), torch.tensor(0), np.array(1)], [1, 0, 1], ("0", "1")),
        ([1, None, -1], [1, -1, -1], ("0", "1")),
        ([10**9, 5, 10**9], [1, 0, 1], ("5", "1000000000")),
        ([None, None, None], [-1, -1, -1], ()),
        ([-1, -1, -1], [-1, -1, -1], ()),
    ],
)
def test_text_and_whole_numbers_are_labels(targets: list[Any], labels: list[int], names: tuple[str, ...]) -> None:
    dataset = as_dataset([(make_image(number), target) for number, target in enumerate(targets)])
    assert dataset.labels.tolist() == labels
    assert dataset.class_names == names
    assert [dataset.target(index) for index in range(3)] == list(dataset.targets) == labels


def test_other_targets_are_kept_through_the_splits() -> None:
    images = [np.asarray(make_image(number)) for number in range(20)]
    data = open_dataset([(image, number / 8) for number, image in enumerate(images)])
    assert data.class_names == ()
    for split in data.splits.values():
        assert (split.labels == -1).all()
        for index in range(len(split)):
            original = next(number for number, image in enumerate(images) if np.array_equal(image, split.read(index)))
            assert split.target(index) == split.targets[index] == original / 8
            assert type(split.target(index)) is float
    boxes = as_dataset([(image, {"boxes": [[0, 0, 1, 1]]}) for image in images])
    assert boxes.target(3) == {"boxes": [[0, 0, 1, 1]]}
    vectors = as_dataset([(image, torch.tensor([number, 1.5])) for number, image in enumerate(images)])
    assert vectors.target(2).tolist() == [2, 1.5]
    assert len({dataset.content_key() for dataset in (boxes, vectors, as_dataset(images))}) == 3
    mixed = as_dataset([(images[0], 1), (images[1], 0.5), (images[2], None)])
    assert np.array_equal(np.asarray(mixed.targets), np.array([[1], [0.5], [np.nan]]), equal_nan=True)
    assert vectors.target_names == ("target_0", "target_1")
    assert boxes.target_names == ()


SETS: list[list[int]] = [[0, 2], [], [3], [1, 2, 3], [2]] * 4
MULTI_HOT = np.array([[number in labels for number in range(4)] for labels in SETS], np.int64)
WORDS = ["ant", "bee", "cat", "dog"]
SEVERAL: dict[str, tuple[Any, Sequence[str] | None]] = {
    "lists": (SETS, None),
    "tuples of numpy's numbers": ([tuple(map(np.int64, each)) for each in SETS], None),
    "tensors in lists": ([[torch.tensor(one) for one in each] for each in SETS], None),
    "sets of names": ([{WORDS[one] for one in each} for each in SETS], None),
    "lists of names": ([[WORDS[one] for one in each] for each in SETS], WORDS),
    "zeros and ones": (MULTI_HOT.tolist(), None),
    "booleans": (MULTI_HOT.astype(bool), WORDS),
    "an array of floats": (MULTI_HOT.astype(np.float32), WORDS),
    "a tensor": (torch.from_numpy(MULTI_HOT).float(), None),
    "missing": ([each or None for each in SETS], None),
}  # fmt: skip


@pytest.mark.parametrize("kind", SEVERAL)
def test_lists_and_rows_of_zeros_and_ones_are_several_labels(kind: str) -> None:
    targets, names = SEVERAL[kind]
    images = [np.asarray(make_image(number)) for number in range(20)]
    dataset = as_dataset(list(zip(images, targets, strict=True)), names)
    assert dataset.class_names == (tuple(WORDS) if names or kind == "sets of names" else tuple("0123"))
    assert dataset.label_sets is not None
    assert dataset.label_sets.rows(np.arange(20)).tolist() == MULTI_HOT.tolist()
    assert np.array_equal(dataset.read(7), images[7])
    assert dataset.describe(7) == "image 7"
    data = open_dataset(list(zip(images, targets, strict=True)), class_names=names)
    assert data.columns.several
    sets = {np.asarray(image).tobytes(): np.asarray(target).tolist() for part in data.splits.values() for image, target in part}
    assert sets == {image.tobytes(): row for image, row in zip(images, MULTI_HOT.tolist(), strict=True)}


def test_several_labels_of_a_torchvision_dataset_are_used_without_reading_images() -> None:
    source = VisionDataset(3)
    source.targets = [[0, 2], [1], []]  # type: ignore[list-item]
    dataset = as_dataset(source)
    assert source.reads == [0]
    assert dataset.class_names == ("ant", "bee", "cat")
    assert [dataset.target(index).tolist() for index in range(3)] == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    source.targets = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0]])  # type: ignore[assignment]
    assert [as_dataset(source).target(index).tolist() for index in range(3)] == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]


def test_lists_that_are_no_labels_are_kept() -> None:
    images = [make_image(number) for number in range(3)]
    boxes: list[Any] = [(4, 4, 8, 9), (1, 2, 3, 4), (0, 0, 1, 1)]
    assert [as_dataset(list(zip(images, boxes, strict=True))).target(index) for index in range(3)] == boxes
    points = [np.array([3, 4]), np.array([1, 2]), np.array([0, 7])]
    assert as_dataset(list(zip(images, points, strict=True))).target(0).tolist() == [3, 4]
    soft = [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert as_dataset(list(zip(images, soft, strict=True))).label_sets is None


@pytest.mark.parametrize(
    ("targets", "names", "sentence"),
    [
        ([["a"], "b"], None, r"targets must all be lists of names, or .*, got 'b' for image 1; give every image a list"),
        ([["a"], [1]], None, r"targets must all be lists of names, or .*, got \[1\] for image 1"),
        ([["a"], ["bea"]], ["a", "bee"], r"the label 'bea' of image 1 is not among the 2 classes; did you mean 'bee'\?"),
        ([[0], [1, 2]], ["a", "bee"], r"a label must be a number from 0 to 1, since 2 classes are named, got 2 for image 1"),
        ([[0, 3], [-1]], None, r"a label must be a number from 0, got -1 for image 1; number the classes from 0"),
    ],
)
def test_a_mistake_in_several_labels_names_the_image(targets: list[Any], names: Any, sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        as_dataset([(IMAGE, target) for target in targets], names)


def test_images_alone_are_a_dataset_without_labels() -> None:
    images = np.stack([np.asarray(make_image(number)) for number in range(4)])
    for source in (images, list(images), torch.from_numpy(images).permute(0, 3, 1, 2)):
        dataset = as_dataset(source)
        assert dataset.labels.tolist() == [-1] * 4
        assert np.array_equal(dataset.read(2), images[2])


def test_a_mapping_names_the_splits(tmp_path: Path) -> None:
    folder = write_class_folders(tmp_path / "photos", {"bee": 3, "cat": 4}, first=100)
    data = open_dataset({"train": pairs(12), "val": VisionDataset(6), "test": str(folder)}, labelled=True)
    assert data.class_names == ("ant", "bee", "cat")
    assert [len(split) for split in data.splits.values()] == [12, 6, 7]
    assert data.test.labels.tolist() == [1] * 3 + [2] * 4
    assert {data.test.class_names[label] for label in data.test.labels} == {"bee", "cat"}
    assert [data.test[index][1] for index in range(7)] == data.test.labels.tolist()
    assert data.name.startswith("train=list-")
    assert data.name.endswith(f"test={folder}")
    again = open_dataset({"train": data, "test": data})
    assert again.test is data.test
    assert len(again.validation) == 3  # split off
    assert open_dataset(data) is data
    only_test = open_dataset({"test": tensors(5)})
    assert [len(split) for split in only_test.splits.values()] == [0, 0, 5]


def test_numbers_mean_the_same_in_every_split() -> None:
    images = [make_image(number) for number in range(8)]
    data = open_dataset({"train": [(image, number) for number, image in enumerate(images)], "test": [(images[0], 5)]})
    assert data.test.labels.tolist() == [5]
    assert data.class_names == data.test.class_names == tuple("01234567")
    named = open_dataset([(image, number % 2) for number, image in enumerate(images)], class_names=["dog", "elk"])
    assert named.class_names == ("dog", "elk")


def test_a_dataset_of_ours_is_split() -> None:
    dataset = ArrayDataset(np.stack([np.asarray(make_image(number)) for number in range(20)]), np.arange(20) % 2, ("a", "b"))
    data = open_dataset(dataset)
    assert [len(split) for split in data.splits.values()] == [16, 2, 2]
    assert as_dataset(dataset) is dataset
    assert data.name.startswith("ArrayDataset-")


def test_an_image_that_differs_each_time_is_split_by_its_index() -> None:
    class Flipped(VisionDataset):
        def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
            image, target = super().__getitem__(index)
            return image.rotate(random.choice((0, 90, 180, 270)), expand=True), target

    data = open_dataset(Flipped(40))
    assert data.notes[0].startswith("no splits given; validation and test are split off by index, because the images differ")
    again = open_dataset(Flipped(40))
    assert data.fingerprint == again.fingerprint
    assert data.name == again.name
    for split, part in data.splits.items():
        assert [part.describe(index) for index in range(len(part))] == [
            again.splits[split].describe(index) for index in range(len(part))
        ]
    assert not data.train.is_deterministic


class Broken(VisionDataset):
    def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
        if index == 7:
            raise RuntimeError(f"disk on fire {torch.zeros(3)}\nsecond line")
        return super().__getitem__(index)


def test_an_item_that_fails_is_a_bad_image() -> None:
    dataset = as_dataset(Broken())
    assert dataset.labels[7] == 1
    with pytest.raises(VitrailError, match=r"^cannot be read: RuntimeError: disk on fire tensor\(\[0., 0., 0.\]\)$"):
        dataset.read(7)
    report = check_dataset(open_dataset(Broken()))
    assert [bad.location for bad in report.bad] == ["image 7 of Broken"]


class Unnamed(TorchDataset[Any]):
    """A dataset that only gives its items, one of which fails."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == 7:
            raise OSError("gone")
        return make_image(index), index % 2


def test_targets_are_read_item_by_item_without_an_attribute() -> None:
    dataset = as_dataset(Unnamed())
    assert dataset.labels.tolist() == [-1 if index == 7 else index % 2 for index in range(30)]
    assert dataset.class_names == ("0", "1")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from pairs()


class Shorter(VisionDataset):
    labels = (1, 2)
    targets: Any = None

    def __init__(self) -> None:
        self.classes, self.reads = [], []

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
        return make_image(index), 0


IMAGE = np.zeros((4, 5, 3), np.uint8)
REFUSED: dict[str, tuple[Any, str]] = {
    "floats": (
        TensorDataset(torch.rand(4, 3, 8, 6), torch.arange(4)),
        r"image 0 of the dataset is a tensor of float32, 3 x 8 x 6; it must be uint8, channels x height x width; "
        r"try \(255 \* image\)\.round\(\)\.to\(torch\.uint8\) for values from 0 to 1, and leave normalisation to Vitrail$",
    ),
    "float array": ([(np.zeros((4, 5)), 1)], r"an array of float64, 4 x 5; .*try \(255 \* image\).round\(\).astype\(.uint8.\)"),
    "channels first": (
        [(np.zeros((3, 8, 6), np.uint8), 1)],
        "an array of uint8, 3 x 8 x 6; it must be uint8, height x width, or",
    ),
    "channels last": (
        [(torch.zeros(8, 6, 3, dtype=torch.uint8), 1)],
        "8 x 6 x 3; it must be uint8, channels x height x width$",
    ),
    "no image": ([(7, 1)], "image 0 of the dataset is an int; it must be a path, bytes, a PIL image"),
    "rows": (
        [{"image": IMAGE, "label": 1}],
        r"must be a pair \(image, target\), got a dict with the keys image, label; give an",
    ),
    "triples": ([(IMAGE, 1, 2)], r"must be a pair \(image, target\), got a tuple of length 3; give an object with __len__"),
    "apart": ((np.zeros((4, 5, 6, 3), np.uint8), np.arange(4)), r"apart; try list\(zip\(images, targets\)\)$"),
    "stream": (Stream(), "must be a path, a name or an object with __len__ and __getitem__ .*, got a Stream$"),
    "generator": (iter(pairs()), "got a list_iterator$"),
    "nothing": (None, "got None$"),
    "empty": ([], "the dataset, a list of length 0, has no images; give it some$"),
    "mixed": (
        [(IMAGE, "a"), (IMAGE, 1)],
        "targets must be all text, or none of them, got str and int; give every class a name$",
    ),
    "negative": (
        [(IMAGE, -2), (IMAGE, 1)],
        "a label must be a number from 0, or -1 for none, got -2; number the classes from 0$",
    ),
    "counts": (Shorter(), "the dataset must have as many labels as images, 3, got 2$"),
    "splits": ({"trian": pairs()}, "the splits must be train, validation and test, once each, got 'trian'$"),
    "twice": ({"val": pairs(), "validation": pairs()}, "once each, got 'val', 'validation'$"),
    "no splits": ({}, "there are no splits; name at least train$"),
    "missing": ({"train": {"test": pairs()}}, "has no train split, only test; name another for train$"),
    "bytes": (b"abc", "got a bytes$"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_dataset_is_refused_in_a_sentence(kind: str) -> None:
    source, sentence = REFUSED[kind]
    with pytest.raises(VitrailError, match=sentence) as refusal:
        open_dataset(source)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_class_names_must_fit_the_targets() -> None:
    with pytest.raises(VitrailError, match="label 2 needs 3 class names, got 2; name all classes, from 0"):
        as_dataset(tensors(), ["a", "b"])
    with pytest.raises(VitrailError, match="the target 'cat' is not among the 3 classes; did you mean 'cart'"):
        as_dataset(pairs(), ["ant", "bee", "cart"])
    assert as_dataset(pairs(), ["cat", "bee", "ant"]).labels[:3].tolist() == [2, 1, 0]


def test_an_error_in_the_first_item_names_it() -> None:
    class Fails(VisionDataset):
        def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
            raise KeyError("x")

    with pytest.raises(VitrailError, match="item 0 of the dataset, a Fails, cannot be read: KeyError: 'x'"):
        as_dataset(Fails())


def test_a_users_object_reads_an_image_once_to_split_and_check() -> None:
    source = VisionDataset()
    check_dataset(open_dataset(source))
    counts = np.bincount(source.reads)
    assert counts.max() <= 4  # the first item, two samples, the index
    assert np.median(counts) <= 3


def test_the_result_is_a_dataset() -> None:
    assert all(isinstance(as_dataset(source), Dataset) for source in (pairs(), tensors(), VisionDataset()))
