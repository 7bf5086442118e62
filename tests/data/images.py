"""Folders of small images for tests, all different by default."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def make_image(number: int, size: tuple[int, int] = (24, 20), mode: str = "RGB") -> Image.Image:
    """Return a smooth image, different for each number, ``size`` high and wide."""
    coarse = np.random.default_rng(number).integers(0, 256, (4, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC).convert(mode)


def image_bytes(number: int, size: tuple[int, int] = (24, 20), format: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    make_image(number, size).save(stream, format)
    return stream.getvalue()


def write_image(path: Path, number: int, size: tuple[int, int] = (24, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image_bytes(number, size, "PNG" if path.suffix.lower() == ".png" else "JPEG"))
    return path


def write_label_table(root: Path, label_sets: list[str], split: str = "test") -> Path:
    """Write ``root/labels.csv`` and its images, with their labels joined by ``;``."""
    rows = ["file,labels,split"]
    for number, labels in enumerate(label_sets):
        write_image(root / f"{number}.png", number)
        rows.append(f"{number}.png,{labels},{split}")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return root / "labels.csv"


def write_class_folders(root: Path, counts: dict[str, int], first: int = 0) -> Path:
    """Write ``root/NAME/0.jpg`` ..., a given number of images per class."""
    number = first
    for name, count in counts.items():
        for index in range(count):
            write_image(root / name / f"{index}.jpg", number)
            number += 1
    return root
