"""Folders of small pictures for tests, no two alike unless asked for."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(number: int, size: tuple[int, int] = (24, 20), mode: str = "RGB") -> Image.Image:
    """A smooth picture of this number's own, ``size`` high and wide."""
    coarse = np.random.default_rng(number).integers(0, 256, (4, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC).convert(mode)


def encoded(number: int, size: tuple[int, int] = (24, 20), format: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    picture(number, size).save(stream, format)
    return stream.getvalue()


def put(path: Path, number: int, size: tuple[int, int] = (24, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(number, size, "PNG" if path.suffix.lower() == ".png" else "JPEG"))
    return path


def classes(root: Path, counts: dict[str, int], first: int = 0) -> Path:
    """``root/NAME/0.jpg`` ..., so many of each."""
    number = first
    for name, count in counts.items():
        for place in range(count):
            put(root / name / f"{place}.jpg", number)
            number += 1
    return root
