"""The loader has no state: batches follow from the step, whatever the threads, ranks and faults (FAULTS 7, 12)."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.data.images import image_bytes, write_class_folders
from tests.preprocess_image import preprocess_image
from vitrail.augment.mixup import soft_targets
from vitrail.augment.policy import POLICIES, get_policy
from vitrail.data.decode import decode
from vitrail.data.loader import Batch, Loader, build_eval_loader, build_train_loader
from vitrail.data.pack_reader import read_pack
from vitrail.data.pack_writer import write_pack
from vitrail.data.preprocess import Preprocess, vit_preprocess
from vitrail.data.samplers import ShuffledSampler
from vitrail.data.sources.builtin import load_fashion
from vitrail.data.sources.dataset import ArrayDataset, Dataset, Subset
from vitrail.data.sources.image_folder import read_image_folder
from vitrail.data.sources.panes.dataset import PanesDataset
from vitrail.errors import VitrailError

PREPROCESS = Preprocess((16, 12))
GREY_PREPROCESS = Preprocess((28, 28), mean=(0.5,), std=(0.5,))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return read_image_folder(write_class_folders(tmp_path_factory.mktemp("data"), {"a": 9, "b": 8, "c": 6}))[0][""]


def small_arrays(count: int = 100) -> ArrayDataset:
    whole = load_fashion("test")
    return ArrayDataset(whole.images[:count], whole.labels[:count], whole.class_names)


def batches_equal(one: Batch, two: Batch) -> bool:
    pairs = [(getattr(one, name), getattr(two, name)) for name in ("images", "targets", "indices", "mixed_targets", "lam")]
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, workers, marks=() if workers == 3 or name == "textbook" else pytest.mark.thorough)
        for name in POLICIES
        for workers in (0, 1, 3)
    ],
)
def test_a_resumed_loader_gives_the_same_batches_with_any_number_of_threads(name: str, workers: int, files: Dataset) -> None:
    whole = list(build_train_loader(files, PREPROCESS, 5, get_policy(name), seed=3).batches(0, 9, workers=0))
    resumed = build_train_loader(files, PREPROCESS, 5, get_policy(name), seed=3).batches(4, 9, workers=workers)
    assert all(batches_equal(one, two) for one, two in zip(whole[4:], resumed, strict=True))


def test_another_seed_or_epoch_gives_another_order_and_augmentation(files: Dataset) -> None:
    one, two = (build_train_loader(files, PREPROCESS, 23, get_policy("none"), seed=seed) for seed in (0, 1))
    assert not torch.equal(one.batch(0).indices, two.batch(0).indices)
    assert not torch.equal(one.batch(0).indices, one.batch(1).indices)
    first, second = one.batch(0), one.batch(1)
    once, again = (batch.images[batch.indices.tolist().index(7)] for batch in (first, second))
    assert not torch.equal(once, again)


def test_training_loses_no_image_and_has_no_short_batch(files: Dataset) -> None:
    loader = build_train_loader(files, PREPROCESS, 5, get_policy("eval"))
    indices = torch.cat([batch.indices for batch in loader.batches(0, 23, workers=0)])
    assert len(indices) == 5 * 23
    for epoch in range(5):
        assert sorted(indices[23 * epoch : 23 * (epoch + 1)].tolist()) == list(range(23))


def test_evaluation_reads_every_image_once_and_the_last_batch_may_be_short(files: Dataset) -> None:
    batches = list(build_eval_loader(files, PREPROCESS, 5).batches(workers=2))
    assert [len(batch.targets) for batch in batches] == [5, 5, 5, 5, 3]
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(23))
    assert torch.cat([batch.targets for batch in batches]).tolist() == files.labels.tolist()


@pytest.mark.parametrize(
    "how",
    [
        PREPROCESS,
        vit_preprocess((16, 16)),
        Preprocess((24, 20)),
        Preprocess((9, 31), fit="stretch", mean=(0.3,), std=(0.2,)),
        Preprocess((9, 31), fit="pad"),
    ],
)
def test_evaluation_equals_preprocessing_each_image(how: Preprocess, files: Dataset, tmp_path: Path) -> None:
    write_pack(tmp_path / "x.pack", {"train": files})
    for dataset in (files, read_pack(tmp_path / "x.pack")[0]["train"]):
        images = torch.cat([batch.images for batch in build_eval_loader(dataset, how, 5).batches(workers=0)])
        expected = torch.stack([preprocess_image(decode(bytes(files.read(i))), how) for i in range(23)])
        assert torch.equal(images, expected)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.thorough), 6])
@pytest.mark.parametrize("name", ["none", pytest.param("medium2", marks=pytest.mark.thorough), "textbook"])
def test_ranks_together_read_the_global_batch(ranks: int, name: str, files: Dataset) -> None:
    def loader(rank: int, ranks: int) -> Loader:
        return build_train_loader(
            files, PREPROCESS, 12, get_policy(name, mix_per_sample=name == "textbook"), seed=1, rank=rank, world_size=ranks
        )

    for step in range(4):
        parts = [loader(rank, ranks).batch(step) for rank in range(ranks)]
        whole = loader(0, 1).batch(step)
        assert torch.equal(torch.cat([part.indices for part in parts]), whole.indices)
        assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
        if whole.mixed_targets is not None and whole.lam is not None:
            assert torch.equal(
                torch.cat([part.mixed_targets for part in parts if part.mixed_targets is not None]), whole.mixed_targets
            )
            assert torch.equal(torch.cat([part.lam for part in parts if part.lam is not None]), whole.lam)


def test_ranks_evaluate_every_image_exactly_once(files: Dataset) -> None:
    parts = [list(build_eval_loader(files, PREPROCESS, 10, rank=rank, world_size=4).batches(workers=0)) for rank in range(4)]
    assert {len(batches) for batches in parts} == {3}  # equally many steps, for collective operations
    indices = torch.cat([batch.indices for batches in parts for batch in batches])
    assert sorted(indices.tolist()) == list(range(23))
    with pytest.raises(VitrailError, match="rank must be from 0 to 3 of 4, got 4"):
        build_eval_loader(files, PREPROCESS, 10, rank=4, world_size=4)


def test_mixed_images_are_a_blend_of_two_and_so_are_their_labels(files: Dataset) -> None:
    plain = build_train_loader(files, PREPROCESS, 10, get_policy("none"), seed=2).batch(3)
    mixed = build_train_loader(files, PREPROCESS, 10, get_policy("none", mixup=0.8), seed=2).batch(3)
    assert mixed.lam is not None
    assert mixed.mixed_targets is not None
    lam = mixed.lam[:, None, None, None]
    assert_close(mixed.images, plain.images * lam + plain.images.roll(1, 0) * (1 - lam), rtol=0, atol=1e-6)
    assert torch.equal(mixed.mixed_targets, plain.targets.roll(1))
    assert_close(soft_targets(mixed.targets, mixed.mixed_targets, mixed.lam, 3).sum(1), torch.ones(10))


@pytest.mark.parametrize("crop_pct", [1.0, 0.8])
@pytest.mark.parametrize("crop", ["random-resized", "pad", "none"])
def test_a_batch_of_small_images_equals_each_one_alone(crop: str, crop_pct: float) -> None:
    """The path for small arrays and the general path draw the same and agree up to rounding of a byte."""
    how, grey = get_policy("none", crop=crop), Preprocess((28, 28), crop_pct=crop_pct, mean=(0.5,), std=(0.5,))
    together = build_train_loader(small_arrays(), grey, 64, how, seed=5).batch(1)
    alone = build_train_loader(GenericDataset(small_arrays()), grey, 64, how, seed=5).batch(1)
    assert torch.equal(together.indices, alone.indices)
    assert_close(together.images, alone.images, rtol=0, atol=1.01 / 127.5 if crop == "random-resized" else 0)


class GenericDataset(Dataset):
    """An array dataset of another type, so that it takes the general path."""

    labels: np.ndarray
    class_names: tuple[str, ...]

    def __init__(self, arrays: ArrayDataset) -> None:
        self.arrays, self.labels, self.class_names = arrays, arrays.labels, arrays.class_names

    def __len__(self) -> int:
        return len(self.arrays)

    def describe(self, index: int) -> str:
        return self.arrays.describe(index)

    def read(self, index: int) -> np.ndarray:
        return self.arrays.read(index)


def test_a_subset_of_an_array_is_those_rows() -> None:
    indices = np.array([7, 3, 50, 3])
    part = Subset(small_arrays(), indices)
    batch = build_eval_loader(part, GREY_PREPROCESS, 10).batch(0)
    whole = build_eval_loader(small_arrays(), GREY_PREPROCESS, 100).batch(0)
    assert torch.equal(batch.images, whole.images[indices])
    assert batch.targets.tolist() == small_arrays().labels[indices].tolist()


def test_colour_and_grey_are_converted_to_the_models_channels() -> None:
    colour = Preprocess((28, 28))
    for loader in (
        build_train_loader(small_arrays(), colour, 8, get_policy("light2")),
        build_eval_loader(small_arrays(), colour, 8),
        build_train_loader(small_arrays(), colour, 8, get_policy("pad")),
    ):
        images = loader.batch(0).images
        assert images.shape == (8, 3, 28, 28)
    grey = Preprocess((20, 20), mean=(0.5,), std=(0.5,))
    scenes = PanesDataset(0, 30, (32, 32))
    for loader in (build_train_loader(scenes, grey, 8, get_policy("light2")), build_eval_loader(scenes, grey, 8)):
        assert loader.batch(0).images.shape == (8, 1, 20, 20)


def test_a_large_jpeg_is_cropped_as_at_full_size(tmp_path: Path) -> None:
    """Decoded at an eighth, half or full size, the crop is the same part of the image."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(image_bytes(4, (1600, 1200)))
    dataset = read_image_folder(tmp_path)[0][""]
    how = get_policy("none", crop_scale=(0.3, 1.0))
    for step in range(5):
        small, large = (build_train_loader(dataset, Preprocess((side, side)), 1, how).batch(step).images for side in (40, 320))
        shrunk = torch.nn.functional.interpolate(large, (40, 40), mode="bilinear", antialias=True)
        assert (small - shrunk).abs().mean() < 0.02


