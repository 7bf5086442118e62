"""An engine that sees the colour of a picture, takes its time, and fails on black. Run as a module, a server of it."""

import json
import sys
import time
from collections.abc import Callable
from io import BytesIO

import numpy as np
from jaxtyping import Float32, UInt8
from numpy import ndarray
from PIL import Image

from vitrail.data.preprocess import Preprocess
from vitrail.serve.listen import Ready, listen
from vitrail.serve.port import bound
from vitrail.serve.settings import Serving

COLOURS = 512


class Fake:
    """512 classes: three bits of red, green and blue. ``seconds`` are those of a picture."""

    name, model, sigmoid = "fake", "colours", False
    preprocess = Preprocess((4, 6), squash=True, interpolation="nearest")
    labels = tuple(map(str, range(COLOURS)))

    def __init__(self, seconds: float = 0.0, before: Callable[[ndarray], None] = lambda pictures: None) -> None:
        self.seconds, self.before = seconds, before
        self.sizes: list[int] = []

    def logits(self, pictures: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        self.before(pictures)
        if len(self.sizes) > 1:  # the first two are to warm up
            time.sleep(self.seconds * len(pictures))
        self.sizes.append(len(pictures))
        if (pictures.reshape(len(pictures), -1).max(axis=1) == 0).any():
            raise RuntimeError("black")
        red, green, blue = (pictures[:, 0, 0].astype(np.int64) // 32).T
        logits = np.zeros((len(pictures), COLOURS), np.float32)
        logits[np.arange(len(pictures)), 64 * red + 8 * green + blue] = 20.0
        return logits


def coloured(label: int, size: tuple[int, int] = (9, 7), kind: str = "PNG") -> bytes:
    """A picture whose right answer is this label; 0 is black."""
    colour = tuple(32 * (label >> shift & 7) for shift in (6, 3, 0))
    return encoded(Image.new("RGB", size, colour), kind)


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    file = BytesIO()
    picture.save(file, kind)
    return file.getvalue()


def form(*parts: tuple[str, bytes], boundary: str = "xXx", field: str = "files") -> bytes:
    head = '--{}\r\nContent-Disposition: form-data; name="{}"; filename="{}"\r\nContent-Type: image/png\r\n\r\n'
    pieces = [head.format(boundary, field, name).encode() + content + b"\r\n" for name, content in parts]
    return b"".join(pieces) + f"--{boundary}--\r\n".encode()


def main(seconds: float, settings: dict[str, object]) -> None:
    def tell(ready: Ready) -> None:
        sys.stdout.write(json.dumps({"url": ready.url}) + "\n")
        sys.stdout.flush()

    with bound("127.0.0.1", 0) as place:
        clean = listen(lambda: Fake(seconds), Serving(**settings), place, "colours", tell)  # type: ignore[arg-type]
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main(float(sys.argv[1]), json.loads(sys.argv[2]))
