"""uvicorn's server on a bound socket, with a graceful shutdown.

SIGTERM or SIGINT: no new connections, accepted requests are answered, and the process goes on after ``run``.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp


class Server(uvicorn.Server):
    """Only public methods of uvicorn are overridden, so that an update cannot silently undo them.

    ``on_start``: called once requests are accepted. ``on_stop``: called at every signal, before the shutdown starts.
    ``exit_at_once``: a second signal ends the process, else only the wait for requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        on_stop: Callable[[], None],
        shutdown_timeout: float,
        on_start: Callable[[], None] = lambda: None,
        exit_at_once: bool = False,
        **options: Any,
    ) -> None:
        # An app logs its own errors; malformed requests and clients that disconnect are not worth a line.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.shutdown_timeout = round(shutdown_timeout) or 1  # seconds, of which uvicorn takes whole ones
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=self.shutdown_timeout,
                **options,
            )
        )
        self.on_start, self.on_stop, self.exit_at_once = on_start, on_stop, exit_at_once
        self.all_answered = True  # whether the shutdown left no request unanswered

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. uvicorn's own method has it raised again at the end, and so an exit code other than 0."""
        if self.should_exit and self.exit_at_once:
            os._exit(128 + sig)
        self.on_stop()
        self.force_exit = self.should_exit  # at the second signal
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer accepted requests; uvicorn cancels those that take longer than the timeout."""
        check = asyncio.get_running_loop().call_later(self.shutdown_timeout, self._check_answered)
        await super().shutdown(sockets)
        check.cancel()

    def _check_answered(self) -> None:
        self.all_answered = not (self.server_state.connections or self.server_state.tasks)
