"""``vitrail.predict`` gives the probabilities of a manual forward pass, and those of the training loop's evaluation."""

import io
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.data import images as sample_images
from tests.preprocess_image import preprocess_image
from tests.small_models import small_vit
from tests.training.small_run import recipe
from vitrail.data.class_names import imagenet_names
from vitrail.data.decode import decode
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.user_dataset import as_dataset
from vitrail.errors import VitrailError
from vitrail.inference.predict import iter_predictions, predict
from vitrail.models.vit import ViT
from vitrail.tasks.classification import ClassPrediction
from vitrail.training.trainer import fit
from vitrail.weights.load import load
from vitrail.weights.save import save

CLASS_NAMES = ("ant", "bee", "cat", "dog", "elk")
REAL = Path(__file__).parents[3] / "shared" / "real"


def make_model(**changes: Any) -> ViT:
    model = small_vit(**changes)
    channels = model.config.channels
    model.preprocess = Preprocess((12, 15), crop_pct=0.8, mean=(0.4,) * channels, std=(0.3,) * channels)
    model.class_names = CLASS_NAMES
    return model


def forward_probabilities(model: ViT, image: Path | bytes) -> dict[str, float]:
    assert model.preprocess is not None
    with torch.inference_mode():
        probabilities = model(preprocess_image(decode(image), model.preprocess)[None])[0].softmax(0)
    return dict(zip(CLASS_NAMES, probabilities.tolist(), strict=True))


def probabilities(row: ClassPrediction) -> dict[str, float]:
    assert row.error is None
    return {item.label: item.probability for item in row.top}


def save_images(folder: Path, count: int) -> list[Path]:
    return [sample_images.write_image(folder / f"{number}.jpg", number, (30 + number, 24)) for number in range(count)]


def test_predictions_are_those_of_a_manual_forward_pass(tmp_path: Path) -> None:
    model, files = make_model(), save_images(tmp_path, 7)
    rows = vitrail.predict(model, files)
    assert [row.file for row in rows] == [str(file) for file in files]
    for row, file in zip(rows, files, strict=True):
        expected = forward_probabilities(model, file)
        assert probabilities(row) == pytest.approx(expected, abs=1e-6)
        assert list(probabilities(row).values()) == sorted(probabilities(row).values(), reverse=True)
        assert sum(probabilities(row).values()) == pytest.approx(1)
        assert (row.label, row.probability) == (row.top[0].label, row.top[0].probability)
        assert row.label == max(expected, key=expected.__getitem__)


def test_with_the_sigmoid_loss_each_class_has_an_independent_probability(tmp_path: Path) -> None:
    model, files = make_model(), save_images(tmp_path, 2)
    model.metadata = {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}}
    assert model.preprocess is not None
    for row, file in zip(vitrail.predict(model, files), files, strict=True):
        with torch.inference_mode():
            alone = model(preprocess_image(decode(file), model.preprocess)[None])[0].sigmoid().tolist()
        assert probabilities(row) == pytest.approx(dict(zip(CLASS_NAMES, alone, strict=True)), abs=1e-6)


def test_predictions_are_those_of_the_training_loops_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two routes to one number: the logits that a run saved of its test images, and the run's predictions for those files."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    folder = sample_images.write_class_folders(tmp_path / "data", {"ant": 23, "bee": 21, "cat": 26})
    settings = recipe(data=str(folder), model=replace(recipe().model, classes=3), steps=4, eval_every=2)
    fit(settings, tmp_path / "run")
    test = open_dataset(str(folder)).test
    with np.load(tmp_path / "run" / "predictions.npz") as arrays:
        logits, indices = torch.from_numpy(arrays["logits"]), arrays["indices"].tolist()
    rows = predict(tmp_path / "run", [test.describe(index) for index in indices], batch_size=2)
    expected = logits.softmax(1)
    assert len(rows) > 3
    for row, row_expected in zip(rows, expected.tolist(), strict=True):
        assert probabilities(row) == pytest.approx(dict(zip(("ant", "bee", "cat"), row_expected, strict=True)), abs=1e-5)


def test_a_bad_image_affects_no_other_whatever_the_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, files = make_model(), save_images(tmp_path, 8)
    alone = [predict(model, [file])[0] for file in files]
    files[2].write_bytes(b"")
    files[3].unlink()
    files[7].write_bytes(files[0].read_bytes()[:300])
    for batch in (1, 2, 3, 8, 100):
        for workers in (0, 1, 3):
            rows = predict(model, files, batch_size=batch, workers=workers)
            assert [number for number, row in enumerate(rows) if row.error is not None] == [2, 3, 7]
            for number in (0, 1, 4, 5, 6):
                assert rows[number].file == alone[number].file
                assert probabilities(rows[number]) == pytest.approx(probabilities(alone[number]), abs=1e-6)
    assert rows[2] == ClassPrediction(str(files[2]), error="cannot be decoded: it is empty")
    assert rows[3].error == "cannot be read: No such file or directory"
    assert caplog.records == []  # it is in the prediction


