"""``POST /segment``: the masks of ``vitrail.predict``, however they are written, and no request that harms another."""

import io
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from starlette.testclient import TestClient

from tests.serve.fake_predictor import FakePredictor, encode_image, multipart_form
from tests.serve.test_app import FORM, PNG, noise_image, run_app
from tests.small_segmenter import CLASS_NAMES, small_segmenter
from vitrail.data.mask_codes import decode_rle
from vitrail.data.preprocess import Preprocess
from vitrail.inference.predict import predict
from vitrail.inference.predictor import TorchPredictor
from vitrail.plot.class_colours import class_colour
from vitrail.serve.batcher import SizedOutput
from vitrail.serve.errors import RequestError
from vitrail.serve.segmentation import segment_step
from vitrail.tasks.segmentation import SegmentationTask

SIZES = [(12, 15), (23, 31), (1, 50), (64, 7)]
IMAGES = [noise_image(seed, size) for seed, size in enumerate(SIZES)]


class GatedPredictor(TorchPredictor):
    """Computes once the gate is open."""

    gate = Event()

    def outputs(self, images: ndarray) -> ndarray:
        assert self.gate.wait(60)
        return super().outputs(images)


def masks_of(predictor: TorchPredictor, images: list[bytes] = IMAGES) -> list[ndarray]:
    return [each.mask for each in predict(predictor, images)]


def decoded(row: dict[str, Any]) -> ndarray:
    """Return the mask that the run lengths of a response add up to; no pixel has two classes, or none."""
    mask, times = np.full(row["size"], -1), np.zeros(row["size"], int)
    for entry in row["classes"]:
        region = decode_rle(entry["rle"])
        mask[region] = entry["value"]
        times += region
    assert (times == 1).all()
    return mask


@pytest.fixture(scope="module", params=["crop", "pad"])
def predictor(request: pytest.FixtureRequest) -> TorchPredictor:
    fit: Any = request.param
    return TorchPredictor(small_segmenter(Preprocess((12, 15), crop_pct=1.0, fit=fit)), "small")


@pytest.fixture(scope="module")
def client(predictor: TorchPredictor) -> Iterator[TestClient]:
    with run_app(predictor, max_batch=3, max_body=50_000, max_queue=20, max_pixels=100_000) as client:
        yield client


def test_run_lengths_are_those_of_the_predicted_masks_whatever_the_batch(client: TestClient, predictor: TorchPredictor) -> None:
    form = multipart_form(*((str(number), image) for number, image in enumerate(IMAGES)))
    together = client.post("/segment", content=form, headers=FORM).json()["segmentations"]
    for image, row, mask in zip(IMAGES, together, masks_of(predictor), strict=True):
        (alone,) = client.post("/segment", content=image, headers=PNG).json()["segmentations"]
        assert np.array_equal(decoded(row), mask)
        assert alone["classes"] == row["classes"]
        assert row["size"] == list(mask.shape)
        fractions = np.bincount(mask.ravel(), minlength=3) / mask.size
        assert [entry["fraction"] for entry in row["classes"]] == sorted(fractions[fractions > 0].tolist(), reverse=True)
        for entry in row["classes"]:
            assert (entry["label"], entry["colour"]) == (CLASS_NAMES[entry["value"]], class_colour(entry["value"]))
            assert entry["fraction"] == pytest.approx(fractions[entry["value"]])


def test_a_png_has_the_classes_of_the_pixels_and_their_colours(client: TestClient, predictor: TorchPredictor) -> None:
    for image, mask in zip(IMAGES, masks_of(predictor), strict=True):
        answer = client.post("/segment", content=image, headers={**PNG, "Accept": "image/png"})
        assert answer.headers["content-type"] == "image/png"
        with Image.open(io.BytesIO(answer.content)) as png:
            assert png.mode == "P"
            assert np.array_equal(np.asarray(png), mask)
            assert "#{:02x}{:02x}{:02x}".format(*png.convert("RGB").getpixel((0, 0))) == class_colour(int(mask[0, 0]))  # type: ignore[misc]
        (row,) = client.post("/segment?output=mask", content=image, headers=PNG).json()["segmentations"]
        assert b64decode(row["png"]) == answer.content
        assert not any("rle" in entry for entry in row["classes"])


