"""The command that opens the studio: what it says, what it refuses, how it ends."""

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

from tests.browser.runs import saved
from vitrail.cli.main import run

TOKEN = "a-token-of-enough-letters"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "mine")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_and_ends_quietly(model: Path, kind: signal.Signals) -> None:
    command = [sys.executable, "-m", "vitrail", "studio", str(model), "--no-browser", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = json.loads(process.stdout.readline())
        assert told["models"] == ["mine"]
        assert told["url"].startswith("http://127.0.0.1:")
        assert len(told["url"].rstrip("/").rpartition("/")[2]) >= 32
        with urllib.request.urlopen(f"{told['url']}api/studio") as answer:
            assert json.load(answer)["models"][0]["name"] == "mine"
        process.send_signal(kind)
        assert process.wait(60) == 0
        assert not process.stderr.read()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere"),
        ([".", "--token", "short"], "--token must be of 24 letters"),
        ([".", "--token", "a/path/of/twenty-four/letters"], "--token must be"),
        (["pyproject.toml"], "pyproject.toml"),
    ],
)
def test_wrong_words_get_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["studio", *words, "--no-browser"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken_is_told_before_the_model_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert run(["studio", "nowhere", "--port", str(other.getsockname()[1])]) == 2
    assert "which is free" in capsys.readouterr().err


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["studio", "nowhere"]) == 2
    assert "pip install 'vitrail[studio]'" in capsys.readouterr().err


def test_the_page_is_opened_in_a_browser_that_may_wait_for_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a terminal is waited for until it ends, and nothing ends before the page has answered."""
    opened: SimpleQueue[tuple[str, bool]] = SimpleQueue()
    answers = Event()

    def listen(app: object, place: object, ready: Callable[[], None]) -> None:
        ready()
        answers.set()

    monkeypatch.setattr("webbrowser.open", lambda url: opened.put((url, answers.wait(10))))
    monkeypatch.setattr("vitrail.studio.listen.listen", listen)
    assert run(["studio", str(model), "--token", TOKEN]) == 0
    url, answered = opened.get(timeout=30)
    assert url.endswith(f"/{TOKEN}/")
    assert answered
