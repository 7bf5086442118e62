"""Limited bodies and clients that disconnect, without a server."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from vitrail.web.http import error_response, is_token, on_disconnect, read_chunks


def request_of(*messages: dict[str, Any]) -> Request:
    """A request whose client sends these messages and then stays silent."""
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def body(content: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": content, "more_body": more}


def test_a_body_is_read_up_to_its_limit_and_no_further() -> None:
    async def read(max_bytes: int) -> list[bytes]:
        request = request_of(body(b"abc", True), body(b"defg", True), body(b"never read", False))
        got = []
        try:
            async for chunk in read_chunks(request, max_bytes, ValueError("too large")):
                got.append(chunk)
        except ValueError:
            return [*got, b"too large"]
        return got

    assert asyncio.run(read(100)) == [b"abc", b"defg", b"never read", b""]
    assert asyncio.run(read(17)) == [b"abc", b"defg", b"never read", b""]
    assert asyncio.run(read(6)) == [b"abc", b"too large"]


@pytest.mark.parametrize("disconnects", [True, False])
def test_a_disconnect_is_noticed_only_within_the_context(disconnects: bool) -> None:
    async def run() -> list[str]:
        calls: list[str] = []
        request = request_of(body(b"", False), *([{"type": "http.disconnect"}] if disconnects else []))
        async with on_disconnect(request, lambda: calls.append("gone")):
            await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) <= 2  # nothing goes on waiting
        return calls

    assert asyncio.run(run()) == (["gone"] if disconnects else [])


def test_an_error_is_json_with_its_details() -> None:
    response = error_response(418, "a teapot", {"Retry-After": "1"}, images=[])
    assert (response.status_code, response.body) == (418, b'{"error": "a teapot", "images": []}')
    assert response.headers["retry-after"] == "1"
    assert is_token("schlüssel".encode(), "schlüssel")
    assert not is_token(b"schl", "schlüssel")
