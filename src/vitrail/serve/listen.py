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

from vitrail.export.engine import Engine
from vitrail.serve.app import make_app
from vitrail.serve.door import House
from vitrail.serve.settings import Serving

CONNECTIONS, OTHERS = 4096, 64  # maximum number of connections, and of other open files
LINGER = 5.0  # seconds to discard the rest of a refused body, so that the client gets to read the response
_SAID = b'{"error": "there are too many connections; try again later"}'
CROWDED = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_SAID), _SAID)
)


@dataclass(frozen=True)
class Ready:
    """Address and engine of a server that is ready."""

    url: str
    engine: Engine


def listen(
    open_engine: Callable[[], Engine], how: Serving, place: socket.socket, source: str, tell: Callable[[Ready], None]
) -> bool:
    """Serve until stopped; return whether all accepted requests were answered."""
    # The app logs its own errors, and malformed requests are not worth a log line.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    server: _Server | None = None

    def opened() -> None:
        engine = app.state.house.batcher.engine
        if engine is None and server is not None:
            server.should_exit = True
        elif engine is not None and not app.state.house.draining:  # else it is already shutting down
            tell(Ready(_url(place), engine))

    app = make_app(open_engine, how, source, opened)
    settings = uvicorn.Config(
        app,
        http=_guarded(how.patience, _connections()),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=round(how.drain) or 1,
    )
    server = _Server(settings, app.state.house)
    server.run(sockets=[place])
    error = app.state.house.batcher.error
    if error is not None:
        raise error
    return server.clean


def _url(place: socket.socket) -> str:
    host, port = place.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's server with our signal handling: a requested stop exits with code 0."""

    def __init__(self, config: uvicorn.Config, house: House) -> None:
        super().__init__(config)
        self.house = house
        self.clean = True

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
        self.house.draining = self.should_exit = True

    async def _wait_tasks_to_complete(self) -> None:
        self.clean = False
        await super()._wait_tasks_to_complete()
        self.clean = True


def _guarded(patience: float, most: int) -> type[H11Protocol]:
    """Return uvicorn's protocol with time limits on incomplete requests and on refused bodies."""

    class Guarded(H11Protocol):
        _limit: asyncio.TimerHandle | None = None
        _rest: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.write(CROWDED)
                transport.close()
            else:
                self._limit = self.loop.call_later(patience, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            heading = self.conn.their_state is h11.IDLE
            if not heading:
                _cancel(self._limit)
                self._limit = None
            elif self._limit is None and data:  # the first bytes of another header
                self._limit = self.loop.call_later(patience, self.transport.abort)
            if self.conn.their_state is not h11.SEND_BODY:
                _cancel(self._rest)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
                self._rest = self.loop.call_later(LINGER, self.transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self._limit)
            _cancel(self._rest)
            super().connection_lost(exc)

    return Guarded


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _connections() -> int:
    """Return the maximum number of connections, after raising the limit of open files."""
    try:
        import resource
    except ImportError:  # not Unix
        return CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wished = CONNECTIONS + OTHERS if hard == resource.RLIM_INFINITY else min(CONNECTIONS + OTHERS, hard)
    if 0 <= soft < wished:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wished, hard))
        soft = wished
    return min(CONNECTIONS, soft - OTHERS) if soft > OTHERS else CONNECTIONS
