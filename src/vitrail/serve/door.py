"""ASGI middleware: authentication and admission control before a request's body is read, and request metrics."""

import hmac
import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.serve.batcher import Batcher
from vitrail.serve.metrics import Metrics
from vitrail.serve.settings import Serving
from vitrail.serve.trouble import Trouble, resting

WORK = ("/predict", "/explain")
GUARDED = (*WORK, "/metrics")
PATHS = (*GUARDED, "/", "/docs", "/openapi.json", "/healthz", "/readyz")
LEFT = 499  # nginx's status for a client that closed the connection


@dataclass
class House:
    """State shared by the routes and the middleware."""

    how: Serving
    batcher: Batcher
    metrics: Metrics
    source: str
    draining: bool = field(default=False)

    def check(self) -> None:
        if self.draining:
            raise resting("draining")
        self.batcher.check()


class Door:
    """Refuse requests without a token or while the server is full, and count every request."""

    def __init__(self, app: ASGIApp, house: House) -> None:
        self.app, self.house = app, house

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), LEFT
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await (self._refusal(scope) or self.app)(scope, receive, noted)
        except Exception:
            status = 500
            raise
        finally:
            self.house.metrics.request(path, status, time.perf_counter() - start)

    def _refusal(self, scope: Scope) -> Response | None:
        path = scope["path"]
        try:
            if path in GUARDED and self.house.how.token is not None:
                _check_token(scope, self.house.how.token)
            if path in WORK and scope["method"] == "POST":
                self.house.check()
        except Trouble as trouble:
            return refused(trouble, self.house.metrics)
        return None


def refused(trouble: Trouble, metrics: Metrics, pictures: list[dict[str, Any]] | None = None) -> Response:
    """Return the error response of a whole request, and count it."""
    headers = {}
    if trouble.retry is not None:
        headers["Retry-After"] = str(max(1, math.ceil(trouble.retry)))
    if trouble.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="vitrail"'
    if trouble.reason in metrics.rejected:
        metrics.reject(trouble.reason)
    answer = {"error": trouble.sentence} | ({"images": pictures} if pictures else {})
    return as_json(answer, trouble.status, headers)


def as_json(answer: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(answer, allow_nan=False), status, headers, "application/json")


def _check_token(scope: Scope, token: str) -> None:
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, word = given.partition(b" ")
    right = hmac.compare_digest(word.strip(), token.encode())  # in constant time
    if kind.lower() != b"bearer" or not right:
        raise Trouble(401, "the server requires a token; send it as Authorization: Bearer TOKEN", "token")