def encode(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def rotated_exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


PLAIN = sample_images.make_image(3, (31, 24))
INPUTS = {
    "plain": encode(PLAIN),
    "one pixel": encode(Image.new("RGB", (1, 1), "red")),
    "thin": encode(Image.new("RGB", (1, 20_000), "red")),
    "grey": encode(PLAIN.convert("L")),
    "cmyk": encode(PLAIN.convert("CMYK"), "JPEG"),
    "sixteen bits": encode(Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)),
    "floats": encode(Image.fromarray(np.linspace(0, 1, 600, dtype=np.float32).reshape(20, 30)), "TIFF"),
    "transparent": encode(Image.new("RGBA", (9, 8), (200, 30, 90, 100))),
    "turned": encode(PLAIN, "JPEG", exif=rotated_exif()),
    "animated": encode(PLAIN, "GIF", save_all=True, append_images=[PLAIN.rotate(90)]),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_kind_of_input_is_read_as_its_file_is(kind: str, tmp_path: Path) -> None:
    model, content = make_model(), INPUTS[kind]
    path = tmp_path / "image"
    path.write_bytes(content)
    expected = forward_probabilities(model, path)
    same: list[Any] = [path, str(path), content, Image.open(io.BytesIO(content)), np.asarray(decode(content))]
    rows = predict(model, same)
    assert [row.file for row in rows] == [str(path), str(path), "image 2", "image 3", "image 4"]
    for row in rows:
        assert probabilities(row) == pytest.approx(expected, abs=1e-6)


def test_arrays_of_a_stack_for_a_model_of_grey_images() -> None:
    model = make_model(channels=1)
    stack = np.random.default_rng(0).integers(0, 256, (4, 20, 19, 1), dtype=np.uint8)
    flat = [image[..., 0] for image in stack]
    grey = [np.repeat(image, 3, axis=2) for image in stack]
    first, second, third = (predict(model, form) for form in (stack, flat, grey))
    assert first == second == third
    assert probabilities(first[0]) == pytest.approx(forward_probabilities(model, encode(Image.fromarray(flat[0]))), abs=1e-6)


def test_one_image_listed_many_times_is_loaded_once_at_a_time() -> None:
    lazy = Image.open(io.BytesIO(INPUTS["turned"]))
    rows = predict(make_model(), [lazy] * 40, batch_size=1, workers=8)
    assert all(row.top == rows[0].top and row.error is None for row in rows)


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (encode(PLAIN)[:200], "cannot be decoded"),
        (b"<!doctype html>", "none of JPEG, PNG"),
        (Image.open(io.BytesIO(encode(PLAIN)[:200])), "cannot be decoded: "),
        (encode(Image.new("1", (10_000, 10_000)), optimize=True), "67,108,864"),
        (Image.new("1", (9000, 9000)), "has 9000 x 9000 pixels; 1 to 67,108,864 are allowed"),
        (Image.new("RGB", (0, 7)), "has 0 x 7 pixels"),
        (np.zeros((5, 4, 3)), "is an array of float64, 5 x 4 x 3; it must be uint8"),
        (np.zeros((3, 5, 4), np.uint8)[:, :, :2], "is an array of uint8, 3 x 5 x 2; it must be"),
        (Path(__file__).parent, "cannot be read: "),
        ("a\0b", "cannot be read: embedded null byte"),
        ("nowhere/cat.jpg", "cannot be read: No such file or directory"),
    ],
)
def test_an_unreadable_image_has_an_error_in_its_row(image: Any, sentence: str) -> None:
    before, row, after = predict(make_model(), [INPUTS["plain"], image, INPUTS["plain"]])
    assert row.error is not None
    assert sentence in row.error
    assert (row.label, row.probability, row.top) == (None, None, ())
    assert probabilities(before) == pytest.approx(probabilities(after), abs=1e-6)
    (alone,) = predict(make_model(), [image])  # a batch without a readable image
    assert alone.error == row.error


def test_nan_logits_are_an_error() -> None:
    model = make_model()
    model.get_parameter("head.bias").data[2] = float("nan")
    (row,) = predict(model, [INPUTS["plain"]])
    assert row.error == "makes the model's logits non-finite (NaN/Inf)"


def test_of_equal_classes_the_first_comes_first() -> None:
    model = make_model()
    for name in ("head.weight", "head.bias"):
        model.get_parameter(name).data.zero_()
    (row,) = predict(model, [INPUTS["plain"]], top_k=3)
    assert [item.label for item in row.top] == ["ant", "bee", "cat"]
    assert row.probability == 0.2


