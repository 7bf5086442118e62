"""``vitrail bench data``: images per second on one core, against torchvision v2's usual pipelines on the same images.

From JPEG files and from a pack: random resized crop to 224, flip, normalise. From small images in memory: padded crop and flip
at their own size, and random resized crop. Without a folder of the user's, the images are ``panes`` as JPEGs of ImageNet's
usual size.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitrail.augment.policy import get_policy
from vitrail.bench.interleaved_timing import best_of_interleaved
from vitrail.data.loader import Loader, build_train_loader
from vitrail.data.pack_reader import read_pack
from vitrail.data.pack_writer import write_pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.builtin import load_fashion
from vitrail.data.sources.dataset import ArrayDataset, Progress
from vitrail.data.sources.image_folder import read_image_folder
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.errors import VitrailError
from vitrail.weights.verify import declare_torchvision_operators

IMAGE_SIZE = (375, 500)  # height and width
CROP_SCALE = (0.08, 1.0)  # torchvision's default
BATCH_SIZE, SMALL_BATCH_SIZE = 32, 256


@dataclass(frozen=True)
class DataSpeed:
    """Images per second and ratios to torchvision, None if it is not installed."""

    files_ratio: float | None
    pack_ratio: float | None
    small_ratio: float | None
    peers: dict[str, dict[str, float]]  # library: path: images per second
    ours: dict[str, float]
    num_images: int
    rounds: int


def benchmark_data(
    folder: Path | None = None, count: int = 256, rounds: int = 5, progress: Progress | None = None
) -> DataSpeed:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder_path:
            return _run_benchmark(Path(folder_path), folder, count, rounds, progress)
    finally:
        torch.set_num_threads(threads)


def _run_benchmark(workdir: Path, folder: Path | None, count: int, rounds: int, progress: Progress | None) -> DataSpeed:
    image_folder = _create_image_folder(workdir / "images", folder, count, progress)
    files = next(iter(read_image_folder(image_folder)[0].values()))
    write_pack(workdir / "pack", {"train": files}, size=256)
    packed = read_pack(workdir / "pack")[0]["train"]
    preprocess = Preprocess((224, 224), interpolation="bilinear")
    small = load_fashion("train")
    small_preprocess = Preprocess((28, 28), mean=(0.5,), std=(0.5,))
    crop = get_policy("none", crop_scale=CROP_SCALE)
    contestants: dict[str, Callable[[], int]] = {
        "files": _epoch_of_loader(build_train_loader(files, preprocess, BATCH_SIZE, crop), len(files)),
        "pack": _epoch_of_loader(build_train_loader(packed, preprocess, BATCH_SIZE, crop), len(packed)),
        "small": _epoch_of_loader(build_train_loader(small, small_preprocess, SMALL_BATCH_SIZE, get_policy("pad")), len(small)),
        "small_random_resized": _epoch_of_loader(
            build_train_loader(small, small_preprocess, SMALL_BATCH_SIZE, crop), len(small)
        ),
    }
    peers = {f"torchvision {name}": work for name, work in _torchvision_pipelines(image_folder, small).items()}
    speeds = best_of_interleaved({**contestants, **peers}, rounds, progress)
    peer_speeds = {name.removeprefix("torchvision "): speeds[name] for name in peers}

    def ratio(name: str, against: str) -> float | None:
        return round(speeds[name] / peer_speeds[against], 2) if peer_speeds else None

    return DataSpeed(
        ratio("files", "files"),
        ratio("pack", "files"),
        ratio("small", "small"),
        {"torchvision": peer_speeds} if peer_speeds else {},
        {name: speeds[name] for name in contestants},
        len(files),
        rounds,
    )


def _epoch_of_loader(loader: Loader, num_images: int) -> Callable[[], int]:
    batch_size = loader.batch(0).images.shape[0]

    def work() -> int:
        return sum(batch.images.shape[0] for batch in loader.batches(0, max(num_images // batch_size, 1), workers=0))

    return work


def _create_image_folder(target: Path, folder: Path | None, count: int, progress: Progress | None) -> Path:
    """Create a folder of ``count`` JPEG files, a subfolder per class: the user's own, linked, or drawn."""
    if folder is None:
        _draw_images(target, count, progress)
        return target
    if not folder.is_dir():
        raise VitrailError(f"{folder} is not a folder; name one with a subfolder of images per class")
    for number, path in enumerate(_select_jpegs(folder, count)):
        link = target / path.parent.name / f"{number}{path.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    return target


def _select_jpegs(folder: Path, count: int) -> Iterator[Path]:
    parts, _ = read_image_folder(folder)
    source = next(iter(parts.values()))
    paths = [Path(source.describe(index)) for index in range(len(source))]
    paths = [path for path in paths if path.suffix.lower() in (".jpg", ".jpeg")]
    if not paths:
        raise VitrailError(f"{folder} has no JPEG files to measure with; leave --data out")
    yield from paths[:: max(len(paths) // count, 1)][:count]


def _draw_images(target: Path, count: int, progress: Progress | None) -> None:
    source = build_panes("train", count, IMAGE_SIZE)
    for index in range(count):
        file = target / source.class_names[source.labels[index]] / f"{index}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.read(index)).save(file, quality=90)
        if progress:
            progress("drawing", index + 1, count)


def _torchvision_pipelines(folder: Path, small: ArrayDataset) -> dict[str, Callable[[], int]]:
    """Return its usual pipelines, as its own references write them; empty if it is not installed."""
    declare_torchvision_operators()
    try:
        from torchvision.datasets import ImageFolder  # type: ignore[import-untyped]
        from torchvision.transforms import v2  # type: ignore[import-untyped]
    except ImportError:
        return {}
    end = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    files = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *end, v2.Normalize([0.5] * 3, [0.5] * 3)])
    tensors = torch.from_numpy(small.images.copy()).permute(0, 3, 1, 2)
    float_ = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
    padded = v2.Compose([v2.RandomCrop(28, padding=4), v2.RandomHorizontalFlip(), *float_])
    cropped = v2.Compose([v2.RandomResizedCrop(28), v2.RandomHorizontalFlip(), *float_])
    num_images = 10 * SMALL_BATCH_SIZE
    return {
        "files": _epoch_of_dataloader(ImageFolder(folder, files), BATCH_SIZE),
        "small": _epoch_of_dataloader(
            _TensorDataset(tensors[:num_images], small.labels[:num_images], padded), SMALL_BATCH_SIZE
        ),
        "small_random_resized": _epoch_of_dataloader(
            _TensorDataset(tensors[:num_images], small.labels[:num_images], cropped), SMALL_BATCH_SIZE
        ),
    }


class _TensorDataset(torch.utils.data.Dataset[Any]):
    def __init__(self, images: Any, labels: Any, transform: Any) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.images[index]), int(self.labels[index])


def _epoch_of_dataloader(dataset: Any, batch: int) -> Callable[[], int]:
    loader = torch.utils.data.DataLoader(dataset, batch, shuffle=True)

    def work() -> int:
        return sum(len(labels) for _, labels in loader)

    return work
