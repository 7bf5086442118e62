"""``vitrail serve`` as a user starts it: a real model, a real port, real signals."""

import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.serve.fake import encoded, form
from tests.serve.talking import LONG, PNG, Server, started
from tests.small import vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.evaluate.predict import Prediction, predict
from vitrail.weights.checkpoint import save

PICTURES = [encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (23, 31, 3), np.uint8))) for seed in range(5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = vit()
    made.preprocess, made.labels = Preprocess((12, 15), crop=0.8), ("ant", "bee", "cat", "dog", "emu")
    folder = tmp_path_factory.mktemp("models") / "insects" / "best"  # clients know it by the run's name
    folder.parent.mkdir()
    save(made, folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Prediction]:
    return predict(model, PICTURES)


@pytest.fixture(scope="module")
def server(model: Path, expected: list[Prediction]) -> Iterator[Server]:
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
    with started(command, {"VITRAIL_TOKEN": "sesame"}) as server:
        yield server


def test_it_answers_as_predict_does_also_when_the_model_is_gone(
    server: Server, model: Path, expected: list[Prediction]
) -> None:
    """The last to use the model: its file is written over, then its folder deleted."""
    body = form(*((str(number), picture) for number, picture in enumerate(PICTURES)))
    headers = {"Content-Type": "multipart/form-data; boundary=xXx", "Authorization": "Bearer sesame"}
    for harm in (lambda: None, lambda: (model / "model.safetensors").write_bytes(b"\0" * 9), lambda: shutil.rmtree(model)):
        harm()
        answer = server.ask("/predict", body, headers)
        assert answer.status == 200
        assert answer.json["model"] == "insects"
        for row, wanted in zip(answer.json["pictures"], expected, strict=True):
            assert [guess["label"] for guess in row["top"]] == [guess.label for guess in wanted.top[:2]]
            assert row["probability"] == pytest.approx(wanted.probability, abs=1e-5)
    assert server.ask("/explain", PICTURES[0], {**PNG, **headers, **PNG}).status == 200


def test_the_token_comes_from_the_environment(server: Server) -> None:
    assert server.ask("/predict", PICTURES[0], PNG).status == 401
    assert server.get("/healthz").status == 200


def test_a_port_in_use_is_told_with_a_free_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "anything", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vitrail: port {port} of 127.0.0.1 is in use; try --port ")
    free = int(said.split("--port ")[1].split(",")[0])
    with socket.socket() as other:
        other.bind(("127.0.0.1", free))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere/at/all"], "nowhere/at/all"),
        (["x", "--host", "256.0.0.1"], "--host must be"),
        (["x", "--host", "192.0.2.1"], "--host must be"),
        (["x", "--queue", "4"], "queue must have room"),
        (["x", "--max-body", "0"], "--max-body must be"),
        (["x", "--deadline", "-1"], "deadline must be"),
        (["x", "--token", ""], "--token must be a word, got an empty one"),
        (["x", "--engine", "tensorflow"], "onnxruntime"),
    ],
)
def test_bad_input_ends_with_a_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *arguments, "--port", "0"]) == 2
    assert said in capsys.readouterr().err


def test_a_model_without_classes_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = vit(classes=0)
    made.preprocess = Preprocess((12, 15))
    save(made, tmp_path / "encoder")
    assert run(["serve", str(tmp_path / "encoder"), "--port", "0"]) == 2
    assert "classes=0" in capsys.readouterr().err


def test_it_tells_where_it_is_and_ends_well(tmp_path: Path) -> None:
    made = vit()
    made.preprocess = Preprocess((12, 15))
    save(made, tmp_path / "small")
    with started(["-m", "vitrail", "serve", str(tmp_path / "small"), "--port", "0", "--json"]) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LONG) == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""
