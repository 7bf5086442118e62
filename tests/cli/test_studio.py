"""``vitrail studio`` from the command line: output, errors and shutdown."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest

from tests.browser.sample_models import save_model
from vitrail.cli.main import run

TOKEN = "a-token-of-enough-letters"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "mine")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_the_studio_prints_its_address_and_stops_quietly(model: Path, kind: signal.Signals) -> None:
    command = [sys.executable, "-m", "vitrail", "studio", str(model), "--no-browser", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        answer = json.loads(process.stdout.readline())
        assert answer["models"] == ["mine"]
        assert answer["url"].startswith("http://127.0.0.1:")
        assert len(answer["url"].rstrip("/").rpartition("/")[2]) >= 32
        with urllib.request.urlopen(f"{answer['url']}api/studio") as answer:
            assert json.load(answer)["models"][0]["name"] == "mine"
        process.send_signal(kind)
        assert process.wait(60) == 0
        assert not process.stderr.read()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere"),
        ([".", "--token", "short"], "--token must be at least 24 letters"),
        ([".", "--token", "a/path/of/twenty-four/letters"], "--token must be"),
        (["pyproject.toml"], "pyproject.toml"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["studio", *words, "--no-browser"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_port_in_use_is_reported_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert run(["studio", "nowhere", "--port", str(other.getsockname()[1])]) == 2
    assert "which is free" in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("vitrail.cli.options.find_spec", lambda name: None)
    assert run(["studio", "nowhere"]) == 2
    assert "pip install 'vitrail[studio]'" in capsys.readouterr().err


def test_the_page_opens_in_a_browser_that_blocks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal browser blocks until it exits, and waits for the page to respond."""
    opened: SimpleQueue[tuple[str, bool]] = SimpleQueue()
    answers = Event()

    def run_studio_server(app: object, listener: object, on_ready: Callable[[], None]) -> None:
        on_ready()
        answers.set()

    monkeypatch.setattr("webbrowser.open", lambda url: opened.put((url, answers.wait(10))))
    monkeypatch.setattr("vitrail.studio.app.run_studio_server", run_studio_server)
    assert run(["studio", str(model), "--token", TOKEN]) == 0
    url, answered = opened.get(timeout=30)
    assert url.endswith(f"/{TOKEN}/")
    assert answered
