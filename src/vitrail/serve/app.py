"""The FastAPI application: state, pages and error handlers. The routes for images are in ``work``."""

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

from vitrail.errors import printable
from vitrail.export.engine import Engine
from vitrail.serve.batcher import Batcher
from vitrail.serve.door import LEFT, WORK, Door, House, as_json, refused
from vitrail.serve.metrics import Metrics
from vitrail.serve.page import docs_page, front_page
from vitrail.serve.schema import State, failures, success
from vitrail.serve.settings import Serving
from vitrail.serve.trouble import Trouble, resting
from vitrail.serve.work import add_work

log = logging.getLogger("vitrail.serve")
SILENT: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)  # no telemetry
HTML = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src blob:; form-action 'none'; frame-ancestors 'none'"
}


def make_app(
    open_engine: Callable[[], Engine],
    how: Serving | None = None,
    source: str = "a model",
    opened: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Build the application; ``opened`` is called once the engine has loaded or failed."""
    how, metrics = how or Serving(), Metrics()
    batcher = Batcher(open_engine, how, metrics)
    house = House(how, batcher, metrics, Path(source).name or source)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start(opened)
        yield
        await asyncio.to_thread(batcher.close)

    app = FastAPI(
        title="Vitrail", version=version("vitrail"), lifespan=lifespan, docs_url=None, redoc_url=None, telemetry=SILENT
    )
    app.state.house = house
    app.add_middleware(Door, house=house)
    _gauges(house)
    _handlers(app, house)
    add_work(app, house)
    _state(app, house)
    _describe(app, how.token is not None)
    return app


def _state(app: FastAPI, house: House) -> None:
    state: dict[str, Any] = {"response_class": Response}

    @app.get("/healthz", responses={**success(State, "The server is alive."), **failures(503)}, **state)
    async def healthz() -> Response:
        """Liveness: the process runs and its compute thread is alive."""
        alive = house.batcher.alive()
        return (
            as_json({"status": "alive"})
            if alive
            else refused(Trouble(503, "the compute thread has died", "dead"), house.metrics)
        )

    @app.get("/readyz", responses={**success(State, "The server accepts images."), **failures(503)}, **state)
    async def readyz() -> Response:
        """Readiness: the server accepts images, not while it loads its model or shuts down."""
        if house.draining or house.batcher.engine is None:
            what = "draining" if house.draining else "loading its model"
            return as_json({"error": resting(what).sentence}, 503, {"Retry-After": "1"})
        return as_json({"status": "ready"})

    text: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text format."}
    }
    guarded = failures(401) if house.how.token else {}

    @app.get("/metrics", responses={**text, **guarded}, **state)
    async def metrics() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(house.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    async def front() -> Response:
        engine = house.batcher.engine if house.how.token is None else None  # without a token, nothing about the model is shown
        return Response(front_page(engine, house.source, house.how), 200, HTML, "text/html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page(app.openapi()), 200, HTML, "text/html")


def _gauges(house: House) -> None:
    batcher = house.batcher
    house.metrics.gauges = {
        "vitrail_images_in_flight": ("Images being decoded, queued or computed.", lambda: batcher.inside),
        "vitrail_queue_length": ("Decoded images that wait for a batch.", lambda: batcher.waiting),
        "vitrail_body_bytes": ("Bytes of request bodies in memory.", lambda: batcher.bytes),
        "vitrail_ready": ("Whether the server accepts images.", lambda: batcher.engine is not None and not house.draining),
    }


def _handlers(app: FastAPI, house: House) -> None:
    """Give every error the same JSON shape."""

    @app.exception_handler(Trouble)
    async def trouble(_: Request, error: Trouble) -> Response:
        return refused(error, house.metrics)

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=LEFT)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        sentence = f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}, got {str(first.get('input'))[:80]!r}"
        return as_json({"error": printable(sentence)}, 422)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return as_json({"error": f"{error.detail.lower()}; see /docs"}, error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return as_json({"error": "internal server error; see the server's log"}, 500)


def _describe(app: FastAPI, token: bool) -> None:
    """Correct the OpenAPI schema: without FastAPI's own error models, and with bearer authentication if there is a token."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
            if token:
                schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                for path in (*WORK, "/metrics"):
                    next(iter(schema["paths"][path].values()))["security"] = [{"token": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
