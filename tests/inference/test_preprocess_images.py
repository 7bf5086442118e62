"""``vitrail.preprocess``: images as in evaluation, and an error of one sentence for a bad one."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.data.images import image_bytes, make_image, write_image
from tests.preprocess_image import preprocess_image
from tests.small_models import small_vit
from vitrail.data.decode import decode
from vitrail.data.loader import build_eval_loader
from vitrail.data.preprocess import Fit, Preprocess
from vitrail.data.transforms import crop_window, resize_and_crop
from vitrail.errors import VitrailError
from vitrail.inference.inputs import ImageList
from vitrail.inference.preprocess_images import load_image
from vitrail.models.vit import ViT

PREPROCESS = Preprocess((12, 15), crop_pct=0.8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


def make_model() -> ViT:
    model = small_vit()
    model.preprocess = PREPROCESS
    return model


def test_images_are_those_of_the_evaluation_loader(tmp_path: Path) -> None:
    inputs: list[Any] = [
        write_image(tmp_path / "a.jpg", 1),
        image_bytes(2),
        make_image(3),
        np.asarray(make_image(4)),
        str(write_image(tmp_path / "b.png", 5)),
    ]
    batch = next(iter(build_eval_loader(ImageList(inputs), PREPROCESS, 5).batches(workers=0)))
    images = vitrail.preprocess(make_model(), inputs)
    assert torch.equal(images, batch.images)
    assert torch.equal(images[1], preprocess_image(decode(image_bytes(2)), PREPROCESS))


def test_images_are_in_the_precision_of_the_model() -> None:
    assert vitrail.preprocess(make_model().bfloat16(), [make_image(1)]).dtype == torch.bfloat16


def test_an_array_of_four_axes_is_a_list_of_images() -> None:
    stack = np.stack([np.asarray(make_image(number)) for number in range(3)])
    assert torch.equal(
        vitrail.preprocess(make_model(), stack), vitrail.preprocess(make_model(), [make_image(number) for number in range(3)])
    )


def test_a_bad_image_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "page.jpg").write_text("<html>")
    with pytest.raises(VitrailError, match=r"^the image .*page.jpg cannot be decoded: .*; try another one$"):
        vitrail.preprocess(make_model(), [make_image(1), tmp_path / "page.jpg"])
    with pytest.raises(VitrailError, match=r"^image 1 is an array of float64, 4 x 5; it must be uint8"):
        vitrail.preprocess(make_model(), [make_image(1), np.zeros((4, 5))])
    with pytest.raises(VitrailError, match=r"nowhere.jpg cannot be read: No such file"):
        vitrail.preprocess(make_model(), [tmp_path / "nowhere.jpg"])
    with pytest.raises(VitrailError, match="there are no images to preprocess"):
        vitrail.preprocess(make_model(), [])
    with pytest.raises(VitrailError, match=r"the image cat\.jpg cannot be read: No such file"):
        vitrail.preprocess(make_model(), "cat.jpg")
    with pytest.raises(VitrailError, match="has no preprocessing config"):
        vitrail.preprocess(small_vit(), [make_image(1)])


def test_an_image_is_loaded_upright_and_whole_or_not_at_all() -> None:
    stream, tags = io.BytesIO(), Image.Exif()
    tags[0x0112] = 6
    make_image(1, (20, 30)).save(stream, "JPEG", exif=tags)
    assert load_image(stream.getvalue()).size == (20, 30)
    with pytest.raises(VitrailError, match=r"^the image cannot be decoded: it is empty; try another one$"):
        load_image(b"")
    with pytest.raises(VitrailError, match=r"^the image is an array of int64"):
        load_image(np.zeros((3, 3), np.int64))


@pytest.mark.parametrize("fit", ["crop", "stretch"])
@pytest.mark.parametrize("size", [(150, 90), (90, 150), (64, 64), (12, 15), (7, 40)])
def test_the_crop_window_is_the_part_of_the_image_that_is_used(size: tuple[int, int], fit: Fit) -> None:
    """An image whose red is its column and whose green is its row shows where its pixels come from."""
    preprocess = Preprocess((12, 18), crop_pct=0.75, fit=fit, interpolation="bilinear")
    rows, columns = np.mgrid[: size[0], : size[1]].astype(np.uint8)
    resized, (left, top, right, bottom) = crop_window((size[1], size[0]), preprocess)
    cropped = resize_and_crop(Image.fromarray(np.stack([columns, rows, rows], axis=-1)), preprocess).astype(float)
    across, down = size[1] / resized[0], size[0] / resized[1]
    inner = cropped[4:-4, 4:-4]  # at the border a filter lacks pixels
    x = left + (np.arange(18) + 0.5) * across - 0.5
    y = top + (np.arange(12) + 0.5) * down - 0.5
    assert np.abs(inner[..., 0] - x[4:-4]).max() <= 1.01
    assert np.abs(inner[..., 1] - y[4:-4, None]).max() <= 1.01
    assert right - left == pytest.approx(18 * across)
    assert bottom - top == pytest.approx(12 * down)
    assert min(left, top, size[1] - right, size[0] - bottom) > -1e-9


def test_the_crop_window_of_an_extreme_aspect_ratio_is_exact() -> None:
    resized, (left, top, right, bottom) = crop_window((2, 60000), Preprocess((16, 16)))
    assert resized == (16, 480000)
    assert (left, right) == (0, 2)
    assert (top + bottom, bottom - top) == (60000, 2)
