"""An image of another aspect ratio becomes the same input everywhere: in evaluation, prediction, exported files and serving."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import vitrail
from tests.data.images import make_image
from tests.data.letterbox import letterbox_by_pillow
from tests.exporters.small import exportable_vit
from tests.serve.test_app import run_app
from vitrail.data.batch_transforms import EvalTransform, PixelTransform
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import crop_window, resize_and_crop
from vitrail.errors import VitrailError
from vitrail.inference.inputs import as_images
from vitrail.inference.predict import predict
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.vit import ViT
from vitrail.report.fit_sheet import FITS, measure_fits
from vitrail.tasks.classification import ClassPrediction

SIZES = [(40, 110), (120, 37), (24, 30), (9, 5)]  # wide, tall, the model's own aspect ratio, smaller than the input


def padding_vit() -> ViT:
    model = exportable_vit()
    model.preprocess = Preprocess((12, 15), fit="pad", mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4))
    return model


def write_images(folder: Path) -> list[Path]:
    files = [folder / f"{number}.png" for number in range(len(SIZES))]
    for number, (file, size) in enumerate(zip(files, SIZES, strict=True)):
        make_image(number, size).save(file)
    return files


def expected_pixels(preprocess: Preprocess) -> np.ndarray:
    images = [letterbox_by_pillow(make_image(number, size), preprocess) for number, size in enumerate(SIZES)]
    return np.stack([np.asarray(image) for image in images])


def top(predictions: list[ClassPrediction]) -> list[dict[str, float]]:
    return [{one.label: one.probability for one in prediction.top} for prediction in predictions]


def test_a_padded_image_is_the_same_input_in_every_loop_and_in_python(tmp_path: Path) -> None:
    model, files = padding_vit(), write_images(tmp_path)
    assert model.preprocess is not None
    expected, rows = expected_pixels(model.preprocess), np.arange(len(SIZES))
    pixels = PixelTransform(model.preprocess)(as_images(files), rows, rows).images
    assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), expected)
    normalised = EvalTransform(model.preprocess)(as_images(files), rows, rows).images
    mean, std = (np.array(values) for values in (model.preprocess.mean, model.preprocess.std))
    assert_close(normalised.permute(0, 2, 3, 1).double(), torch.from_numpy((expected / 255 - mean) / std), rtol=0, atol=1e-5)
    assert torch.equal(vitrail.preprocess(model, files), normalised)


def test_predictions_of_padded_images_agree_in_python_exports_and_the_server(tmp_path: Path) -> None:
    model, files = padding_vit(), write_images(tmp_path)
    assert model.preprocess is not None
    images = torch.from_numpy((expected_pixels(model.preprocess) / 255 - model.preprocess.mean) / model.preprocess.std)
    with torch.inference_mode():
        probabilities = model(images.permute(0, 3, 1, 2).float()).softmax(1)
    assert model.class_names is not None
    expected = [dict(zip(model.class_names, row, strict=True)) for row in probabilities.tolist()]
    pytest.importorskip("onnxruntime")
    vitrail.export(model, tmp_path / "model.onnx")
    for source in (model, vitrail.save(model, tmp_path / "saved"), tmp_path / "model.onnx"):
        for row, probability in zip(top(predict(source, files)), expected, strict=True):
            assert row == pytest.approx(probability, abs=1e-5)
    with run_app(TorchPredictor(model, "small")) as client:
        for file, probability in zip(files, expected, strict=True):
            answer = client.post("/predict?top=5", content=file.read_bytes(), headers={"Content-Type": "image/png"}).json()
            entries = {entry["label"]: entry["probability"] for entry in answer["predictions"][0]["top"]}
            assert entries == pytest.approx(probability, abs=1e-5)


def test_the_fit_is_stored_with_the_model_and_in_exported_files(tmp_path: Path) -> None:
    model = padding_vit()
    assert vitrail.load(vitrail.save(model, tmp_path / "saved")).preprocess == model.preprocess
    vitrail.export(model, tmp_path / "model.pt2", to="program")
    assert vitrail.load_predictor(tmp_path / "model.pt2").preprocess == model.preprocess


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1), (3, 2)])
def test_padding_keeps_the_whole_of_an_extreme_image(size: tuple[int, int]) -> None:
    preprocess = Preprocess((12, 15), fit="pad", mean=(0.25,), std=(0.5,))
    image = Image.new("L", (size[1], size[0]), 255)
    pixels = resize_and_crop(image, preprocess)[..., 0]
    height, width = max(round(min(12, 15 * size[0] / size[1])), 1), max(round(min(15, 12 * size[1] / size[0])), 1)
    assert (pixels == 255).sum() == height * width
    assert (pixels == round(255 * 0.25)).sum() == 12 * 15 - height * width


@pytest.mark.parametrize("size", [(50, 90), (90, 50), (7, 40), (12, 15)])
def test_the_window_of_a_padded_image_says_where_each_pixel_is_from(size: tuple[int, int]) -> None:
    """An image whose red is its column and whose green is its row shows where its pixels come from."""
    preprocess = Preprocess((12, 18), fit="pad", interpolation="bilinear", mean=(1.0, 1.0, 1.0))
    rows, columns = np.mgrid[: size[0], : size[1]].astype(np.uint8)
    resized, (left, top_, right, bottom) = crop_window((size[1], size[0]), preprocess)
    pixels = resize_and_crop(Image.fromarray(np.stack([columns, rows, rows], axis=-1)), preprocess).astype(float)
    across, down = size[1] / resized[0], size[0] / resized[1]
    assert (right - left, bottom - top_) == pytest.approx((18 * across, 12 * down))
    x, y = np.meshgrid(left + (np.arange(18) + 0.5) * across - 0.5, top_ + (np.arange(12) + 0.5) * down - 0.5)
    in_image = (x > -0.5) & (x < size[1] - 0.5) & (y > -0.5) & (y < size[0] - 0.5)
    assert in_image.sum() == resized[0] * resized[1]
    assert (pixels[~in_image] == 255).all()
    inner = (x > across) & (x < size[1] - across) & (y > down) & (y < size[0] - down)  # at the border a filter lacks pixels
    assert np.abs(pixels[..., 0] - x)[inner].max() <= 1.01
    assert np.abs(pixels[..., 1] - y)[inner].max() <= 1.01


def test_a_fit_without_a_crop_keeps_the_whole_image() -> None:
    cropping = Preprocess((12, 15), crop_pct=0.9, trim=(2, 0))
    assert cropping.with_fit("crop") == cropping
    for fit in FITS[1:]:
        assert (cropping.with_fit(fit).crop_pct, cropping.with_fit(fit).trim) == (1.0, (0, 0))
    wrongs: list[dict[str, Any]] = [{"crop_pct": 0.9}, {"trim": (2, 0)}]
    for wrong in wrongs:
        with pytest.raises(
            VitrailError, match=r"crop_pct must be 1 and trim 0 with fit=pad, which crops nothing.*try crop_pct=1"
        ):
            Preprocess((12, 15), fit="pad", **wrong)


@pytest.mark.parametrize("image_size", [(12, 15), (8, 8)])
def test_what_a_fit_costs_is_what_its_pixels_show(image_size: tuple[int, int]) -> None:
    """Of a white image on black padding the black pixels are the padding; the rest follows from the aspect ratios."""
    sizes = np.array([(40, 110), (40, 110), (120, 37)])
    preprocess = Preprocess(image_size, mean=(0.0,), std=(1.0,))
    costs = measure_fits(sizes, preprocess)
    padding = []
    for height, width in sizes.tolist():
        pixels = resize_and_crop(Image.new("L", (width, height), 255), preprocess.with_fit("pad"))
        padding.append((pixels == 0).mean())
    assert costs["pad"].padding == pytest.approx(np.mean(padding))
    assert costs["pad"].lost == costs["stretch"].lost == costs["crop"].padding == costs["stretch"].padding == 0
    target = image_size[1] / image_size[0]
    ratios = [max(width / height / target, height / width * target) for height, width in sizes.tolist()]
    assert costs["stretch"].distortion == pytest.approx(np.mean(ratios))
    assert costs["crop"].lost == pytest.approx(np.mean([1 - 1 / ratio for ratio in ratios]), abs=0.02)  # whole pixels
