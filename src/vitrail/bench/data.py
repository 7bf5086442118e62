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

from vitrail.augment.policy import policy
from vitrail.bench.turns import in_turns
from vitrail.data.loader import Loader, training
from vitrail.data.pack import read_pack
from vitrail.data.packing import write_pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.builtin import fashion
from vitrail.data.sources.folder import read_folder
from vitrail.data.sources.panes import panes
from vitrail.data.sources.source import Arrays, Progress
from vitrail.errors import VitrailError
from vitrail.weights.verify import declare_operators

SIZE = (375, 500)  # height and width
AREA = (0.08, 1.0)  # torchvision's default
BATCH, SMALL_BATCH = 32, 256


@dataclass(frozen=True)
class DataSpeed:
    """Images per second and ratios to torchvision, None if it is not installed."""

    files_ratio: float | None
    pack_ratio: float | None
    small_ratio: float | None
    peers: dict[str, dict[str, float]]  # library: path: images per second
    ours: dict[str, float]
    pictures: int
    rounds: int


def data_speed(folder: Path | None = None, count: int = 256, rounds: int = 5, progress: Progress | None = None) -> DataSpeed:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as room:
            return _measured(Path(room), folder, count, rounds, progress)
    finally:
        torch.set_num_threads(threads)


def _measured(room: Path, folder: Path | None, count: int, rounds: int, progress: Progress | None) -> DataSpeed:
    whole = _copied(room / "pictures", folder, count, progress)
    files = next(iter(read_folder(whole)[0].values()))
    write_pack(room / "pack", {"train": files}, size=256)
    packed = read_pack(room / "pack")[0]["train"]
    usual = Preprocess((224, 224), interpolation="bilinear")
    small = fashion("train")
    own = Preprocess((28, 28), mean=(0.5,), std=(0.5,))
    crop = policy("none", area=AREA)
    rivals: dict[str, Callable[[], int]] = {
        "files": _epoch(training(files, usual, BATCH, crop), len(files)),
        "pack": _epoch(training(packed, usual, BATCH, crop), len(packed)),
        "small": _epoch(training(small, own, SMALL_BATCH, policy("pad")), len(small)),
        "small_random_resized": _epoch(training(small, own, SMALL_BATCH, crop), len(small)),
    }
    peers = {f"torchvision {name}": work for name, work in _torchvision(whole, small).items()}
    speeds = in_turns({**rivals, **peers}, rounds, progress)
    theirs = {name.removeprefix("torchvision "): speeds[name] for name in peers}

    def ratio(name: str, against: str) -> float | None:
        return round(speeds[name] / theirs[against], 2) if theirs else None

    return DataSpeed(
        ratio("files", "files"),
        ratio("pack", "files"),
        ratio("small", "small"),
        {"torchvision": theirs} if theirs else {},
        {name: speeds[name] for name in rivals},
        len(files),
        rounds,
    )


def _epoch(loader: Loader, pictures: int) -> Callable[[], int]:
    batch = loader.batch(0).labels.shape[0]

    def work() -> int:
        return sum(made.labels.shape[0] for made in loader.batches(0, max(pictures // batch, 1), workers=0))

    return work


def _copied(room: Path, folder: Path | None, count: int, progress: Progress | None) -> Path:
    """Create a folder of ``count`` JPEG files, a subfolder per class: the user's own, linked, or drawn."""
    if folder is None:
        _draw(room, count, progress)
        return room
    if not folder.is_dir():
        raise VitrailError(f"{folder} is not a folder; name one with a subfolder of images per class")
    for number, path in enumerate(_jpegs(folder, count)):
        place = room / path.parent.name / f"{number}{path.suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())
    return room


def _jpegs(folder: Path, count: int) -> Iterator[Path]:
    parts, _ = read_folder(folder)
    source = next(iter(parts.values()))
    found = [Path(source.where(index)) for index in range(len(source))]
    found = [path for path in found if path.suffix.lower() in (".jpg", ".jpeg")]
    if not found:
        raise VitrailError(f"{folder} has no JPEG files to measure with; leave --data out")
    yield from found[:: max(len(found) // count, 1)][:count]


def _draw(room: Path, count: int, progress: Progress | None) -> None:
    source = panes("train", count, SIZE)
    for index in range(count):
        place = room / source.names[source.labels[index]] / f"{index}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.content(index)).save(place, quality=90)
        if progress:
            progress("drawing", index + 1, count)


def _torchvision(folder: Path, small: Arrays) -> dict[str, Callable[[], int]]:
    """Return its usual pipelines, as its own references write them; empty if it is not installed."""
    declare_operators()
    try:
        from torchvision.datasets import ImageFolder  # type: ignore[import-untyped]
        from torchvision.transforms import v2  # type: ignore[import-untyped]
    except ImportError:
        return {}
    end = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    files = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *end, v2.Normalize([0.5] * 3, [0.5] * 3)])
    tensors = torch.from_numpy(small.images.copy()).permute(0, 3, 1, 2)
    float_ = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
    moved = v2.Compose([v2.RandomCrop(28, padding=4), v2.RandomHorizontalFlip(), *float_])
    cropped = v2.Compose([v2.RandomResizedCrop(28), v2.RandomHorizontalFlip(), *float_])
    some = 10 * SMALL_BATCH
    return {
        "files": _loaded(ImageFolder(folder, files), BATCH),
        "small": _loaded(_Pairs(tensors[:some], small.labels[:some], moved), SMALL_BATCH),
        "small_random_resized": _loaded(_Pairs(tensors[:some], small.labels[:some], cropped), SMALL_BATCH),
    }


class _Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, images: Any, labels: Any, transform: Any) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.images[index]), int(self.labels[index])


def _loaded(dataset: Any, batch: int) -> Callable[[], int]:
    loader = torch.utils.data.DataLoader(dataset, batch, shuffle=True)

    def work() -> int:
        return sum(len(labels) for _, labels in loader)

    return work
