"""A fake predictor that classifies an image by its colour and fails on black. Run as a module, it is a server."""

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
from vitrail.inference.predictor import Predictor
from vitrail.models.variants import variant
from vitrail.serve import server
from vitrail.serve.config import ServeConfig
from vitrail.serve.server import Started, run_server
from vitrail.web.sockets import bind_socket

COLOURS = 512


class FakePredictor(Predictor):
    """Predict one of 512 classes: three bits each of red, green and blue. ``seconds`` is the compute time per image."""

    backend = "fake"

    def __init__(self, seconds: float = 0.0, on_batch: Callable[[ndarray], None] = lambda images: None) -> None:
        preprocess = Preprocess((4, 6), fit="stretch", interpolation="nearest")
        super().__init__("colours", variant("mu/2", image=(4, 6), classes=COLOURS), preprocess, None, {})
        self.seconds, self.on_batch = seconds, on_batch
        self.batch_sizes: list[int] = []

    def hash(self) -> str:
        return "colours"

    def outputs(self, images: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        self.on_batch(images)
        if len(self.batch_sizes) > 1:  # the first two calls are warm-up
            time.sleep(self.seconds * len(images))
        self.batch_sizes.append(len(images))
        if (images.reshape(len(images), -1).max(axis=1) == 0).any():
            raise RuntimeError("black")
        red, green, blue = (images[:, 0, 0].astype(np.int64) // 32).T
        logits = np.zeros((len(images), COLOURS), np.float32)
        logits[np.arange(len(images)), 64 * red + 8 * green + blue] = 20.0
        return logits


def coloured_image(label: int, size: tuple[int, int] = (9, 7), kind: str = "PNG") -> bytes:
    """Return an encoded image of this label's colour; 0 is black."""
    colour = tuple(32 * (label >> shift & 7) for shift in (6, 3, 0))
    return encode_image(Image.new("RGB", size, colour), kind)


def encode_image(image: Image.Image, kind: str = "PNG") -> bytes:
    file = BytesIO()
    image.save(file, kind)
    return file.getvalue()


def multipart_form(*parts: tuple[str, bytes], boundary: str = "xXx", field: str = "files") -> bytes:
    head = '--{}\r\nContent-Disposition: form-data; name="{}"; filename="{}"\r\nContent-Type: image/png\r\n\r\n'
    pieces = [head.format(boundary, field, name).encode() + content + b"\r\n" for name, content in parts]
    return b"".join(pieces) + f"--{boundary}--\r\n".encode()


server.DISCARD_SECONDS = 1.0  # tests need not wait as long


def main(seconds: float, settings: dict[str, object]) -> None:
    def print_url(started: Started) -> None:
        sys.stdout.write(json.dumps({"url": started.url}) + "\n")
        sys.stdout.flush()

    with bind_socket("127.0.0.1", 0) as listener:
        all_answered = run_server(lambda: FakePredictor(seconds), ServeConfig(**settings), listener, "colours", print_url)  # type: ignore[arg-type]
    sys.exit(0 if all_answered else 1)


if __name__ == "__main__":
    main(float(sys.argv[1]), json.loads(sys.argv[2]))
