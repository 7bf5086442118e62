"""The studio as an ASGI application: the page, its modules, and the API routes. The work is done by the ``desk``."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from json import dumps, loads
from threading import Event
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from vitrail.config import read
from vitrail.data.decode import LARGEST
from vitrail.errors import VitrailError, printable
from vitrail.studio.desk import Desk, Which
from vitrail.studio.door import Door, as_json, refused
from vitrail.studio.history import follow, told
from vitrail.studio.plans import planned
from vitrail.studio.shelf import GONE, GivenUp
from vitrail.studio.uploads import UPLOAD

log = logging.getLogger("vitrail.studio")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
QUESTION = 2**20  # bytes of a JSON request
Answer = Callable[["Studio", Request], Awaitable[Response]]


class Studio:
    """State that the routes share. ``ending``: the server is shutting down, and event streams end."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.ending = desk, False
        self.waiting: set[Event] = set()  # of running requests: once set, the work stops at its next forward pass
        self.turn = asyncio.Lock()  # one computation at a time; a waiting request can still be cancelled

    def end(self) -> None:
        self.ending = True
        for gone in list(self.waiting):
            gone.set()

    async def computed(self, request: Request, work: Callable[[], Any]) -> Any:
        """Run work in a thread, and cancel it if the client disconnects."""
        async with self.turn:
            if await request.is_disconnected():
                raise ClientDisconnect
            gone = Event()
            self.waiting.add(gone)
            watching = asyncio.create_task(_watch(request, gone))
            before = GONE.set(gone)
            try:
                return await asyncio.to_thread(work)
            finally:
                gone.set()
                self.waiting.discard(gone)
                GONE.reset(before)
                watching.cancel()


async def _watch(request: Request, gone: Event) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.1)
    gone.set()


def make_app(desk: Desk, token: str) -> Starlette:
    studio = Studio(desk)

    async def page(request: Request) -> Response:
        known = pages().get(request.path_params.get("name", "index.html"))  # looked up in the list, never a path
        if known is None:
            return refused(404, "the studio has no such page; open the address that it printed")
        return Response(known.read_bytes(), media_type=KINDS["." + known.name.rpartition(".")[2]])

    asked = [Route(f"/api/{name}", _answering(studio, answer), methods=[method]) for name, (method, answer) in API.items()]
    inside = [*asked, Route("/", page), Route("/{name}", page)]
    outside = [Route(f"/{token}", lambda _: RedirectResponse(f"/{token}/")), Mount(f"/{token}", routes=inside)]
    app = Starlette(routes=outside, middleware=[Middleware(Door, token=token)])
    app.state.studio = studio
    return app


def pages() -> dict[str, Traversable]:
    """Return the static files of the package by name."""
    return {page.name: page for page in (files("vitrail.studio") / "static").iterdir() if page.name[0] != "."}


