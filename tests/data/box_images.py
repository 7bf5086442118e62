"""Small images with boxes for tests: files whose objects are given, without a format."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.data.images import write_image
from vitrail.data.sources.box_faults import BoxFault
from vitrail.data.sources.dataset import ImageFileDataset
from vitrail.data.sources.objects import Objects, build_objects

NAMES = ("cat", "small dog", "bird & wing")
HEIGHT, WIDTH = 40, 60


@dataclass(frozen=True, eq=False)
class BoxedFiles(ImageFileDataset):
    """Image files with the objects that a test gives them."""

    all_objects: Sequence[Objects] = ()
    faults: tuple[BoxFault, ...] = ()
    key: bytes = b""

    @property
    def box_names(self) -> tuple[str, ...]:
        return self.class_names

    @property
    def has_box_targets(self) -> bool:
        return True

    def objects(self, index: int) -> Objects:
        return self.all_objects[index]

    def box_faults(self) -> tuple[BoxFault, ...]:
        return self.faults

    def content_key(self) -> bytes:
        return super().content_key() + self.key

    def cache_key(self) -> bytes:
        return super().cache_key() + self.key


def write_boxed(root: Path, objects: Sequence[Objects], faults: tuple[BoxFault, ...] = (), key: bytes = b"") -> BoxedFiles:
    """Write an image for each of the objects, and return them as a dataset."""
    paths = [f"{number}.jpg" for number in range(len(objects))]
    for number, path in enumerate(paths):
        write_image(root / path, number + 100 * sum(map(ord, root.name)), (HEIGHT, WIDTH))
    labels = np.full(len(objects), -1, np.int64)
    return BoxedFiles(root, paths, labels, NAMES, objects, faults, key)


def some_objects() -> list[Objects]:
    """Return objects of images: of every class, none, a crowd, fractions of pixels, and one that reaches out of its image."""
    return [
        build_objects([[10, 5, 30, 25], [0, 0, 60, 40]], [0, 2]),
        build_objects([], []),
        build_objects([[1.25, 2.5, 17.125, 33.0]], [1], areas=np.array([100.0])),
        build_objects([[20, 10, 40, 30], [5, 5, 55, 35]], [1, 0], np.array([False, True])),
        build_objects([[40, 20, 66.5, 44]], [2]),
    ]