def make_unreadable(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).write_bytes(b"<html>")


def test_images_that_become_unreadable_are_skipped_named_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = read_image_folder(write_class_folders(tmp_path, {"a": 20, "b": 20}))[0][""]
    whole = build_train_loader(dataset, PREPROCESS, 40, get_policy("none"), seed=1).batch(0)
    make_unreadable(tmp_path, ["a/3.jpg"])
    (tmp_path / "b" / "5.jpg").unlink()
    loader = build_train_loader(dataset, PREPROCESS, 40, get_policy("none"), seed=1)
    with caplog.at_level(logging.WARNING):
        batch = loader.batch(0)
        loader.batch(1)
    assert len(batch.targets) == len(batch.images) == 38
    assert len(loader.read_errors) == 2
    assert sorted(Path(record.getMessage().split(": ")[1]).name for record in caplog.records) == ["3.jpg", "5.jpg"]
    readable = torch.isin(whole.indices, batch.indices)
    assert torch.equal(batch.images, whole.images[readable])  # nothing else changed
    assert torch.equal(batch.targets, whole.targets[readable])


def test_an_image_whose_mix_partner_is_unreadable_is_not_mixed(tmp_path: Path) -> None:
    dataset = read_image_folder(write_class_folders(tmp_path, {"a": 20, "b": 20}))[0][""]
    plain, mixed = get_policy("none"), get_policy("none", mixup=1.0)
    order = build_train_loader(dataset, PREPROCESS, 40, plain, seed=1).batch(0).indices.tolist()
    spoiled, after = order[10], order[11]
    make_unreadable(tmp_path, [str(Path(dataset.describe(spoiled)).relative_to(tmp_path))])
    batch = build_train_loader(dataset, PREPROCESS, 40, mixed, seed=1).batch(0)
    lone = build_train_loader(dataset, PREPROCESS, 40, plain, seed=1).batch(0)
    assert batch.lam is not None
    row = batch.indices.tolist().index(after)
    assert batch.lam[row] == 1
    assert torch.equal(batch.images[row], lone.images[row])
    assert (batch.lam < 1).sum() == 38


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_bad_images_stop_it_with_a_sentence(workers: int, tmp_path: Path) -> None:
    dataset = read_image_folder(write_class_folders(tmp_path, {"a": 20, "b": 20}))[0][""]
    make_unreadable(tmp_path, [f"a/{number}.jpg" for number in range(5)])
    loader = build_train_loader(dataset, PREPROCESS, 8, get_policy("none"))
    with pytest.raises(
        VitrailError, match=r"of 40 images cannot be used, more than the tolerated fraction of 0.05, the last one .*jpg"
    ):
        list(loader.batches(0, 20, workers=workers))


