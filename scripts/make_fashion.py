"""Builds the embedded subset of Fashion-MNIST from Debian's package: ``apt install dataset-fashion-mnist``, then run this.

The first 1,000 images of each class of the training set and the first 200 of each of the test set, in their order, as one
PNG sheet each; the labels are in the PNG's text. Prints the checksums for ``builtin.py``.
"""

import gzip
import hashlib
import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitrail.data.sources.known_datasets import parse_idx as parsed

SOURCE = Path("/usr/share/datasets/fashion-mnist")
TARGET = Path(__file__).parents[1] / "src" / "vitrail" / "data" / "sources" / "sets"


def idx(path: Path) -> np.ndarray:
    return parsed(gzip.decompress(path.read_bytes()), path)


def encode_sheet(source: Path, name: str, per_class: int) -> bytes:
    images, labels = idx(source / f"{name}-images-idx3-ubyte.gz"), idx(source / f"{name}-labels-idx1-ubyte.gz")
    indices = np.sort(np.concatenate([np.flatnonzero(labels == label)[:per_class] for label in range(10)]))
    columns = 100 if len(indices) > 5000 else 50
    tiles = images[indices].reshape(-1, columns, 28, 28).transpose(0, 2, 1, 3).reshape(-1, columns * 28)
    text = PngInfo()
    text.add_text("labels", "".join(map(str, labels[indices])))
    stream = io.BytesIO()
    Image.fromarray(tiles).save(stream, "PNG", optimize=True, pnginfo=text)
    return stream.getvalue()


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    for split, name, each in (("train", "train", 1000), ("test", "t10k", 200)):
        content = encode_sheet(source, name, each)
        (TARGET / f"fashion-{split}.png").write_bytes(content)
        print(split, len(content), hashlib.sha256(content).hexdigest())  # noqa: T201
