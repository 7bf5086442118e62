"""Run the server on a socket: it responds while the model loads, and shuts down gracefully.

SIGTERM or SIGINT: no new requests, accepted ones are answered, exit code 0. A second signal ends it at once.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.inference.predictor import Predictor
from vitrail.serve.app import create_serve_app
from vitrail.serve.config import ServeConfig
from vitrail.serve.middleware import ServerState
from vitrail.web.server import Server
from vitrail.web.sockets import socket_url

MAX_CONNECTIONS, RESERVED_FILES = 4096, 64  # maximum number of connections, and of other open files
DISCARD_SECONDS = 5.0  # seconds to discard the rest of a refused body, so that the client gets to read the response
_TOO_MANY_BODY = b'{"error": "there are too many connections; try again later"}'
TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TOO_MANY_BODY), _TOO_MANY_BODY)
)


@dataclass(frozen=True)
class Started:
    """Address and predictor of a server that is ready."""

    url: str
    predictor: Predictor


def run_server(
    open_predictor: Callable[[], Predictor],
    config: ServeConfig,
    listener: socket.socket,
    source: str,
    on_ready: Callable[[Started], None],
) -> bool:
    """Serve until stopped; return whether all accepted requests were answered."""
    server: Server | None = None

    def on_loaded() -> None:
        if state.batcher.predictor is None and server is not None:
            server.should_exit = True
        elif state.batcher.predictor is not None and not state.draining:  # else it is already shutting down
            on_ready(Started(socket_url(listener), state.batcher.predictor))

    app = create_serve_app(open_predictor, config, source, on_loaded)
    state: ServerState = app.state.server_state
    server = Server(
        app,
        state.drain,
        config.shutdown_timeout,
        exit_at_once=True,
        http=protocol_with_timeouts(config.read_timeout, _max_connections()),
        lifespan="on",
        timeout_keep_alive=30,
    )
    server.run(sockets=[listener])
    if state.batcher.error is not None:
        raise state.batcher.error
    return server.all_answered


def protocol_with_timeouts(read_timeout: float, max_connections: int) -> type[H11Protocol]:
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
