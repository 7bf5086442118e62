"""Every kind of request and its response, without a socket."""

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from tests.serve.fake_predictor import FakePredictor, coloured_image, encode_image, multipart_form
from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.explain.saliency import SALIENCY_METHODS, saliency
from vitrail.inference.predict import predict
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.serve.app import create_serve_app
from vitrail.serve.config import ServeConfig

PNG = {"Content-Type": "image/png"}
FORM = {"Content-Type": "multipart/form-data; boundary=xXx"}


@contextmanager
def run_app(predictor: Predictor | None = None, **settings: Any) -> Iterator[TestClient]:
    with TestClient(create_serve_app(lambda: predictor or FakePredictor(), ServeConfig(**settings), "runs/colours")) as client:
        end = time.monotonic() + 60
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with run_app(max_body=50_000, max_queue=20, max_pixels=100_000) as client:
        yield client


def test_one_image_as_the_body(client: TestClient) -> None:
    answer = client.post("/predict", content=coloured_image(83), headers=PNG, params={"top": 2})
    assert answer.status_code == 200
    (image,) = answer.json()["predictions"]
    assert answer.json()["model"] == "colours"  # without its path
    assert image["file"] == "image 0"
    assert image["label"] == image["top"][0]["label"] == "83"
    assert image["probability"] == pytest.approx(1 / (1 + 511 * np.exp(-20.0)))
    assert [entry["label"] for entry in image["top"]] == ["83", "0"]  # ties: the lower index


def test_many_images_keep_their_order_with_bad_ones_among_them(client: TestClient) -> None:
    images = [
        ("a.png", coloured_image(7)),
        ("b.png", b"no image"),
        ("c.png", coloured_image(0)),
        ("c.png", coloured_image(300)),
        ("", b""),
    ]
    answer = client.post("/predict", content=multipart_form(*images), headers=FORM)
    assert answer.status_code == 200
    rows = answer.json()["predictions"]
    assert [row["file"] for row in rows] == ["a.png", "b.png", "c.png", "c.png", "image 4"]
    assert [row.get("label") for row in rows] == ["7", None, None, "300", None]
    assert [row.get("status") for row in rows] == [None, 422, 500, None, 422]
    assert "none of JPEG" in rows[1]["error"]
    assert "log" in rows[2]["error"]
    assert "empty" in rows[4]["error"]


def test_a_request_whose_images_all_fail_has_the_status_of_the_first(client: TestClient) -> None:
    answer = client.post("/predict", content=multipart_form(("x", b"?"), ("y", coloured_image(0))), headers=FORM)
    assert answer.status_code == 422
    assert answer.json()["error"] == answer.json()["images"][0]["error"]
    assert [row["status"] for row in answer.json()["images"]] == [422, 500]


@pytest.mark.parametrize(
    ("headers", "content", "status", "message"),
    [
        (PNG, b"", 400, "no image"),
        ({}, b"", 400, "no image"),
        (FORM, multipart_form(), 400, "no image"),
        (FORM, multipart_form(("a", b"x"), field="note").replace(b'; filename="a"', b""), 400, "no image"),
        (FORM, b"", 400, "last boundary"),
        (FORM, multipart_form(("a", coloured_image(3)))[:-9], 400, "last boundary"),
        (FORM, b"--yYy\r\nnonsense", 400, "cannot be read"),
        ({"Content-Type": "multipart/form-data"}, multipart_form(("a", coloured_image(3))), 400, "boundary"),
        ({"Content-Type": f"multipart/form-data; boundary={'x' * 300}"}, b"", 400, "oundary"),
        ({"Content-Type": "application/json"}, b"{}", 415, "application/json"),
        ({"Content-Type": "text/html; charset=utf-8"}, b"<p>", 415, "text/html"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, coloured_image(3), 415, "with curl, add -H 'Content-Type:"),
        ({"Content-Type": "image/"}, coloured_image(3), 415, "image/"),
        ({**PNG, "Content-Encoding": "gzip"}, coloured_image(3), 415, "Content-Encoding"),
        (PNG, bytes(50_001), 413, "50,000 bytes"),
        (FORM, multipart_form(*[("a", coloured_image(3))] * 21), 413, "20 images"),
        (PNG, b"<html>", 422, "none of JPEG"),
        (PNG, encode_image(Image.effect_noise((40, 30), 50.0))[:300], 422, "cannot be decoded"),
        (PNG, coloured_image(3, (400, 251)), 422, "400 x 251 pixels"),
        (PNG, encode_image(Image.new("1", (4000, 3000))), 422, "pixels"),
    ],
)  # fmt: skip
def test_an_invalid_request_gets_one_sentence_that_says_why(
    client: TestClient, headers: dict[str, str], content: bytes, status: int, message: str
) -> None:
    answer = client.post("/predict", content=content, headers=headers)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_file_name_is_echoed_and_never_used_as_a_path(client: TestClient) -> None:
    names = ["../../etc/passwd", "/etc/passwd", "a\x00b\x1b[31m.png", "<script>", "ünï.png", "x" * 500]
    rows = client.post("/predict", content=multipart_form(*((name, coloured_image(5)) for name in names)), headers=FORM).json()[
        "predictions"
    ]
    assert [row["label"] for row in rows] == ["5"] * 6
    message = [row["file"] for row in rows]
    assert message[:2] == names[:2]
    assert message[2] == "a?b?[31m.png"
    assert message[3:5] == names[3:5]
    assert message[5] == "x" * 200