def test_training_without_augmentation_equals_evaluation(files: Dataset) -> None:
    for dataset, how in (
        (files, vit_preprocess((16, 16))),
        (small_arrays(), vit_preprocess((28, 28), 1)),
        (small_arrays(), GREY_PREPROCESS),
    ):
        batch = build_train_loader(dataset, how, 20, get_policy("eval")).batch(0)
        whole = torch.cat([part.images for part in build_eval_loader(dataset, how, 50).batches(workers=0)])
        assert torch.equal(batch.images, whole[batch.indices])


def test_an_error_in_a_thread_leaves_torchs_threads_alone(files: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    loader = build_train_loader(files, PREPROCESS, 5, get_policy("none"))
    monkeypatch.setattr(loader, "batch", None)
    try:
        with pytest.raises(TypeError):
            list(loader.batches(0, 3, workers=2))
        counts: list[int] = []
        late = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        late.start()
        late.join()
        assert counts == [2]
    finally:
        torch.set_num_threads(before)


def test_threads_end_with_the_iteration_and_leave_torchs_threads_alone(files: Dataset) -> None:
    before, started = torch.get_num_threads(), threading.active_count()
    batches = build_train_loader(files, PREPROCESS, 5, get_policy("none")).batches(workers=3)
    next(batches)
    assert threading.active_count() > started
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == started
    assert torch.get_num_threads() == before
    counts: list[int] = []
    late = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    late.start()
    late.join()
    assert counts == [before]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda dataset: build_train_loader(dataset, PREPROCESS, 0, get_policy("none")),
            "batch_size must be at least 1, got 0; try batch_size=64",
        ),
        (lambda dataset: build_eval_loader(Subset(dataset, np.zeros(0, np.int64)), PREPROCESS, 4), "the dataset has no images"),
        (
            lambda dataset: build_train_loader(dataset, PREPROCESS, 4, get_policy("none")).batches(workers=-1),
            "workers must not be below 0",
        ),
        (
            lambda dataset: build_train_loader(dataset, PREPROCESS, 4, get_policy("none"), world_size=3),
            "batch_size must be a multiple of the world size 3.*=6",
        ),
        (
            lambda dataset: build_train_loader(dataset, PREPROCESS, 4, get_policy("none")).batch(-1),
            "step must be from 0 to .*, got -1",
        ),
        (lambda dataset: build_eval_loader(dataset, PREPROCESS, 4).batch(6), "step must be from 0 to 5, got 6"),
    ],
)
def test_invalid_arguments_are_refused(make: object, sentence: str, files: Dataset) -> None:
    with pytest.raises(VitrailError, match=sentence):
        make(files)  # type: ignore[operator]


