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

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the URL holds the token
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AccessMiddleware:
    """ASGI middleware that refuses foreign requests and adds security headers."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._check(scope)
        if refusal is not None and Headers(scope=scope).get("sec-fetch-dest") == "document":  # shown in a browser tab
            refusal = Response(f"Vitrail: {json.loads(bytes(refusal.body))['error']}.", 403, media_type="text/plain")
        await (refusal or self.app)(scope, receive, _with_security_headers(send))

    def _check(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _hostname(f"//{host}") not in LOCAL_HOSTS:
            return as_error_response(
                403, "this studio answers only to 127.0.0.1 and localhost; open the address that it printed"
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        is_link = (
            scope["method"] == "GET" and scope["path"] == f"/{self.token}/" and headers.get("sec-fetch-dest") == "document"
        )
        cross_site = site not in ("same-origin", "none") and not is_link  # a foreign link may open the page, and nothing else
        if (origin is not None and origin != f"http://{host}") or cross_site:
            return as_error_response(403, "the request comes from another page; open the address that the studio printed")
        request_token = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if not hmac.compare_digest(request_token.encode(), self.token.encode()):  # constant time
            return as_error_response(403, "the address does not contain this studio's token; open the address that it printed")
        return None


def as_error_response(status: int, message: str) -> Response:
    return as_json_response({"error": message}, status)


def as_json_response(content: object, status: int = 200) -> Response:
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _with_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
        await send(message)

    return send_with_headers
