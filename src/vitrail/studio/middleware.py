"""Access control: only a page served by this studio to this machine may send requests.

The token is the first part of every path, so a foreign page cannot guess one. The Host header must name this machine, which
prevents DNS rebinding, and the Origin header, if there is one, this server.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.web.http import error_response, is_token
from vitrail.web.sockets import LOCAL_HOSTS

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
        app, reason = self.app, self._refusal(scope)
        if reason is not None:
            in_tab = Headers(scope=scope).get("sec-fetch-dest") == "document"  # of a browser
            app = Response(f"Vitrail: {reason}.", 403, media_type="text/plain") if in_tab else error_response(403, reason)
        await app(scope, receive, _with_security_headers(send))

    def _refusal(self, scope: Scope) -> str | None:
        """Return why a request is refused, or None if it is not."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _hostname(f"//{host}") not in LOCAL_HOSTS:
            return "this studio answers only to 127.0.0.1 and localhost; open the address that it printed"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        is_link = (
            scope["method"] == "GET" and scope["path"] == f"/{self.token}/" and headers.get("sec-fetch-dest") == "document"
        )
        cross_site = site not in ("same-origin", "none") and not is_link  # a foreign link may open the page, and nothing else
        if (origin is not None and origin != f"http://{host}") or cross_site:
            return "the request comes from another page; open the address that the studio printed"
        request_token = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if not is_token(request_token.encode(), self.token):
            return "the address does not contain this studio's token; open the address that it printed"
        return None


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