def test_parameters_and_paths_are_checked(client: TestClient) -> None:
    top = "top must be a whole number from 1 to 100,000, got {}; try top=5"
    for path, message in (
        ("/predict?top=0", top.format("'0'")),
        ("/predict?top=x", top.format("'x'")),
        ("/predict?top=1000000", top.format("'1000000'")),
        ("/predict?top_k=1", "/predict has no parameter 'top_k'; did you mean 'top'?"),
        ("/predict?verbose=1", "/predict has no parameter 'verbose'; there is top"),
        ("/explain?method=magic", f"method must be one of {', '.join(SALIENCY_METHODS)}, got 'magic'; try method=rollout"),
        ("/explain?klass=3", "/explain has no parameter 'klass'; did you mean 'class'?"),
    ):
        answer = client.post(path, content=coloured_image(3), headers=PNG)
        assert (answer.status_code, answer.json()) == (422, {"error": message})
    assert client.get("/nowhere").status_code == 404
    wrong = client.get("/predict")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert set(wrong.json()) == {"error"}


def test_a_predictor_without_a_torch_model_cannot_explain(client: TestClient) -> None:
    answer = client.post("/explain", content=coloured_image(3), headers=PNG)
    assert answer.status_code == 501
    assert answer.json()["error"].startswith("fake cannot compute saliency maps")


