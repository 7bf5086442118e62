"""The studio as an ASGI application, and its server.

It is Starlette's alone: its only client is its own page, so it needs no schema such as FastAPI's in ``serve``.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import wraps

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from vitrail.errors import VitrailError
from vitrail.studio.middleware import AccessMiddleware
from vitrail.studio.model_store import Cancelled
from vitrail.studio.routes import API, Handler, StudioState, page
from vitrail.studio.service import StudioService
from vitrail.web.http import CLIENT_CLOSED_REQUEST, error_response
from vitrail.web.server import Server

logger = logging.getLogger("vitrail.studio")
SHUTDOWN_TIMEOUT = 3.0  # seconds to finish requests


def create_studio_app(service: StudioService, token: str) -> Starlette:
    studio = StudioState(service)
    api_routes = [
        Route(f"/api/{name}", _with_error_responses(studio, handler), methods=[method])
        for name, (method, handler) in API.items()
    ]
    routes = [*api_routes, Route("/", page), Route("/{name}", page)]
    mounts = [Route(f"/{token}", lambda _: RedirectResponse(f"/{token}/")), Mount(f"/{token}", routes=routes)]
    app = Starlette(routes=mounts, middleware=[Middleware(AccessMiddleware, token=token)])
    app.state.studio = studio
    return app


def run_studio_server(app: Starlette, listener: socket.socket, on_start: Callable[[], None]) -> None:
    """Serve the app until Ctrl-C; ``on_start`` is called once requests are accepted."""
    Server(app, app.state.studio.shut_down, SHUTDOWN_TIMEOUT, on_start, lifespan="off").run(sockets=[listener])


def _with_error_responses(studio: StudioState, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Turn every exception into an error response of one sentence."""

    @wraps(handler)
    async def wrapped(request: Request) -> Response:
        try:
            return await handler(studio, request)
        except VitrailError as error:
            is_upload = request.query_params.get("image", "").startswith("upload-")
            is_gone = is_upload and "uploaded to an earlier" in str(error)
            return error_response(410 if is_gone else 422, str(error))
        except (ClientDisconnect, Cancelled):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate" not in str(error):
                return _internal_error(request)
            return error_response(507, "there is not enough memory for this; try a smaller image or model")
        except OSError as error:
            return error_response(
                422, f"a file of the model or the dataset cannot be read: {error.strerror or type(error).__name__}"
            )
        except Exception:
            return _internal_error(request)

    return wrapped


def _internal_error(request: Request) -> Response:
    """Log the current exception, and return a short error response."""
    logger.exception("the studio failed to answer %s", request.url.path.rpartition("/")[2])
    return error_response(500, "internal error of the studio, see its terminal for details; try another image or model")
