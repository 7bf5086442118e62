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


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1), (3, 30_000)])
def test_odd_proportions_cost_no_more_than_others(size: tuple[int, int]) -> None:
    """Only the part that is kept is resized; it is the middle, as of any picture."""
    values = np.zeros((size[1], size[0], 3), np.uint8)
    values[size[1] // 2 :, size[0] // 2 :] = 255 if min(size) == 1 else 0
    shown = prepare(Image.fromarray(values), Preprocess((32, 32)))
    assert shown.shape == (3, 32, 32)
    if min(size) == 1:  # dark before the middle, light behind it
        half = shown.mean(1) if size[0] > size[1] else shown.mean(2)
        assert half[0, 0] < 0 < half[0, -1]


def test_both_ways_of_cutting_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    how = Preprocess((32, 24), crop=0.8)
    plain = prepare(picture(200, 47), how)
    monkeypatch.setattr("vitrail.data.prepare.LARGEST", 1)
    assert (prepare(picture(200, 47), how) - plain).abs().mean() < 0.12
