"""The server starts, stops and waits for its requests, and overrides nothing that uvicorn may change without notice."""

import asyncio
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.serve.server import protocol_with_timeouts
from vitrail.web.server import Server
from vitrail.web.sockets import bind_socket, socket_url

TIMEOUT = 60.0  # seconds, on a busy machine


@contextmanager
def running(server: Server, started: threading.Event) -> Iterator[str]:
    """Run a server in a thread, where no signal arrives, and yield its URL; the block has to stop it."""
    with bind_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        assert started.wait(TIMEOUT)
        yield socket_url(listener)
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def slow_app(arrived: threading.Event, answer: Callable[[], bool]) -> Callable[[Scope, Receive, Send], object]:
    """An app that answers once ``answer`` says so."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        arrived.set()
        while not answer():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    return app


def status_of(url: str) -> int | None:
    """Return the status of a response, or None if there is no good one."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            return int(response.status)
    except OSError:
        return None


@pytest.mark.parametrize("in_time", [True, False])
def test_a_stopped_server_knows_whether_all_requests_were_answered(in_time: bool) -> None:
    arrived, stopped, started = threading.Event(), threading.Event(), threading.Event()
    app = slow_app(arrived, lambda: in_time and stopped.is_set())
    server = Server(app, stopped.set, 1.0, started.set, lifespan="off")  # type: ignore[arg-type]
    with running(server, started) as url, ThreadPoolExecutor(1) as client:
        status = client.submit(status_of, url)
        assert arrived.wait(TIMEOUT)
        server.handle_exit(signal.SIGTERM, None)
        assert status.result(TIMEOUT) == (204 if in_time else None)
    assert server.all_answered == in_time


def test_a_second_signal_ends_the_wait_for_requests() -> None:
    arrived, started, stops = threading.Event(), threading.Event(), list[int]()
    server = Server(slow_app(arrived, lambda: False), lambda: stops.append(1), TIMEOUT, started.set, lifespan="off")  # type: ignore[arg-type]
    with running(server, started) as url, ThreadPoolExecutor(1) as client:
        status = client.submit(status_of, url)
        assert arrived.wait(TIMEOUT)
        server.handle_exit(signal.SIGINT, None)
        server.handle_exit(signal.SIGINT, None)
        assert status.result(TIMEOUT) is None
    assert len(stops) == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (Server, uvicorn.Server, {"startup", "handle_exit", "shutdown"}),
        (
            protocol_with_timeouts(1.0, 1),
            H11Protocol,
            {"connection_made", "data_received", "on_response_complete", "connection_lost"},
        ),
    ],
)
def test_only_public_methods_of_uvicorn_are_overridden_and_they_exist(ours: type, theirs: type, expected: set[str]) -> None:
    overridden = {name for name in vars(ours) if hasattr(theirs, name) and not name.startswith("__")}
    assert overridden == expected