def test_a_far_step_costs_as_little_as_the_first() -> None:
    order = ShuffledSampler(1000, 64, 0)
    epochs, indices = order.batch_indices(10**9)
    assert epochs[0] == 64 * 10**9 // 1000
    assert indices.max() < 1000


MEMORY_SCRIPT = """
import sys
from pathlib import Path
from tests.peak_memory import peak_bytes
from vitrail.augment.policy import get_policy
from vitrail.data.loader import build_train_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.image_folder import read_image_folder
loader = build_train_loader(read_image_folder(Path(sys.argv[1]))[0][""], Preprocess((64, 64)), 50, get_policy("light2"))
peaks = []
for step, batch in enumerate(loader.batches(0, 64, workers=2)):
    if step % 16 == 15:
        peaks.append(peak_bytes())
print(*peaks)
"""


@pytest.mark.thorough
def test_memory_stays_flat_over_an_epoch(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 200, "b": 200})
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    first, *_, last = map(int, done.stdout.split())
    assert last < first + 20 * 2**20, done.stdout  # a batch is 2.4 MB, an epoch eight of them, eight epochs in all


def rows(images: Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


def test_no_two_epochs_augment_an_image_the_same_way(files: Dataset) -> None:
    images = [
        row
        for batch in build_train_loader(files, PREPROCESS, 23, get_policy("none")).batches(0, 6, workers=0)
        for row in rows(batch.images)
    ]
    assert len(set(images)) == len(images)
