"""Preprocessing equals torchvision's resize, crop and normalise, to the pixel."""

from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from tests.data.letterbox import letterbox_by_pillow
from tests.preprocess_image import preprocess_image
from tests.reference_libraries import reference_library
from vitrail.data.preprocess import Interpolation, Preprocess, imagenet_preprocess, official_preprocess, vit_preprocess
from vitrail.data.transforms import resize_and_crop
from vitrail.errors import VitrailError

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]


def make_image(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(61, 47), (47, 61), (32, 32), (200, 33), (20, 25)])
@pytest.mark.parametrize(
    "how",
    [
        vit_preprocess((32, 32)),
        imagenet_preprocess((32, 32)),
        official_preprocess((32, 24)),
        Preprocess((32, 32)),
        Preprocess((32, 32), 0.8, fit="stretch"),
    ],
)
def test_the_same_pixels_as_torchvision(size: tuple[int, int], how: Preprocess) -> None:
    reference_library("torchvision")
    t = import_module("torchvision.transforms")
    mode = t.InterpolationMode[how.interpolation.upper()]
    resize = [t.Resize(how.resize_to if how.fit == "stretch" else how.resize_to[0], mode), t.CenterCrop(how.image_size)]
    steps = t.Compose([*resize, t.ToTensor(), t.Normalize(how.mean, how.std)])
    assert_close(preprocess_image(make_image(*size), how), steps(make_image(*size)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(61, 47), (47, 61), (32, 32), (200, 33), (20, 25), (1, 900)])
@pytest.mark.parametrize("image_size", [(32, 32), (20, 41)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_padding_gives_the_same_pixels_as_timm_and_pillow(
    size: tuple[int, int], image_size: tuple[int, int], interpolation: Interpolation
) -> None:
    reference_library("timm")
    how = Preprocess(image_size, fit="pad", interpolation=interpolation, mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4))
    pixels = resize_and_crop(make_image(*size), how)
    if min(size) > 1:  # timm and Pillow refuse a side that rounds to 0
        transform = import_module("timm.data.transforms_factory").transforms_imagenet_eval
        options = {"crop_pct": 1.0, "crop_mode": "border", "interpolation": interpolation, "mean": how.mean, "std": how.std}
        theirs = transform(image_size, normalize=False, **options)(make_image(*size))
        assert np.array_equal(pixels, theirs.permute(1, 2, 0).numpy())
        assert np.array_equal(pixels, np.asarray(letterbox_by_pillow(make_image(*size), how)))
    padding = preprocess_image(make_image(*size), how)[:, (pixels == how.pad_colour).all(2)]
    assert (padding.abs() <= torch.tensor([[0.5 / 255 / deviation + 1e-6] for deviation in how.std])).all()


def test_a_non_square_size_is_resized_and_cropped() -> None:
    how = Preprocess((20, 40), crop_pct=0.5)
    for size in ((300, 60), (60, 300), (81, 40)):
        assert preprocess_image(make_image(*size), how).shape == (3, 20, 40)


def test_a_grey_model_gets_grey_images() -> None:
    how = Preprocess((8, 8), mean=(0.5,), std=(0.5,))
    assert preprocess_image(make_image(9, 9), how).shape == (1, 8, 8)
    assert torch.equal(preprocess_image(Image.new("L", (9, 9), 255), how), torch.ones(1, 8, 8))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"image_size": 0}, "image_size must be at least 1"),
        ({"crop_pct": 0.0}, "crop_pct must be above 0 and at most 1, got 0.0; try crop_pct=0.875"),
        ({"mean": (0.5,)}, "one value per channel, got 1 and 3"),
        ({"std": (0.0, 1.0, 1.0)}, "std must be above 0"),
        ({"interpolation": "cubic"}, "did you mean 'bicubic'"),
    ],
)
def test_invalid_values_are_rejected(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        Preprocess(**{"image_size": (8, 8), **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1), (3, 30_000)])
def test_extreme_aspect_ratios_cost_no_more_than_others(size: tuple[int, int]) -> None:
    """Only the crop is resized; it is the centre, as for any image."""
    values = np.zeros((size[1], size[0], 3), np.uint8)
    values[size[1] // 2 :, size[0] // 2 :] = 255 if min(size) == 1 else 0
    preprocessed = preprocess_image(Image.fromarray(values), Preprocess((32, 32)))
    assert preprocessed.shape == (3, 32, 32)
    if min(size) == 1:  # dark before the centre, light after it
        half = preprocessed.mean(1) if size[0] > size[1] else preprocessed.mean(2)
        assert half[0, 0] < 0 < half[0, -1]


def test_both_orders_of_crop_and_resize_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    how = Preprocess((32, 24), crop_pct=0.8)
    plain = preprocess_image(make_image(200, 47), how)
    monkeypatch.setattr("vitrail.data.transforms.MAX_RESIZED_PIXELS", 1)
    assert (preprocess_image(make_image(200, 47), how) - plain).abs().mean() < 0.12
