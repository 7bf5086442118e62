"""Parts of HTTP requests and responses: errors as JSON, limited bodies, tokens, and clients that disconnect."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that closed the connection


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content, allow_nan=False), status, headers, "application/json")


def error_response(status: int, message: str, headers: dict[str, str] | None = None, **details: Any) -> Response:
    """Return an error as JSON: its message, and details if there are any."""
    return json_response({"error": message, **details}, status, headers)


def is_token(text: bytes, token: str) -> bool:
    """Compare in constant time, so that a token cannot be guessed letter by letter."""
    return hmac.compare_digest(text, token.encode())


async def read_chunks(request: Request, max_bytes: int, error: Exception) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; raises the error as soon as it exceeds the limit."""
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > max_bytes:
            raise error
        yield chunk


@asynccontextmanager
async def on_disconnect(request: Request, callback: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``callback`` if the client disconnects within this context. The body must have been read."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        callback()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