def test_the_metrics_are_right_and_valid_prometheus_text() -> None:
    with run_app() as client:
        client.post(
            "/predict", content=multipart_form(("a", coloured_image(7)), ("b", b"?"), ("c", coloured_image(0))), headers=FORM
        )
        client.post("/predict", content=b"?", headers=PNG)
        client.get("/somewhere/else")
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert all(re.fullmatch(r'[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+', line) for line in lines if line[0] != "#")
    assert values['vitrail_requests_total{path="/predict",status="200"}'] == "1"
    assert values['vitrail_requests_total{path="/predict",status="422"}'] == "1"
    assert values['vitrail_requests_total{path="other",status="404"}'] == "1"
    assert values['vitrail_images_total{outcome="predicted"}'] == "1"
    assert values['vitrail_images_total{outcome="invalid"}'] == "2"
    assert values['vitrail_images_total{outcome="failed"}'] == "1"
    assert values["vitrail_images_in_flight"] == values["vitrail_body_bytes"] == values["vitrail_queue_length"] == "0"
    assert values["vitrail_ready"] == "1"
    buckets = [int(value) for name, value in values.items() if name.startswith("vitrail_batch_size_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == int(values["vitrail_batch_size_count"])
    assert float(values["vitrail_batch_size_sum"]) == 2  # the two that could be decoded


def test_a_token_is_required_for_images_and_metrics() -> None:
    with run_app(token="sesame") as client:
        for path, method in (("/predict", "POST"), ("/explain", "POST"), ("/metrics", "GET")):
            for headers in (
                {},
                {"Authorization": "Bearer sesam"},
                {"Authorization": "Basic sesame"},
                {"Authorization": "Bearer"},
            ):
                answer = client.request(method, path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Bearer")
        for path in ("/healthz", "/readyz", "/", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        right = {"Authorization": "bearer sesame"}
        assert client.post("/predict", content=coloured_image(9), headers={**PNG, **right}).status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200
        assert "colours" not in client.get("/").text
        assert client.get("/openapi.json").json()["paths"]["/predict"]["post"]["security"] == [{"token": []}]


def test_the_pages_fetch_nothing_from_outside(client: TestClient) -> None:
    for path in ("/", "/docs"):
        answer = client.get(path)
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert not re.findall(r'(?:src|href)\s*=\s*["\']?(?:https?:)?//', answer.text)
    assert all(path in client.get("/docs").text for path in client.get("/openapi.json").json()["paths"])


def test_the_pages_list_the_methods_and_hide_the_path_of_the_model(client: TestClient) -> None:
    assert ", ".join(SALIENCY_METHODS) in client.get("/docs").text
    assert "``" not in client.get("/docs").text
    assert "Authorization" not in client.get("/").text.split("<pre>")[1].split("</pre>")[0]
    predictor = FakePredictor()
    predictor.source = "/home/somebody/runs/colours"
    with run_app(predictor) as other:
        assert "<p>colours: 512 classes" in other.get("/").text
        assert "somebody" not in other.get("/").text
    with run_app(token="sesame") as guarded:
        assert guarded.get("/").text.count('curl -H "Authorization: Bearer TOKEN"') == 2


def test_while_loading_the_server_is_alive_and_not_ready() -> None:
    loaded = Event()

    def load_slowly() -> FakePredictor:
        assert loaded.wait(60)
        return FakePredictor()

    with TestClient(create_serve_app(load_slowly)) as client:
        assert client.get("/healthz").status_code == 200
        for answer in (client.get("/readyz"), client.post("/predict", content=coloured_image(3), headers=PNG)):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert "loading" in answer.json()["error"]
        loaded.set()


def torch_predictor(**changes: Any) -> TorchPredictor:
    model = small_vit(**changes)
    model.preprocess = Preprocess((12, 15), crop_pct=0.8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    model.class_names, model.metadata = (
        tuple("abcde"),
        {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}} if changes.get("pool") == "gap" else {},
    )
    return TorchPredictor(model, "small")


def noise_image(seed: int, size: tuple[int, int] = (23, 31)) -> bytes:
    return encode_image(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)))


@pytest.mark.parametrize("pool", ["cls", "gap"])  # the second has a sigmoid loss
def test_predictions_equal_those_of_predict_whatever_the_batch(pool: str) -> None:
    predictor, images = torch_predictor(pool=pool), [noise_image(seed) for seed in range(7)]
    expected = predict(predictor.model, images, top_k=3)
    with run_app(predictor, max_batch=3) as client:
        together = client.post(
            "/predict?top=3", content=multipart_form(*((str(n), one) for n, one in enumerate(images))), headers=FORM
        )
        alone = [client.post("/predict?top=3", content=one, headers=PNG).json()["predictions"][0] for one in images]
    for expected_row, *rows in zip(expected, together.json()["predictions"], alone, strict=True):
        for row in rows:
            assert [entry["label"] for entry in row["top"]] == [entry.label for entry in expected_row.top]
            assert [entry["probability"] for entry in row["top"]] == pytest.approx(
                [one.probability for one in expected_row.top], abs=1e-5
            )


def test_a_saliency_map_equals_that_of_explain_and_can_be_drawn() -> None:
    predictor = torch_predictor()
    image = noise_image(3, (12, 15))
    images = (np.asarray(Image.open(io.BytesIO(image))) / 255 - (0.5, 0.4, 0.3)) / (0.2, 0.3, 0.4)
    predictor.preprocess = predictor.model.preprocess = Preprocess((12, 15), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    inputs = torch.from_numpy(images).float().permute(2, 0, 1)[None]
    with run_app(predictor) as client:
        rows = client.post("/explain", content=multipart_form(("x", image), ("y", b"?")), headers=FORM).json()["explanations"]
        named = client.post("/explain?method=relevance&class=d", content=image, headers=PNG).json()["explanations"][0]
        numbered = client.post("/explain?method=relevance&class=3", content=image, headers=PNG).json()["explanations"][0]
        unknown = client.post("/explain?class=f", content=image, headers=PNG)
        samples = client.post("/explain", content=image, headers={**PNG, "Accept": "image/png"})
        broken = client.post("/explain", content=b"?", headers={**PNG, "Accept": "image/png"})
    assert np.allclose(rows[0]["map"], saliency(predictor.model, inputs, "rollout")[0].numpy(), atol=1e-5)
    assert rows[1]["status"] == broken.status_code == 422
    assert rows[0]["explained"] == rows[0]["label"]
    relevance = saliency(predictor.model, inputs, "relevance", torch.tensor([3]))[0].detach().numpy()
    assert np.allclose(named["map"], relevance, atol=1e-5)
    assert (named["explained"], numbered["map"]) == ("d", named["map"])
    assert unknown.status_code == 422
    assert samples.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(samples.content)) as printed:
        assert printed.width * 12 == printed.height * 15


def test_a_model_without_patches_cannot_be_explained() -> None:
    model = build(ResNetConfig(stages=(1,), width=32, image=(32, 32), classes=3))
    model.preprocess, model.class_names = Preprocess((32, 32)), None
    with run_app(TorchPredictor(model, "resnet"), max_batch=2) as client:
        assert client.post("/predict", content=coloured_image(3), headers=PNG).json()["predictions"][0]["label"] in (
            "0",
            "1",
            "2",
        )
        answer = client.post("/explain", content=coloured_image(3), headers=PNG)
        assert answer.status_code == 501
        assert set(answer.json()) >= {"error"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_batch", 0),
        ("max_queue", 3),
        ("request_timeout", 0.0),
        ("read_timeout", -1.0),
        ("max_batch_delay", 11.0),
        ("max_body", 0),
        ("token", " "),
    ],
)
def test_an_invalid_configuration_is_refused_with_a_remedy(setting: str, value: object) -> None:
    with pytest.raises(VitrailError, match=setting) as refused:
        ServeConfig(**{setting: value})  # type: ignore[arg-type]
    assert "try" in str(refused.value)
    assert "sesame" not in repr(ServeConfig(token="sesame"))
