"""ASGI middleware: authentication and admission control before a request's body is read, and request metrics."""

import math
import time
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.serve.batcher import Batcher
from vitrail.serve.config import ServeConfig
from vitrail.serve.errors import RequestError, not_ready
from vitrail.serve.metrics import Metrics
from vitrail.web.http import CLIENT_CLOSED_REQUEST, error_response, is_token

IMAGE_PATHS = ("/predict", "/segment", "/explain")
GUARDED_PATHS = (*IMAGE_PATHS, "/metrics")
COUNTED_PATHS = (*GUARDED_PATHS, "/", "/docs", "/openapi.json", "/healthz", "/readyz")


@dataclass
class ServerState:
    """State shared by the routes and the middleware."""

    config: ServeConfig
    batcher: Batcher
    metrics: Metrics
    source: str
    draining: bool = False

    def drain(self) -> None:
        self.draining = True

    def check_admission(self) -> None:
        if self.draining:
            raise not_ready("draining")
        self.batcher.check_admission()


class AdmissionMiddleware:
    """Refuse requests without a token or while the server is full, and count every request."""

    def __init__(self, app: ASGIApp, server_state: ServerState) -> None:
        self.app, self.server_state = app, server_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), CLIENT_CLOSED_REQUEST
        path = scope["path"] if scope["path"] in COUNTED_PATHS else "other"

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await (self._check(scope) or self.app)(scope, receive, send_and_record)
        except Exception:
            status = 500
            raise
        finally:
            self.server_state.metrics.count_request(path, status, time.perf_counter() - start)

    def _check(self, scope: Scope) -> Response | None:
        path = scope["path"]
        try:
            if path in GUARDED_PATHS and self.server_state.config.token is not None:
                _check_token(scope, self.server_state.config.token)
            if path in IMAGE_PATHS and scope["method"] == "POST":
                self.server_state.check_admission()
        except RequestError as error:
            return respond_with_error(error, self.server_state.metrics)
        return None


def respond_with_error(error: RequestError, metrics: Metrics, image_errors: list[dict[str, Any]] | None = None) -> Response:
    """Return the error response of a whole request, and count it."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="vitrail"'
    if error.reason in metrics.rejected:
        metrics.count_rejection(error.reason)
    return error_response(error.status, error.message, headers, **({"images": image_errors} if image_errors else {}))


def _check_token(scope: Scope, token: str) -> None:
    header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, credentials = header.partition(b" ")
    if not is_token(credentials.strip(), token) or scheme.lower() != b"bearer":
        raise RequestError(401, "the server requires a token; send it as Authorization: Bearer TOKEN", "token")