def _answering(studio: Studio, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Turn every exception into an error response of one sentence."""

    @wraps(answer)
    async def answering(request: Request) -> Response:
        try:
            return await answer(studio, request)
        except VitrailError as error:
            gone = request.query_params.get("image", "").startswith("upload-") and "uploaded to an earlier" in str(error)
            return refused(410 if gone else 422, str(error))
        except (ClientDisconnect, GivenUp):
            return Response(status_code=499)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate" not in str(error):
                return _mistake(request)
            return refused(507, "there is not enough memory for this; try a smaller image or model")
        except OSError as error:
            return refused(422, f"a file of the model or the dataset cannot be read: {error.strerror or type(error).__name__}")
        except Exception:
            return _mistake(request)

    return answering


def _mistake(request: Request) -> Response:
    """Log the current exception, and return a short error response."""
    log.exception("the studio failed to answer %s", request.url.path.rpartition("/")[2])
    return refused(500, "internal error of the studio, see its terminal for details; try another image or model")


async def _studio(studio: Studio, request: Request) -> Response:
    own = {
        "version": version("vitrail"),
        "limits": {"bytes": UPLOAD, "pixels": LARGEST},
        "modules": sorted(name.removesuffix(".js") for name in pages() if name.endswith(".js")),
    }
    return as_json(own | await studio.computed(request, studio.desk.facts))


async def _albums(studio: Studio, request: Request) -> Response:
    """List the datasets, while one is still loading."""
    return as_json(await asyncio.to_thread(studio.desk.album.albums))


async def _pictures(studio: Studio, request: Request) -> Response:
    album, split = _word(request, "dataset"), _word(request, "split")
    start, count = _number(request, "start", 0), _number(request, "count", 24)
    return as_json(await asyncio.to_thread(studio.desk.album.page, album, split, start, count))


async def _picture(studio: Studio, request: Request) -> Response:
    id, size = _word(request, "image"), _number(request, "size", 256)
    made = await asyncio.to_thread(studio.desk.album.thumbnail, id, size)
    return Response(made, media_type="image/png")


async def _upload(studio: Studio, request: Request) -> Response:
    content = await _body(request, UPLOAD, "an image")
    name = request.query_params.get("name", "image")
    return as_json(await asyncio.to_thread(studio.desk.album.upload, name, content))


async def _trace(studio: Studio, request: Request) -> Response:
    which, picture, target = _which(request), _word(request, "image"), _maybe(request, "class")
    return _binary(await studio.computed(request, lambda: studio.desk.trace(which, picture, target)))


async def _rows(studio: Studio, request: Request) -> Response:
    which, picture, query = _which(request), _word(request, "image"), _number(request, "query")
    return _binary(await studio.computed(request, lambda: studio.desk.rows(which, picture, query)))


async def _flow(studio: Studio, request: Request) -> Response:
    which, picture, target = _which(request), _word(request, "image"), _maybe(request, "class")
    method = _word(request, "method")
    return _binary(await studio.computed(request, lambda: studio.desk.flow(which, picture, target, method)))


async def _pair(studio: Studio, request: Request) -> Response:
    which, picture = _which(request), _word(request, "image")
    layer, head, query, key = (_number(request, name) for name in ("layer", "head", "query", "key"))
    return as_json(await studio.computed(request, lambda: studio.desk.pair(which, picture, layer, head, query, key)))


async def _ablate(studio: Studio, request: Request) -> Response:
    body = await _body(request, QUESTION, "a request")
    try:
        asked = loads(body or b"{}")
    except (ValueError, RecursionError):
        raise VitrailError("the request is not JSON; send {model, image, patches, mode}") from None
    plain: dict[str, Any] = asked if isinstance(asked, dict) else {}
    which = read(plain.get("model"), str, "model"), read(plain.get("step"), int | None, "step")
    picture, seed = read(plain.get("image"), str, "image"), read(plain.get("seed", 0), int, "seed")
    patches, how = read(plain.get("patches"), tuple[int, ...], "patches"), read(plain.get("mode", "mask"), str, "mode")
    target = read(plain.get("class"), int | None, "class")
    return as_json(await studio.computed(request, lambda: studio.desk.ablate(which, picture, patches, how, seed, target)))


async def _model(studio: Studio, request: Request) -> Response:
    which = _which(request)
    return _binary(await studio.computed(request, lambda: studio.desk.about(which)))


async def _cost(studio: Studio, request: Request) -> Response:
    like = request.query_params.get("like")
    config = await asyncio.to_thread(studio.desk.shelf.config, like) if like else None
    return as_json(await asyncio.to_thread(planned, dict(request.query_params), config))


async def _run(studio: Studio, request: Request) -> Response:
    run = studio.desk.answers(_word(request, "model")).run
    return as_json(await asyncio.to_thread(told, run))


async def _events(studio: Studio, request: Request) -> Response:
    """Stream server-sent events until the run is finished, the page is closed or the studio ends."""
    run, after = studio.desk.answers(_word(request, "model")).run, _number(request, "after", -1)

    async def events() -> AsyncIterator[str]:
        async for kind, data in follow(run, after, lambda: studio.ending):
            yield f"event: {kind}\ndata: {dumps(data, allow_nan=False)}\n\n" if kind else ":\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def _confusion(studio: Studio, request: Request) -> Response:
    return as_json(await asyncio.to_thread(studio.desk.answers(_word(request, "model")).confusion))


async def _confused(studio: Studio, request: Request) -> Response:
    answers, true, said = studio.desk.answers(_word(request, "model")), _number(request, "true"), _number(request, "predicted")
    return as_json(await asyncio.to_thread(answers.confused, true, said))


async def _worst(studio: Studio, request: Request) -> Response:
    return as_json(await asyncio.to_thread(studio.desk.answers(_word(request, "model")).worst))


API: dict[str, tuple[str, Answer]] = {
    "studio": ("GET", _studio),
    "datasets": ("GET", _albums),
    "images": ("GET", _pictures),
    "image": ("GET", _picture),
    "upload": ("POST", _upload),
    "trace": ("GET", _trace),
    "attention-rows": ("GET", _rows),
    "saliency": ("GET", _flow),
    "attention-pair": ("GET", _pair),
    "ablate": ("POST", _ablate),
    "model": ("GET", _model),
    "cost": ("GET", _cost),
    "run": ("GET", _run),
    "events": ("GET", _events),
    "confusion": ("GET", _confusion),
    "confused-images": ("GET", _confused),
    "highest-loss": ("GET", _worst),
}


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _which(request: Request) -> Which:
    return _word(request, "model"), _maybe(request, "step")


def _word(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise VitrailError(f"the request has no {name}; add {name}=...")
    return value


def _maybe(request: Request, name: str) -> int | None:
    return _number(request, name) if request.query_params.get(name) else None


def _number(request: Request, name: str, otherwise: int | None = None) -> int:
    text = request.query_params.get(name)
    if text is None and otherwise is not None:
        return otherwise
    if text is None or not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 12:
        raise VitrailError(f"{name} must be an integer, got {printable((text or 'nothing')[:20])!r}; try {name}=0")
    return int(text)


async def _body(request: Request, most: int, what: str) -> bytes:
    """Read the body, but no more than is allowed."""
    pieces, length = [], 0
    async for piece in request.stream():
        length += len(piece)
        if length > most:
            raise VitrailError(f"{what} may have at most {most / 2**20:g} MiB, got more; make it smaller")
        pieces.append(piece)
    return b"".join(pieces)