def test_without_class_names_classes_are_indices_and_top_k_is_capped() -> None:
    model = make_model()
    model.class_names = None
    (row,) = predict(model, [INPUTS["plain"]], top_k=99)
    assert sorted(item.label for item in row.top) == ["0", "1", "2", "3", "4"]


def test_images_are_read_when_their_turn_comes(tmp_path: Path) -> None:
    """Images far ahead are not in memory yet: they can still vanish."""
    files = save_images(tmp_path, 6)
    rows = iter_predictions(make_model(), files, batch_size=2, workers=0)
    assert next(rows).error is None
    for file in files[2:]:
        file.unlink()
    assert [row.error is None for row in rows] == [True, False, False, False, False]


def test_the_mode_of_the_model_is_restored_also_after_an_early_stop() -> None:
    model = make_model(dropout=0.5).train()
    first, second = (predict(model, [INPUTS["plain"]]) for _ in range(2))
    assert first == second  # no dropout
    assert model.training
    rows = iter_predictions(model, [INPUTS["plain"]] * 9, batch_size=2)
    next(rows)
    rows.close()
    assert model.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_model_in_half_precision_takes_the_same_images() -> None:
    model = make_model()
    (wide,) = predict(model, [INPUTS["plain"]])
    (narrow,) = predict(model.bfloat16(), [INPUTS["plain"]])
    assert probabilities(narrow) != probabilities(wide)
    assert probabilities(narrow) == pytest.approx(probabilities(wide), abs=0.05)


def test_a_run_is_its_best_weights(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    with pytest.raises(VitrailError, match=r"run is a run that has no weights yet; they are saved at its first evaluation"):
        load(run)
    model = make_model()
    save(model, run / "best")
    save(make_model(), run / "last")
    expected = predict(model, [INPUTS["plain"]])
    for name in (run, str(run), run / "best"):
        assert predict(name, [INPUTS["plain"]]) == expected


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": 3}, "images must be one image, a list of them or a dataset, got an int"),
        ({"images": iter([INPUTS["plain"], 3])}, "must be a path, bytes, a PIL image or an array, got an int at index 1"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"workers": -1}, "workers must not be below 0"),
        ({"model": small_vit()}, "has no preprocessing config; set model.preprocess"),
        ({"model": make_model(classes=0)}, "has no classifier"),
        ({"model": make_model(channels=4)}, "takes 4 bands, and its preprocessing is for 8-bit images, which have 1 or 3"),
        ({"model": "nowhere"}, "nowhere does not exist"),
    ],
)
def test_an_invalid_call_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    call: dict[str, Any] = {"model": make_model(), "images": [INPUTS["plain"]], **changes}
    with pytest.raises(VitrailError, match=sentence):
        predict(**call)


def test_one_image_and_a_dataset_are_predicted_as_a_list_is(tmp_path: Path) -> None:
    model, arrays = make_model(), [np.asarray(sample_images.make_image(seed)) for seed in range(3)]
    expected = predict(model, arrays)

    class OwnDataset(torch.utils.data.Dataset[tuple[Any, int]]):
        def __len__(self) -> int:
            return len(arrays)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return arrays[index], index

    for images in (list(zip(arrays, "abc", strict=True)), OwnDataset(), as_dataset(OwnDataset()), np.stack(arrays)):
        assert [row.top for row in predict(model, images)] == [row.top for row in expected]
    for array, row in zip(arrays, expected, strict=True):
        assert probabilities(predict(model, array)[0]) == pytest.approx(probabilities(row))


def test_no_images_no_predictions() -> None:
    assert predict(make_model(), []) == []


@pytest.mark.skipif(not REAL.is_dir(), reason="the real weights are not on this machine")
@pytest.mark.parametrize("count", [25, pytest.param(250, marks=pytest.mark.thorough)])
def test_top_1_of_real_images_is_timms(count: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    files, step = sorted((REAL / "imagenet250").glob("*.jpg")), 250 // count
    rows = predict(REAL / "vit_tiny_patch16_224.safetensors", files[::step], batch_size=25)
    numbers = {name: number for number, name in enumerate(imagenet_names())}
    if count == len(files):
        right = [int(file.name.split("_")[0]) == numbers[row.label or ""] for file, row in zip(files, rows, strict=True)]
        assert np.mean(right) == pytest.approx(0.852)
    with np.load(REAL / "imagenet250_timm_logits.npz") as golden:
        expected = torch.from_numpy(golden["logits"]).softmax(1)
    for row, row_expected in zip(rows, expected[::step], strict=True):
        assert row.label == imagenet_names()[int(row_expected.argmax())]
        assert probabilities(row) == pytest.approx(
            {item.label: row_expected[numbers[item.label]].item() for item in row.top}, abs=1e-3
        )
