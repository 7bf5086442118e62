"""Preparing a picture is torchvision's resize, crop and normalise, to the pixel."""

from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from tests.peers import peer
from vitrail.data.prepare import prepare
from vitrail.data.preprocess import Preprocess, imagenet, official, vit
from vitrail.errors import VitrailError

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]


def picture(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(61, 47), (47, 61), (32, 32), (200, 33), (20, 25)])
@pytest.mark.parametrize(
    "how", [vit((32, 32)), imagenet((32, 32)), official((32, 24)), Preprocess((32, 32)), Preprocess((32, 32), 0.8, squash=True)]
)
def test_the_same_pixels_as_torchvision(size: tuple[int, int], how: Preprocess) -> None:
    peer("torchvision")
    t = import_module("torchvision.transforms")
    mode = t.InterpolationMode[how.interpolation.upper()]
    resize = [t.Resize(how.resized if how.squash else how.resized[0], mode), t.CenterCrop(how.image)]
    steps = t.Compose([*resize, t.ToTensor(), t.Normalize(how.mean, how.std)])
    assert_close(prepare(picture(*size), how), steps(picture(*size)), rtol=0, atol=1e-6)


def test_one_that_is_not_square_is_covered_and_cropped() -> None:
    how = Preprocess((20, 40), crop=0.5)
    for size in ((300, 60), (60, 300), (81, 40)):
        assert prepare(picture(*size), how).shape == (3, 20, 40)


def test_a_grey_model_gets_grey_pictures() -> None:
    how = Preprocess((8, 8), mean=(0.5,), std=(0.5,))
    assert prepare(picture(9, 9), how).shape == (1, 8, 8)
    assert torch.equal(prepare(Image.new("L", (9, 9), 255), how), torch.ones(1, 8, 8))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"image": 0}, "image must be at least 1"),
        ({"crop": 0.0}, "crop must be above 0 and at most 1, got 0.0; try crop=0.875"),
        ({"mean": (0.5,)}, "a value a channel, got 1 and 3"),
        ({"std": (0.0, 1.0, 1.0)}, "std must be above 0"),
        ({"interpolation": "cubic"}, "did you mean 'bicubic'"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        Preprocess(**{"image": (8, 8), **wrong})  # type: ignore[arg-type]
