"""Graceful shutdown: accepted requests are answered, new ones refused, and the exit code is 0."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serve.fake_predictor import coloured_image
from tests.serve.server_process import PNG, TIMEOUT, ServerProcess, receive_response, start_fake_server, wait_until

HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"


def is_refused(server: ServerProcess) -> bool:
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_accepted_requests_are_answered_before_the_server_exits(number: signal.Signals) -> None:
    with (
        start_fake_server(0.4, max_batch=2) as server,
        ThreadPoolExecutor(6) as clients,
        server.connect() as idle,
        server.connect() as half,
    ):
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert receive_response(idle).status == 200
        image = coloured_image(6)
        half.sendall(HEAD % len(image) + image[:40])  # accepted, though not yet complete
        waiting = [clients.submit(server.request, "/predict", coloured_image(label), PNG) for label in range(1, 6)]
        server.wait_for_metric("vitrail_images_in_flight", 5)
        server.process.send_signal(number)
        half.sendall(image[40:])
        assert [future.result(TIMEOUT).label for future in waiting] == ["1", "2", "3", "4", "5"]
        assert receive_response(half).label == "6"
        assert idle.recv(1) == b""
        assert server.process.wait(TIMEOUT) == 0
        assert is_refused(server)
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


@pytest.mark.thorough
def test_requests_that_exceed_the_shutdown_timeout_are_dropped_and_the_exit_code_is_1() -> None:
    with (
        start_fake_server(30.0, max_batch=1, shutdown_timeout=1.0, request_timeout=90.0, max_queue=5) as server,
        ThreadPoolExecutor(1) as clients,
    ):
        waiting = clients.submit(server.request, "/predict", coloured_image(1), PNG)
        server.wait_for_metric("vitrail_images_in_flight", 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(TIMEOUT) == 1
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""
        assert waiting.exception(TIMEOUT) is not None or waiting.result().status != 200


def test_a_second_signal_ends_the_server_at_once() -> None:
    with start_fake_server(30.0, max_batch=1, request_timeout=90.0, max_queue=5) as server, ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(server.request, "/predict", coloured_image(1), PNG)
        server.wait_for_metric("vitrail_images_in_flight", 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_refused(server))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(TIMEOUT) == 143
        assert waiting.exception(TIMEOUT) is not None


LOADING_SCRIPT = """
import sys, time
from tests.serve.fake_predictor import FakePredictor
from vitrail.serve.config import ServeConfig
from vitrail.serve.server import run_server
from vitrail.web.sockets import bind_socket

def load_slowly():
    print("loading", flush=True)
    time.sleep(0.5)
    return FakePredictor()

with bind_socket("127.0.0.1", 0) as listener:
    sys.exit(0 if run_server(load_slowly, ServeConfig(), listener, "colours", lambda ready: print(ready.url)) else 1)
"""


def test_a_signal_while_loading_ends_the_server_silently() -> None:
    """The port is closed by the time the model is loaded, so no address is printed."""
    with subprocess.Popen([sys.executable, "-c", LOADING_SCRIPT], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=TIMEOUT)
    assert output == ("", "")
    assert process.returncode == 0
