"""The embedded default dataset: a part of Fashion-MNIST (Xiao, Rasul and Vollgraf 2017).

10,000 training and 2,000 test images, 28 x 28 grey, ten balanced classes; MIT licence, ``sets/fashion-LICENSE.txt``.
Made by ``scripts/make_fashion.py``.
"""

import hashlib
from pathlib import Path

import numpy as np
from einops import rearrange
from PIL import Image

from vitrail.data.sources.dataset import ArrayDataset
from vitrail.errors import VitrailError

EMBEDDED_FOLDER = Path(__file__).parent / "sets"
FASHION_CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CHECKSUMS = {
    "fashion-train.png": "cee48efa92fa14638128d2d92cdccc781148a5b8cd49aa80d094f8aa6455f3e0",
    "fashion-test.png": "b0cf99aa9f4e95d1258b3d9066d43954b50657cbbcf9d89c11df049aea181a80",
}


def load_fashion(split: str) -> ArrayDataset:
    """Load a split of the embedded part of Fashion-MNIST; the same images in the same order everywhere."""
    path = EMBEDDED_FOLDER / f"fashion-{split}.png"
    if not path.is_file():
        raise VitrailError(f"fashion has the splits train and test, got {split!r}; try 'train'")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != CHECKSUMS[path.name]:
        raise VitrailError(f"{path} is damaged; reinstall Vitrail")
    with Image.open(path, formats=["PNG"]) as sheet:
        digits = sheet.text["labels"]  # type: ignore[attr-defined]
        tiles = np.asarray(sheet)
    num_rows, num_columns = tiles.shape[0] // 28, tiles.shape[1] // 28
    images = rearrange(tiles, "(high h) (wide w) -> (high wide) h w 1", high=num_rows, wide=num_columns)
    return ArrayDataset(
        images, np.frombuffer(digits.encode(), np.uint8).astype(np.int64) - ord("0"), FASHION_CLASSES, f"fashion ({split})"
    )