def test_an_overlay_shows_the_input_of_the_model(client: TestClient) -> None:
    answer = client.post("/segment?output=overlay", content=IMAGES[1], headers={**PNG, "Accept": "image/png"})
    with Image.open(io.BytesIO(answer.content)) as png:
        assert png.mode == "RGB"
        assert png.size == (15 * 29, 12 * 29)


def test_an_image_is_segmented_upright(client: TestClient, predictor: TorchPredictor) -> None:
    image, exif = Image.open(io.BytesIO(IMAGES[1])), Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    (row,) = client.post("/segment", content=file.getvalue(), headers=PNG).json()["segmentations"]
    assert row["size"] == [31, 23]
    upright = encode_image(image.transpose(Image.Transpose.ROTATE_270))
    assert np.array_equal(decoded(row), masks_of(predictor, [upright])[0])


def test_predict_tells_how_much_of_the_image_each_class_covers(client: TestClient, predictor: TorchPredictor) -> None:
    (row,) = client.post("/predict", content=IMAGES[1], headers=PNG).json()["predictions"]
    (expected,) = predict(predictor, [IMAGES[1]])
    assert row["size"] == [23, 31]
    assert row["classes"] == pytest.approx(expected.classes)


@pytest.mark.parametrize(
    ("headers", "content", "status", "message"),
    [
        (PNG, b"", 400, "no image"),
        (FORM, multipart_form(("a", IMAGES[0]))[:-9], 400, "last boundary"),
        ({"Content-Type": "application/json"}, b"{}", 415, "application/json"),
        (PNG, bytes(50_001), 413, "50,000 bytes"),
        (PNG, b"<html>", 422, "none of JPEG"),
        (PNG, IMAGES[1][:300], 422, "cannot be decoded"),
        (PNG, encode_image(Image.new("1", (4000, 3000))), 422, "pixels"),
    ],
)  # fmt: skip
def test_an_invalid_request_gets_one_sentence_that_says_why(
    client: TestClient, headers: dict[str, str], content: bytes, status: int, message: str
) -> None:
    answer = client.post("/segment", content=content, headers={**headers, "Accept": "image/png"})
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_a_bad_image_fails_alone(client: TestClient, predictor: TorchPredictor) -> None:
    form = multipart_form(("a", IMAGES[0]), ("b", b"?"), ("c", IMAGES[1]))
    answer = client.post("/segment", content=form, headers=FORM)
    assert answer.status_code == 200
    rows = answer.json()["segmentations"]
    assert [row.get("status") for row in rows] == [None, 422, None]
    assert np.array_equal(decoded(rows[2]), masks_of(predictor)[1])


def test_parameters_are_checked(client: TestClient) -> None:
    for query, message in (
        ("output=polygons", "output must be one of rle, mask, overlay, got 'polygons'; try output=rle"),
        ("out=mask", "/segment has no parameter 'out'; did you mean 'output'?"),
    ):
        answer = client.post(f"/segment?{query}", content=IMAGES[0], headers=PNG)
        assert (answer.status_code, answer.json()) == (422, {"error": message})


def test_the_pixels_of_a_class_are_explained(client: TestClient) -> None:
    (row,) = client.post("/explain?method=gradcam", content=IMAGES[1], headers=PNG).json()["explanations"]
    assert set(row) == {"file", "explained", "method", "map"}
    assert row["explained"] in CLASS_NAMES
    assert np.shape(row["map"]) == (2, 3)
    (named,) = client.post(f"/explain?class={row['explained']}&method=gradcam", content=IMAGES[1], headers=PNG).json()[
        "explanations"
    ]
    assert named["map"] == row["map"]
    answer = client.post("/explain", content=IMAGES[1], headers={**PNG, "Accept": "image/png"})
    assert answer.headers["content-type"] == "image/png"
    shown = {
        entry["label"]
        for entry in client.post("/segment", content=IMAGES[0], headers=PNG).json()["segmentations"][0]["classes"]
    }
    for name in CLASS_NAMES:
        answer = client.post(f"/explain?class={name}", content=IMAGES[0], headers=PNG)
        assert answer.status_code in ((200,) if name in shown else (200, 422))


