"""A windowed sampler loses and repeats nothing, reads neighbouring images together, and is stateless like any other."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray

from tests.data.images import image_bytes
from vitrail.augment.policy import get_policy
from vitrail.data.loader import build_train_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.samplers import RUNS_PER_WINDOW, Sampler, ShuffledSampler, WindowedSampler, build_shuffled_sampler
from vitrail.data.sources.dataset import ArrayDataset, Dataset, Subset
from vitrail.data.sources.table import read_table
from vitrail.data.sources.tar_shards import TarDataset, read_shards
from vitrail.errors import VitrailError

LENGTHS = (7, 1, 12, 9, 5, 11, 8, 10, 6, 4)  # images per shard
TOTAL = sum(LENGTHS)
PREPROCESS = Preprocess((16, 12))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root, starts = tmp_path_factory.mktemp("shards"), np.cumsum([0, *LENGTHS]).tolist()
    for shard, length in enumerate(LENGTHS):
        with tarfile.open(root / f"{shard:03d}.tar", "w") as tar:
            for number in range(starts[shard], starts[shard] + length):
                for name, content in ((f"{number}.jpg", image_bytes(number)), (f"{number}.cls", str(number % 3).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return read_shards(root)[""]


def array_dataset(length: int) -> ArrayDataset:
    return ArrayDataset(np.zeros((length, 1, 1, 1), np.uint8), np.zeros(length, np.int64), ("a",))


def epoch_indices(order: Sampler, number: int, length: int, batch_size: int) -> ndarray:
    """Return the images of an epoch, whatever batches they are in."""
    steps = range(number * length // batch_size, -(-(number + 1) * length // batch_size))
    batches = [order.batch_indices(step) for step in steps]
    epochs, indices = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return indices[epochs == number]


@pytest.mark.parametrize("window", [1, 3, 16, 40, TOTAL - 1, TOTAL, None])
@pytest.mark.parametrize("batch", [4, 20])
def test_every_image_is_read_once_per_epoch_in_a_new_order(window: int | None, batch: int, shards: Dataset) -> None:
    for dataset in (shards, array_dataset(TOTAL), Subset(shards, np.arange(0, TOTAL, 2))):
        order = build_shuffled_sampler(dataset, batch, 5, window)
        orders = [epoch_indices(order, number, len(dataset), batch).tolist() for number in range(3)]
        assert all(sorted(indices) == list(range(len(dataset))) for indices in orders)
        assert len({tuple(indices) for indices in orders}) == 3
        other = epoch_indices(build_shuffled_sampler(dataset, batch, 6, window), 0, len(dataset), batch).tolist()
        assert other != orders[0]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.thorough), 4])
@pytest.mark.parametrize("window", [3, 16, pytest.param(40, marks=pytest.mark.thorough)])
def test_ranks_and_threads_have_the_same_order_and_resuming_continues_it(ranks: int, window: int, shards: Dataset) -> None:
    unbroken = build_shuffled_sampler(shards, 8, 2, window)
    expected = [unbroken.batch_indices(step)[1].tolist() for step in range(12)]
    loaders = [
        build_train_loader(shards, PREPROCESS, 8, get_policy("eval"), 2, rank=rank, world_size=ranks, shuffle_window=window)
        for rank in range(ranks)
    ]
    for first, workers in ((0, 0), (7, 2)):
        parts = [loader.batches(first, 12, workers=workers) for loader in loaders]
        batches = [torch.cat([part.indices for part in step]).tolist() for step in zip(*parts, strict=True)]
        assert batches == expected[first:]
    assert sorted(np.concatenate(expected)[:TOTAL].tolist()) == list(range(TOTAL))


@pytest.mark.parametrize("window", [6, 15, 30])
def test_a_window_touches_few_shards_and_each_shard_is_finished_before_later_ones(window: int, shards: Dataset) -> None:
    assert isinstance(shards, TarDataset)
    batch = 4
    indices = epoch_indices(build_shuffled_sampler(shards, batch, 1, window), 4, TOTAL, batch)
    shard_of_images = shards.shard_indices[indices]
    shortest = np.sort(LENGTHS)
    max_shards = int(np.searchsorted(np.cumsum(shortest), window)) + 2  # at most so many shards fit into a window
    assert (
        max(len(set(shard_of_images[start : start + window].tolist())) for start in range(0, TOTAL, window))
        <= max_shards
        < len(LENGTHS)
    )
    for shard, length in enumerate(LENGTHS):
        positions = np.flatnonzero(shard_of_images == shard)
        assert positions[-1] - positions[0] < length + 2 * window  # from its first image to its last
    whole = shards.shard_indices[epoch_indices(build_shuffled_sampler(shards, batch, 1), 4, TOTAL, batch)]
    assert len(set(whole[:window].tolist())) > len(set(shard_of_images[:window].tolist()))


def test_a_window_is_reshuffled_every_epoch(shards: Dataset) -> None:
    order = build_shuffled_sampler(shards, 5, 0, 16)
    one, two = (epoch_indices(order, number, TOTAL, 5) for number in (0, 1))
    assert isinstance(shards, TarDataset)
    first, second = (list(dict.fromkeys(shards.shard_indices[indices].tolist())) for indices in (one, two))
    assert first != second  # the shards too
    assert np.any(np.diff(one[:16]) < 0)


def test_a_window_of_the_whole_dataset_is_a_full_shuffle(shards: Dataset) -> None:
    for window in (TOTAL, TOTAL + 1, 10**9):
        assert build_shuffled_sampler(shards, 8, 3, window) == ShuffledSampler(TOTAL, 8, 3)


def test_without_shards_a_window_is_made_of_many_short_runs() -> None:
    """A folder is sorted by class, and a batch should have many classes."""
    order = build_shuffled_sampler(array_dataset(10_000), 64, 0, 640)
    indices = epoch_indices(order, 0, 10_000, 64)
    assert sorted(indices.tolist()) == list(range(10_000))
    for start in range(0, 10_000 - 640, 640):
        window = np.sort(indices[start : start + 640])
        assert RUNS_PER_WINDOW // 2 <= 1 + np.count_nonzero(np.diff(window) > 1) <= RUNS_PER_WINDOW + 1


def test_a_single_tar_is_split_into_runs_and_a_subset_knows_its_shards(shards: Dataset) -> None:
    assert isinstance(shards, TarDataset)
    inside = Subset(shards, np.flatnonzero(shards.shard_indices == 2))
    order = build_shuffled_sampler(inside, 2, 0, 6)
    assert isinstance(order, WindowedSampler)
    assert len(order.run_starts) == len(inside)
    usable = np.flatnonzero(np.arange(TOTAL) % 5 != 0)  # as after a dataset check
    order = build_shuffled_sampler(Subset(Subset(shards, usable), np.arange(len(usable))), 2, 0, 6)
    assert isinstance(order, WindowedSampler)
    assert np.array_equal(order.run_starts, np.flatnonzero(np.diff(shards.shard_indices[usable], prepend=-1)))


def test_row_groups_of_a_parquet_file_are_runs(tmp_path: Path) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow")
    writer: Any = pytest.importorskip("pyarrow.parquet")
    columns = {"image": [image_bytes(number) for number in range(20)], "label": [str(number % 2) for number in range(20)]}
    writer.write_table(pyarrow.table(columns), tmp_path / "x.parquet", row_group_size=6)
    order = build_shuffled_sampler(read_table(tmp_path / "x.parquet").splits[""], 2, 0, 7)
    assert isinstance(order, WindowedSampler)
    assert order.run_starts.tolist() == [0, 6, 12, 18]


def test_a_far_step_in_a_billion_images_costs_as_little_as_the_first() -> None:
    """No permutation as long as the dataset is drawn."""
    length, window = 10**9, 1000
    order = WindowedSampler(np.arange(0, length, 10**6), length, 256, 0, window)
    epochs, indices = order.batch_indices(10**9)
    assert epochs[0] == 256 * 10**9 // length
    assert len(np.unique(indices)) == 256
    assert 0 <= indices.min() <= indices.max() < length


def test_shards_keep_no_file_open(shards: Dataset) -> None:
    loader = build_train_loader(shards, PREPROCESS, 16, get_policy("eval"), shuffle_window=30)
    before = len(os.listdir("/proc/self/fd"))
    for _ in loader.batches(0, 12, workers=3):
        assert len(os.listdir("/proc/self/fd")) <= before + 3 + 1  # one file per thread, and the listing itself


@pytest.mark.parametrize("window", [0, -1])
def test_an_empty_window_is_refused(window: int, shards: Dataset) -> None:
    with pytest.raises(VitrailError, match=f"shuffle_window must be at least 1, got {window}; try shuffle_window=800"):
        build_train_loader(shards, PREPROCESS, 8, get_policy("eval"), shuffle_window=window)
