"""Access control: only a page served by this studio to this machine may send requests.

The token is the first part of every path, so a foreign page cannot guess one. The Host header must name this machine, which
prevents DNS rebinding, and the Origin header, if there is one, this server.
"""

import hmac
import json
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the URL holds the token
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Door:
    """ASGI middleware that refuses foreign requests and adds security headers."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None and Headers(scope=scope).get("sec-fetch-dest") == "document":  # shown in a browser tab
            refusal = Response(f"Vitrail: {json.loads(bytes(refusal.body))['error']}.", 403, media_type="text/plain")
        await (refusal or self.app)(scope, receive, _dressed(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _name(f"//{host}") not in LOCAL:
            return refused(403, "this studio answers only to 127.0.0.1 and localhost; open the address that it printed")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        link = scope["method"] == "GET" and scope["path"] == f"/{self.token}/" and headers.get("sec-fetch-dest") == "document"
        foreign = site not in ("same-origin", "none") and not link  # a foreign link may open the page, and nothing else
        if (origin is not None and origin != f"http://{host}") or foreign:
            return refused(403, "the request comes from another page; open the address that the studio printed")
        given = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if not hmac.compare_digest(given.encode(), self.token.encode()):  # constant time
            return refused(403, "the address does not contain this studio's token; open the address that it printed")
        return None


def refused(status: int, sentence: str) -> Response:
    return as_json({"error": sentence}, status)


def as_json(answer: object, status: int = 200) -> Response:
    return Response(json.dumps(answer, allow_nan=False), status, media_type="application/json")


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _dressed(send: Send) -> Send:
    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return dressed
