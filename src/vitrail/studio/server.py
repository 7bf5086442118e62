"""HTTP server of the studio, until Ctrl-C."""

import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.applications import Starlette


def run_studio_server(app: Starlette, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the app; ``ready`` is called once requests are accepted."""
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # do not log clients that disconnect during a response
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    _Server(config, app, ready).run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn server that shuts down quietly and ends the event streams."""

    def __init__(self, config: uvicorn.Config, app: Starlette, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.app, self.ready = app, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.app.state.studio.shut_down()
        self.force_exit = self.should_exit  # second signal
        self.should_exit = True