def test_a_model_without_masks_names_predict() -> None:
    with run_app(FakePredictor()) as client:
        answer = client.post("/segment", content=IMAGES[0], headers=PNG)
        assert answer.status_code == 501
        assert "is for classification and predicts no masks; use /predict" in answer.json()["error"]
        assert 'data-kind="labels"' in client.get("/").text


def test_the_page_asks_for_masks_and_the_metrics_count_them(client: TestClient) -> None:
    assert 'data-kind="masks"' in client.get("/").text
    assert "name=explain" not in client.get("/").text
    client.post("/segment", content=IMAGES[0], headers=PNG)
    assert 'vitrail_requests_total{path="/segment",status="200"}' in client.get("/metrics").text
    assert "rle, mask, overlay" in client.get("/docs").text


def test_a_full_server_refuses_and_a_late_image_is_not_computed() -> None:
    predictor = GatedPredictor(small_segmenter(), "small")
    predictor.gate.set()
    with run_app(predictor, max_batch=1, max_queue=2, request_timeout=1.0) as client, ThreadPoolExecutor(2) as pool:
        batcher = client.app.state.server_state.batcher  # type: ignore[attr-defined]
        predictor.gate.clear()
        answers = []
        for number in (1, 2):
            answers.append(pool.submit(client.post, "/segment", content=IMAGES[0], headers=PNG))
            while batcher.in_flight < number:
                time.sleep(0.01)
        refused = client.post("/segment", content=IMAGES[0], headers=PNG)
        assert answers[1].result(60).status_code == 504
        predictor.gate.set()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1


def test_logits_that_are_not_finite_are_an_error_of_the_image() -> None:
    model = small_segmenter()
    with torch.no_grad():
        model.head.linear.bias[0] = float("nan")
    with run_app(TorchPredictor(model, "small")) as client:
        for path in ("/segment", "/segment?output=mask", "/segment?output=overlay", "/predict"):
            answer = client.post(path, content=IMAGES[0], headers=PNG)
            assert answer.status_code == 500
            assert "not finite" in answer.json()["error"]


def pixels_of(png: bytes) -> ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def sized_output(size: tuple[int, int], is_cancelled: bool = False) -> tuple[SegmentationTask, SizedOutput]:
    predictor = TorchPredictor(small_segmenter())
    pixels = np.random.default_rng(0).integers(0, 256, (12, 15, 3), np.uint8)
    task = predictor.task
    assert isinstance(task, SegmentationTask)
    return task, SizedOutput(predictor.outputs(pixels[None])[0], pixels, size, lambda: is_cancelled)


def test_bands_of_any_height_give_the_same_response(monkeypatch: pytest.MonkeyPatch) -> None:
    task, output = sized_output((41, 29))
    whole = [segment_step(task, kind)(output) for kind in ("rle", "mask")]
    for numel in (1, 100, 1000):
        monkeypatch.setattr("vitrail.tasks.dense.MAX_BAND_NUMEL", numel)
        rle, mask = (segment_step(task, kind)(output) for kind in ("rle", "mask"))
        assert rle.row == whole[0].row
        assert mask.row == whole[1].row
        pngs = [each.png for each in (mask, whole[1])]
        assert np.array_equal(pixels_of(pngs[0]), pixels_of(pngs[1]))


@pytest.mark.parametrize("kind", ["rle", "mask"])
def test_a_mask_that_nobody_waits_for_is_not_written(kind: str) -> None:
    task, output = sized_output((41, 29), is_cancelled=True)
    with pytest.raises(RequestError) as raised:
        segment_step(task, kind)(output)
    assert raised.value.status == 504
