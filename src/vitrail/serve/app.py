"""The application: state, pages and error handlers. The routes for images are in ``routes``.

It is FastAPI's, since clients that others write need its OpenAPI schema; the studio's only client is its own page.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vitrail.inference.predictor import Predictor
from vitrail.serve.batcher import Batcher
from vitrail.serve.config import ServeConfig
from vitrail.serve.errors import RequestError, not_ready
from vitrail.serve.metrics import Metrics
from vitrail.serve.middleware import IMAGE_PATHS, AdmissionMiddleware, ServerState, respond_with_error
from vitrail.serve.pages import docs_page, front_page
from vitrail.serve.routes import add_routes, invalid_parameter
from vitrail.serve.schema import StatusResponse, error_responses, success_response
from vitrail.web.http import CLIENT_CLOSED_REQUEST, error_response, json_response

log = logging.getLogger("vitrail.serve")
NO_TELEMETRY: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)  # no telemetry
HTML_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src blob:; form-action 'none'; frame-ancestors 'none'"
}


def create_serve_app(
    open_predictor: Callable[[], Predictor],
    config: ServeConfig | None = None,
    source: str = "a model",
    on_loaded: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Build the application; ``on_loaded`` is called once the predictor has loaded or failed."""
    config, metrics = config or ServeConfig(), Metrics()
    batcher = Batcher(open_predictor, config, metrics)
    server_state = ServerState(config, batcher, metrics, Path(source).name or source)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start(on_loaded)
        yield
        await asyncio.to_thread(batcher.close)

    app = FastAPI(
        title="Vitrail", version=version("vitrail"), lifespan=lifespan, docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY
    )
    app.state.server_state = server_state
    app.add_middleware(AdmissionMiddleware, server_state=server_state)
    _add_gauges(server_state)
    _add_error_handlers(app, server_state)
    add_routes(app, server_state)
    _add_status_routes(app, server_state)
    _customise_openapi(app, config.token is not None)
    return app


def _add_status_routes(app: FastAPI, server_state: ServerState) -> None:
    route_options: dict[str, Any] = {"response_class": Response}

    @app.get(
        "/healthz",
        responses={**success_response(StatusResponse, "The server is alive."), **error_responses(503)},
        **route_options,
    )
    async def healthz() -> Response:
        """Liveness: the process runs and its compute thread is alive."""
        alive = server_state.batcher.is_alive()
        return (
            json_response({"status": "alive"})
            if alive
            else respond_with_error(RequestError(503, "the compute thread has died", "dead"), server_state.metrics)
        )

    @app.get(
        "/readyz",
        responses={**success_response(StatusResponse, "The server accepts images."), **error_responses(503)},
        **route_options,
    )
    async def readyz() -> Response:
        """Readiness: the server accepts images, not while it loads its model or shuts down."""
        if server_state.draining or server_state.batcher.predictor is None:
            status = "draining" if server_state.draining else "loading its model"
            return error_response(503, not_ready(status).message, {"Retry-After": "1"})
        return json_response({"status": "ready"})

    text_response: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text format."}
    }
    auth_failures = error_responses(401) if server_state.config.token else {}

    @app.get("/metrics", responses={**text_response, **auth_failures}, **route_options)
    async def metrics() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(server_state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    async def front() -> Response:
        # Nothing about the model is shown if a token is required.
        predictor = server_state.batcher.predictor if server_state.config.token is None else None
        return Response(front_page(predictor, server_state.source, server_state.config), 200, HTML_HEADERS, "text/html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page(app.openapi()), 200, HTML_HEADERS, "text/html")


def _add_gauges(server_state: ServerState) -> None:
    batcher = server_state.batcher
    server_state.metrics.gauges = {
        "vitrail_images_in_flight": ("Images being decoded, queued or computed.", lambda: batcher.in_flight),
        "vitrail_queue_length": ("Decoded images that wait for a batch.", lambda: batcher.queue_length),
        "vitrail_body_bytes": ("Bytes of request bodies in memory.", lambda: batcher.body_bytes),
        "vitrail_ready": (
            "Whether the server accepts images.",
            lambda: batcher.predictor is not None and not server_state.draining,
        ),
    }


def _add_error_handlers(app: FastAPI, server_state: ServerState) -> None:
    """Give every error the same JSON shape."""

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> Response:
        return respond_with_error(error, server_state.metrics)

    @app.exception_handler(ClientDisconnect)
    async def client_disconnected(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return error_response(422, invalid_parameter(error))

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, f"{error.detail.lower()}; see /docs", dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(500, "internal server error; see the server's log")


def _customise_openapi(app: FastAPI, token: bool) -> None:
    """Correct the OpenAPI schema: without FastAPI's own error models, and with bearer authentication if there is a token."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
            if token:
                schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                for path in (*IMAGE_PATHS, "/metrics"):
                    next(iter(schema["paths"][path].values()))["security"] = [{"token": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
