"""Run the server on a socket: it responds while the model loads, and shuts down gracefully.

SIGTERM or SIGINT: no new requests, accepted ones are answered, exit code 0. A second signal ends it at once.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.inference.predictor import Predictor
from vitrail.serve.app import create_serve_app
from vitrail.serve.config import ServeConfig
from vitrail.serve.middleware import ServerState

MAX_CONNECTIONS, RESERVED_FILES = 4096, 64  # maximum number of connections, and of other open files
DISCARD_SECONDS = 5.0  # seconds to discard the rest of a refused body, so that the client gets to read the response
_TOO_MANY_BODY = b'{"error": "there are too many connections; try again later"}'
TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TOO_MANY_BODY), _TOO_MANY_BODY)
)


@dataclass(frozen=True)
class Started:
    """Address and engine of a server that is ready."""

    url: str
    engine: Predictor


def run_server(
    open_engine: Callable[[], Predictor],
    config: ServeConfig,
    listener: socket.socket,
    source: str,
    on_ready: Callable[[Started], None],
) -> bool:
    """Serve until stopped; return whether all accepted requests were answered."""
    # The app logs its own errors, and malformed requests are not worth a log line.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    server: _Server | None = None

    def on_loaded() -> None:
        engine = app.state.server_state.batcher.engine
        if engine is None and server is not None:
            server.should_exit = True
        elif engine is not None and not app.state.server_state.draining:  # else it is already shutting down
            on_ready(Started(_socket_url(listener), engine))

    app = create_serve_app(open_engine, config, source, on_loaded)
    uvicorn_config = uvicorn.Config(
        app,
        http=_protocol_with_timeouts(config.read_timeout, _max_connections()),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=round(config.shutdown_timeout) or 1,
    )
    server = _Server(uvicorn_config, app.state.server_state)
    server.run(sockets=[listener])
    error = app.state.server_state.batcher.error
    if error is not None:
        raise error
    return server.all_answered


def _socket_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's server with our signal handling: a requested stop exits with code 0."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState) -> None:
        super().__init__(config)
        self.app_state = server_state
        self.all_answered = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self.app_state.draining = self.should_exit = True

    async def _wait_tasks_to_complete(self) -> None:
        self.all_answered = False
        await super()._wait_tasks_to_complete()
        self.all_answered = True


def _protocol_with_timeouts(read_timeout: float, max_connections: int) -> type[H11Protocol]:
    """Return uvicorn's protocol with time limits on incomplete requests and on refused bodies."""

    class TimeoutProtocol(H11Protocol):
        _read_timer: asyncio.TimerHandle | None = None
        _discard_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                transport.write(TOO_MANY_CONNECTIONS)
                transport.close()
            else:
                self._read_timer = self.loop.call_later(read_timeout, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            in_header = self.conn.their_state is h11.IDLE
            if not in_header:
                _cancel_timer(self._read_timer)
                self._read_timer = None
            elif self._read_timer is None and data:  # the first bytes of another header
                self._read_timer = self.loop.call_later(read_timeout, self.transport.abort)
            if self.conn.their_state is not h11.SEND_BODY:
                _cancel_timer(self._discard_timer)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
                self._discard_timer = self.loop.call_later(DISCARD_SECONDS, self.transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel_timer(self._read_timer)
            _cancel_timer(self._discard_timer)
            super().connection_lost(exc)

    return TimeoutProtocol


def _cancel_timer(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _max_connections() -> int:
    """Return the maximum number of connections, after raising the limit of open files."""
    try:
        import resource
    except ImportError:  # not Unix
        return MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES if hard == resource.RLIM_INFINITY else min(MAX_CONNECTIONS + RESERVED_FILES, hard)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return min(MAX_CONNECTIONS, soft - RESERVED_FILES) if soft > RESERVED_FILES else MAX_CONNECTIONS
