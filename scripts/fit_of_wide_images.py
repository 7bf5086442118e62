"""Top-1 and top-5 of an ImageNet classifier on wide and tall images by ``fit``, and without the patches that are pure padding.

    python -m scripts.fit_of_wide_images WEIGHTS FOLDER

FOLDER has images named by their class, INDEX_name.jpg. Three sets: the images whose sides differ by a factor of at least 1.4;
all of them with rows cut off above and below until they are twice as wide as high; and the largest square of each at one end of
a canvas twice as wide, whose other half continues the square's border. Every kind of input sees the same images in one process.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from numpy import ndarray
from PIL import Image, ImageOps
from torch import Tensor

import vitrail
from vitrail.data.decode import decode
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import crop_window, normalise, resize_and_crop
from vitrail.layers.token_merging import gather_tokens
from vitrail.models.vit import ViT

MIN_RATIO = 1.4


def wide_or_tall(image: Image.Image) -> Image.Image | None:
    return image if max(image.size) >= MIN_RATIO * min(image.size) else None


def strip(image: Image.Image) -> Image.Image:
    return ImageOps.fit(image, (image.width, image.width // 2))


def at_one_end(image: Image.Image, end: int) -> Image.Image:
    square = np.asarray(ImageOps.fit(image, (min(image.size),) * 2))
    margins = [(0, len(square)), (len(square), 0)][end]
    return Image.fromarray(np.pad(square, ((0, 0), margins, (0, 0)), mode="edge"))


def sets_of_images(files: list[Path]) -> Iterator[tuple[str, list[tuple[int, Image.Image]]]]:
    images = [(int(file.name.partition("_")[0]), decode(file)) for file in files]
    yield f"sides differ by {MIN_RATIO}", [(label, image) for label, image in images if wide_or_tall(image)]
    yield "2:1 strips", [(label, strip(image)) for label, image in images]
    yield "at one end of 2:1", [(label, at_one_end(image, at % 2)) for at, (label, image) in enumerate(images)]


def padded_patches(size: tuple[int, int], preprocess: Preprocess, patch: tuple[int, int]) -> ndarray:
    """Return which patches, in raster order, have no pixel of an image of this width and height."""
    resized, (left, top, _, _) = crop_window(size, preprocess)
    height, width = preprocess.image_size
    corner = round(-left * resized[0] / size[0]), round(-top * resized[1] / size[1])
    is_image = np.zeros((height, width), bool)
    is_image[corner[1] : corner[1] + resized[1], corner[0] : corner[0] + resized[0]] = True
    return ~rearrange(is_image, "(y p) (x q) -> (y x) (p q)", p=patch[0], q=patch[1]).any(1)


def logits(model: ViT, image: Image.Image, preprocess: Preprocess, drop_padding: bool) -> tuple[Tensor, float]:
    """Return the logits and the fraction of the patches that are pure padding."""
    pixels = rearrange(torch.from_numpy(resize_and_crop(image, preprocess)), "h w c -> 1 c h w").float()
    padded = padded_patches(image.size, preprocess, model.config.patch) if preprocess.fit == "pad" else np.zeros(1, bool)
    images = normalise(pixels, preprocess)
    if not drop_padding:
        return model(images)[0], float(padded.mean())
    kept = torch.from_numpy(np.flatnonzero(~padded))[None]
    x = gather_tokens(model.embed_patches(images), kept)  # so that no token attends to padding
    return model.head(model.encode_and_pool(x, model.grid(images), kept))[0], float(padded.mean())


@torch.inference_mode()
def main(weights: str, folder: str) -> None:
    model = vitrail.load(weights).eval()
    assert isinstance(model, ViT)
    assert model.preprocess is not None
    own = model.preprocess
    inputs: dict[str, tuple[Preprocess, bool]] = {
        f"crop {own.crop_pct:g}": (own, False),
        "crop 1": (replace(own, crop_pct=1.0), False),
        "pad": (own.with_fit("pad"), False),
        "pad, padding dropped": (own.with_fit("pad"), True),
        "stretch": (own.with_fit("stretch"), False),
    }
    for name, images in sets_of_images(sorted(Path(folder).glob("*.jpg"))):
        sys.stdout.write(f"\n{name}: {len(images)} images\n{'input':<22} top-1   top-5   pure padding\n")
        labels = torch.tensor([label for label, _ in images])
        for kind, (preprocess, drops) in inputs.items():
            rows = [logits(model, image, preprocess, drops) for _, image in images]
            top = torch.stack([row for row, _ in rows]).topk(5).indices == labels[:, None]
            top1, top5 = top[:, 0].float().mean().item(), top.any(1).float().mean().item()
            sys.stdout.write(f"{kind:<22} {top1:6.1%}  {top5:6.1%}  {np.mean([part for _, part in rows]):6.1%}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
