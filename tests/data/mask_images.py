"""Folders of small images and masks for tests."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy import ndarray
from PIL import Image

from tests.data.images import write_image

HEIGHT, WIDTH = 24, 20


def blocks(number: int, values: Sequence[int], size: tuple[int, int] = (HEIGHT, WIDTH)) -> ndarray:
    """Return a mask of coarse blocks, different for each number, in which every value occurs."""
    coarse = np.random.default_rng(number).choice(np.array(values), (4, 5))
    coarse.flat[: len(values)] = values
    rows, columns = np.arange(size[0]) * 4 // size[0], np.arange(size[1]) * 5 // size[1]
    return coarse[rows][:, columns]


def png(mask: ndarray, palette: Sequence[int] | None = None, format: str = "PNG") -> bytes:
    """Encode a mask: h w of 8 or 16 bits, with a palette (red, green, blue, red ...), or h w 3."""
    image = Image.fromarray(mask if mask.ndim == 3 else mask.astype(np.uint16 if mask.max() > 255 else np.uint8))
    if palette is not None:
        image.putpalette(list(palette))
    stream = io.BytesIO()
    image.save(stream, format)
    return stream.getvalue()


def write_pair(
    image: Path, mask: Path, number: int, values: Sequence[int] = (0, 1, 2), palette: Sequence[int] | None = None
) -> ndarray:
    """Write an image and a mask; return the mask."""
    write_image(image, number, (HEIGHT, WIDTH))
    mask.parent.mkdir(parents=True, exist_ok=True)
    written = blocks(number, values)
    mask.write_bytes(png(written, palette))
    return written


def write_mask_folder(
    root: Path, counts: dict[str, int] | None = None, values: Sequence[int] = (0, 1, 2), first: int = 0
) -> Path:
    """Write ``root/SPLIT/images/N.jpg`` and ``root/SPLIT/masks/N.png``, by default six, three and three."""
    number = first
    for split, count in (counts or {"train": 6, "val": 3, "test": 3}).items():
        for _ in range(count):
            write_pair(root / split / f"images/{number}.jpg", root / split / f"masks/{number}.png", number, values)
            number += 1
    return root
