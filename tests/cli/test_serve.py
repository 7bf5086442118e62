"""``vitrail serve`` as a user starts it: with a real model, port and signals."""

import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.serve.fake_predictor import encode_image, multipart_form
from tests.serve.server_process import PNG, TIMEOUT, ServerProcess, start_server
from tests.small_models import small_vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.inference.predict import predict
from vitrail.tasks.classification import ClassPrediction
from vitrail.weights.save import save

IMAGES = [
    encode_image(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (23, 31, 3), np.uint8))) for seed in range(5)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = small_vit()
    built.preprocess, built.class_names = Preprocess((12, 15), crop_pct=0.8), ("ant", "bee", "cat", "dog", "emu")
    folder = tmp_path_factory.mktemp("models") / "insects" / "best"  # clients see the name of the run
    folder.parent.mkdir()
    save(built, folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[ClassPrediction]:
    return predict(model, IMAGES)


@pytest.fixture(scope="module")
def server(model: Path, expected: list[ClassPrediction]) -> Iterator[ServerProcess]:
    command = [
        "-m",
        "vitrail",
        "serve",
        str(model),
        "--port",
        "0",
        "--json",
        "--max-batch",
        "3",
        "--top",
        "2",
        "--threads",
        "1",
    ]
    with start_server(command, {"VITRAIL_TOKEN": "sesame"}) as server:
        yield server


def test_predictions_equal_those_of_predict_even_after_the_model_is_deleted(
    server: ServerProcess, model: Path, expected: list[ClassPrediction]
) -> None:
    """The model's file is overwritten, then its folder deleted; no later test uses it."""
    body = multipart_form(*((str(number), image) for number, image in enumerate(IMAGES)))
    headers = {"Content-Type": "multipart/form-data; boundary=xXx", "Authorization": "Bearer sesame"}
    for damage in (lambda: None, lambda: (model / "model.safetensors").write_bytes(b"\0" * 9), lambda: shutil.rmtree(model)):
        damage()
        answer = server.request("/predict", body, headers)
        assert answer.status == 200
        assert answer.json["model"] == "insects"
        for row, prediction in zip(answer.json["predictions"], expected, strict=True):
            assert [entry["label"] for entry in row["top"]] == [entry.label for entry in prediction.top[:2]]
            assert row["probability"] == pytest.approx(prediction.probability, abs=1e-5)
    assert server.request("/explain", IMAGES[0], {**PNG, **headers, **PNG}).status == 200


def test_the_token_comes_from_the_environment(server: ServerProcess) -> None:
    assert server.request("/predict", IMAGES[0], PNG).status == 401
    assert server.get("/healthz").status == 200


def test_a_port_in_use_is_reported_with_a_free_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert run(["serve", "anything", "--port", str(port)]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"vitrail: port {port} of 127.0.0.1 is in use; try --port ")
    free = int(message.split("--port ")[1].split(",")[0])
    with socket.socket() as other:
        other.bind(("127.0.0.1", free))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/at/all"], "nowhere/at/all"),
        (["x", "--host", "256.0.0.1"], "--host must be"),
        (["x", "--host", "192.0.2.1"], "--host must be"),
        (["x", "--max-queue", "4"], "max_queue must have room"),
        (["x", "--max-body", "0"], "--max-body must be"),
        (["x", "--request-timeout", "-1"], "request_timeout must be"),
        (["x", "--token", ""], "--token must not be empty"),
        (["x", "--backend", "tensorflow"], "onnxruntime"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *arguments, "--port", "0"]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_classes_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = small_vit(classes=0)
    built.preprocess = Preprocess((12, 15))
    save(built, tmp_path / "encoder")
    assert run(["serve", str(tmp_path / "encoder"), "--port", "0"]) == 2
    assert "classes=0" in capsys.readouterr().err


def test_the_server_prints_its_address_and_stops_with_exit_code_0(server: ServerProcess) -> None:
    """The last test, since no other can use the server afterwards."""
    assert server.url == f"http://127.0.0.1:{server.port}"
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(TIMEOUT) == 0
    assert server.process.stderr is not None
    assert server.process.stderr.read() == ""
