"""A dataset answers for itself, can be indexed like torch's, and its wrappers forward every question."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, random_split

from tests.data.images import write_class_folders
from vitrail.augment.policy import get_policy
from vitrail.data.image_index import index_images
from vitrail.data.loader import build_train_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.dataset import ArrayDataset, Dataset, ImageFileDataset, Subset, with_class_names
from vitrail.data.sources.image_folder import read_image_folder
from vitrail.data.sources.packed_strings import PackedStrings
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.data.sources.tar_shards import read_shards
from vitrail.data.sources.user_dataset import as_dataset
from vitrail.errors import VitrailError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def arrays(count: int = 7, size: tuple[int, int] = (4, 5), seed: int = 0) -> ArrayDataset:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    return ArrayDataset(pixels, np.arange(count) % 3, ("ant", "bee", "cat"), f"seed {seed}")


def image_folder(root: Path, counts: dict[str, int], first: int = 0) -> Dataset:
    return read_image_folder(write_class_folders(root, counts, first))[0][""]


def test_an_item_is_an_rgb_image_and_its_label(tmp_path: Path) -> None:
    dataset = arrays()
    image, label = dataset[4]
    assert (image.mode, image.size, label, type(label)) == ("RGB", (5, 4), 1, int)
    assert np.array_equal(np.asarray(image), dataset.images[4])
    assert dataset[np.int64(-1)][1] == dataset[6][1]
    folder = image_folder(tmp_path / "data", {"a": 2, "b": 1})
    assert [(image.size, label) for image, label in folder] == [((20, 24), 0), ((20, 24), 0), ((20, 24), 1)]
    grey = ArrayDataset(np.full((1, 3, 2, 1), 9, np.uint8), np.array([-1]), ())
    assert (grey[0][0].mode, grey[0][0].getpixel((1, 2)), grey[0][1]) == ("RGB", (9, 9, 9), -1)


def test_an_index_outside_the_dataset_is_an_error() -> None:
    for index in (7, -8):
        with pytest.raises(IndexError):
            arrays()[index]
    with pytest.raises(TypeError):
        arrays()["first"]  # type: ignore[call-overload]


def test_a_slice_of_a_dataset_is_a_subset_of_it() -> None:
    dataset = arrays()
    for part in (slice(3), slice(1, 6, 2), slice(None, None, -1), slice(4, 4)):
        assert [label for _, label in dataset[part]] == [label for _, label in dataset][part]
        assert dataset[part].class_names == dataset.class_names


def test_torch_reads_our_datasets() -> None:
    def collate(rows: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([torch.from_numpy(np.array(image)) for image, _ in rows]), torch.tensor([label for _, label in rows])

    dataset = arrays(10)
    batches = list(DataLoader(dataset, batch_size=4, collate_fn=collate))  # type: ignore[arg-type]
    assert torch.equal(torch.cat([images for images, _ in batches]), torch.from_numpy(dataset.images))
    assert torch.cat([labels for _, labels in batches]).tolist() == dataset.labels.tolist()
    parts: list[Any] = random_split(dataset, [6, 4])  # type: ignore[arg-type]
    assert sorted(index for part in parts for index in part.indices) == list(range(10))


def wrapped_datasets(tmp_path: Path) -> dict[str, Dataset]:
    """Return two or three datasets of each kind, to be joined."""
    images = image_folder(tmp_path / "images", {"ant": 4, "bee": 3, "cat": 1})
    write_shards(tmp_path / "shards", {"train": images}, shard_size=4000)
    floats = [(image, float(number)) for number, (image, _) in enumerate(arrays(5))]
    return {
        "arrays": ConcatDataset([arrays(7), arrays(4, seed=1), arrays(3, seed=2)]),
        "two sizes": ConcatDataset([arrays(7), arrays(4, (6, 3), seed=1)]),
        "files": ConcatDataset([images, image_folder(tmp_path / "more", {"ant": 2, "bee": 2, "cat": 1}, first=50)]),
        "files of one folder": ConcatDataset([Subset(images, np.arange(5)), Subset(images, np.arange(3, 8))]),
        "shards": ConcatDataset([read_shards(tmp_path / "shards")["train"], images, read_shards(tmp_path / "shards")["train"]]),
        "panes": ConcatDataset([build_panes("train", 4, (20, 16)), build_panes("test", 5, (20, 16))]),
        "floats": ConcatDataset([as_dataset(floats), as_dataset(floats[::-1])]),
    }


PER_IMAGE = ("read", "describe", "title", "path", "target", "object_mask")
KINDS = ("arrays", "two sizes", "files", "files of one folder", "shards", "panes", "floats")


def same(first: Any, second: Any) -> bool:
    return np.array_equal(first, second) if isinstance(first, np.ndarray) else bool(first == second)


@pytest.mark.parametrize("kind", KINDS)
def test_a_subset_of_a_concatenation_forwards_every_question(kind: str, tmp_path: Path) -> None:
    joined = wrapped_datasets(tmp_path)[kind]
    assert isinstance(joined, ConcatDataset)
    located = [(part, index) for part in joined.datasets for index in range(len(part))]
    chosen = np.random.default_rng(3).permutation(len(joined))[:-1]
    subset = Subset(joined, chosen)
    expected = [located[index] for index in chosen.tolist()]
    assert len(subset) == len(expected) == len(joined) - 1
    for row, (part, index) in enumerate(expected):
        for method in PER_IMAGE:
            assert same(getattr(subset, method)(row), getattr(part, method)(index)), method
        assert subset.labels[row] == part.labels[index]
        assert subset.targets[row] == part.targets[index]
    assert subset.class_names == joined.datasets[0].class_names
    assert subset.is_deterministic
    rows = np.array([3, 0, 5, 0])
    one_by_one = [part.sizes(np.array([index])) for part, index in (expected[row] for row in rows)]
    sizes = subset.sizes(rows)
    assert (sizes is None) == (kind not in ("arrays", "two sizes", "panes"))
    assert sizes is None or sizes.tolist() == [size.tolist()[0] for size in one_by_one if size is not None]
    if kind == "arrays":
        assert subset.array_shape == (4, 5, 3)
        assert np.array_equal(subset.stack(rows), [np.asarray(subset.read(row)) for row in rows.tolist()])
    else:
        assert subset.array_shape is None
        with pytest.raises(VitrailError, match="no array of images; read them one by one"):
            subset.stack(rows)


def test_wrappers_define_every_method_of_a_dataset() -> None:
    methods = {name for name, member in vars(Dataset).items() if callable(member) or isinstance(member, property)}
    inherited = {"has_label", "__len__", "__getitem__", "__iter__", "__init_subclass__", "__class_getitem__"}
    for wrapper in (Subset, ConcatDataset):
        assert {name for name in methods - inherited if getattr(wrapper, name) is getattr(Dataset, name)} == set(), wrapper
    assert not inspect.isabstract(Subset)


def test_groups_of_a_concatenation_are_numbered_through(tmp_path: Path) -> None:
    joined = wrapped_datasets(tmp_path)["shards"]
    assert isinstance(joined, ConcatDataset)
    shards, files = (part.groups() for part in joined.datasets[:2])
    assert shards is not None
    assert files is None
    groups, count = joined.groups(), int(shards.max()) + 1
    assert groups is not None
    assert count > 1
    assert groups.tolist() == [*shards, *[count] * len(joined.datasets[1]), *(shards + count + 1)]
    assert Subset(joined, np.array([9, 0])).groups().tolist() == [groups[9], groups[0]]  # type: ignore[union-attr]
    assert ConcatDataset([arrays(), arrays()]).groups() is None


def test_files_of_one_folder_are_listed_together(tmp_path: Path) -> None:
    datasets = wrapped_datasets(tmp_path)
    files = Subset(datasets["files of one folder"], np.array([0, 6])).files()
    assert files == (tmp_path / "images", ["ant/0.jpg", "bee/0.jpg"])
    assert datasets["files"].files() is None
    assert datasets["arrays"].files() is None


def test_keys_change_with_the_images(tmp_path: Path) -> None:
    joined = wrapped_datasets(tmp_path)
    keys = [(dataset.content_key(), dataset.cache_key()) for dataset in joined.values()]
    keys += [
        (Subset(dataset, np.array([1, 0])).content_key(), Subset(dataset, np.array([1, 0])).cache_key())
        for dataset in joined.values()
    ]
    assert len({content for content, _ in keys}) == len(keys)
    cached = [cache for _, cache in keys if cache is not None]
    assert len(set(cached)) == len(cached) == len(keys) - 2  # a user's object may change without a sign
    before = joined["files"].cache_key()
    (tmp_path / "more" / "bee" / "0.jpg").write_bytes(b"another")
    assert joined["files"].cache_key() != before


def test_shared_datasets_are_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_folder(tmp_path / "images", {"ant": 4, "bee": 3})
    read: list[str] = []

    def read_and_note(self: ImageFileDataset, index: int) -> bytes:
        read.append(self.describe(index))
        return self.path(index).read_bytes()

    monkeypatch.setattr(ImageFileDataset, "read", read_and_note)
    halves = ConcatDataset([Subset(images, np.array([4, 1])), arrays(), Subset(images, np.array([0, 1]))])
    datasets, positions = halves.flatten()
    assert len(datasets) == 2
    assert positions.tolist() == [4, 1, *range(7, 14), 0, 1]
    index = index_images(halves)
    assert len(read) == len(set(read)) == 7
    assert index.sizes.tolist() == [[24, 20]] * 2 + [[4, 5]] * 7 + [[24, 20]] * 2
    assert index.file_keys()[1] == index.file_keys()[-1]


def test_batches_of_a_concatenation_are_those_of_the_array() -> None:
    whole = arrays(12)
    parts = ConcatDataset([Subset(whole, np.arange(5)), Subset(whole, np.arange(5, 12))])
    settings = Preprocess((4, 5)), 6, get_policy("light2", crop="random-resized")
    expected, batch = (build_train_loader(dataset, *settings, seed=2).batch(3) for dataset in (whole, parts))
    assert torch.equal(batch.images, expected.images)
    assert torch.equal(batch.targets, expected.targets)


def test_labels_are_numbered_by_other_class_names() -> None:
    dataset = ArrayDataset(arrays().images, np.array([0, 1, 2, -1, 2, 1, 0]), ("ant", "bee", "cat"))
    other = with_class_names(dataset, ("cat", "dog", "ant", "bee"))
    assert other.labels.tolist() == [2, 3, 0, -1, 0, 3, 2]
    assert [other.target(index) for index in range(7)] == other.labels.tolist() == other.targets.tolist()  # type: ignore[union-attr]
    assert other.class_names == ("cat", "dog", "ant", "bee")
    assert with_class_names(dataset, dataset.class_names) is dataset


def test_a_subclass_needs_no_more_than_images_and_labels() -> None:
    class Squares(Dataset):
        class_names = ("small", "large")
        labels = np.array([0, 1, 1])

        def __len__(self) -> int:
            return 3

        def read(self, index: int) -> np.ndarray:
            return np.full((index + 1, index + 1, 3), index, np.uint8)

    dataset = Squares()
    assert [(image.size, label) for image, label in dataset] == [((1, 1), 0), ((2, 2), 1), ((3, 3), 1)]
    assert dataset.content_key() == Squares().content_key() != Subset(dataset, np.array([0])).content_key()
    assert dataset.cache_key() is None
    assert dataset.title(1) == dataset.describe(1) == "image 1"
    with pytest.raises(TypeError, match="abstract"):
        Dataset()  # type: ignore[abstract]


@pytest.mark.parametrize("pack", [list, PackedStrings.from_strings])
@pytest.mark.parametrize(
    "odd",
    ["./a.png", "b//a.png", "b/./a.png", "b/a.png/", "b/.", ".", "..", "../a.png", "/a/b.png", "//a", "b/.a", "a.", "ä\udcff"],
)
def test_paths_are_identified_as_they_are_normalised(odd: str, pack: Any) -> None:
    for paths in ([odd], ["x.png", odd], [odd, "x.png"]):
        dataset = ImageFileDataset(Path("/images"), pack(paths), np.zeros(len(paths), np.int64), ("a",))
        assert dataset.content_key() == "\0".join(str(Path(path)) for path in paths).encode(errors="surrogateescape")
