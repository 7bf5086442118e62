"""The routes of the studio: each parses its parameters and calls one function of the service."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from json import dumps, loads
from threading import Event
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from vitrail.config import parse_value
from vitrail.data.decode import MAX_IMAGE_PIXELS
from vitrail.errors import VitrailError, printable
from vitrail.studio.cost_calculator import cost_of
from vitrail.studio.explained_model import Selection
from vitrail.studio.run_log import run_summary, stream_events
from vitrail.studio.service import ModelRef, StudioService
from vitrail.studio.uploads import MAX_UPLOAD_BYTES
from vitrail.web.http import error_response, json_response, on_disconnect, read_chunks

MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_JSON_BYTES = 2**20  # bytes of a JSON request
MAX_PATCHES = 2**20  # patches in one request
Handler = Callable[["StudioState", Request], Awaitable[Response]]


class StudioState:
    """State that the routes share. ``shutting_down``: event streams end."""

    def __init__(self, service: StudioService) -> None:
        self.service, self.shutting_down = service, False
        self.cancel_events: set[Event] = set()  # of running requests: once set, the work stops at its next forward pass
        self.compute_lock = asyncio.Lock()  # one computation at a time; a waiting request can still be cancelled

    def shut_down(self) -> None:
        self.shutting_down = True
        for cancel_event in list(self.cancel_events):
            cancel_event.set()

    async def run_cancellable(self, request: Request, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run work in a thread; its last argument is an event, which is set if the client disconnects."""
        async with self.compute_lock:
            if await request.is_disconnected():
                raise ClientDisconnect
            cancel_event = Event()
            self.cancel_events.add(cancel_event)
            try:
                async with on_disconnect(request, cancel_event.set):
                    return await asyncio.to_thread(work, *arguments, cancel_event)
            finally:
                cancel_event.set()
                self.cancel_events.discard(cancel_event)


def static_files() -> dict[str, Traversable]:
    """Return the static files of the package by name."""
    return {file.name: file for file in (files("vitrail.studio") / "static").iterdir() if file.name[0] != "."}


async def page(request: Request) -> Response:
    file = static_files().get(request.path_params.get("name", "index.html"))  # looked up in the list, never a path
    if file is None:
        return error_response(404, "the studio has no such page; open the address that it printed")
    return Response(file.read_bytes(), media_type=MEDIA_TYPES["." + file.name.rpartition(".")[2]])


async def _studio(studio: StudioState, request: Request) -> Response:
    server_info = {
        "version": version("vitrail"),
        "limits": {"bytes": MAX_UPLOAD_BYTES, "pixels": MAX_IMAGE_PIXELS},
        "modules": sorted(name.removesuffix(".js") for name in static_files() if name.endswith(".js")),
    }
    return json_response(server_info | await studio.run_cancellable(request, lambda _: studio.service.info()))


async def _datasets(studio: StudioState, request: Request) -> Response:
    """List the datasets, while one is still loading."""
    return json_response(await asyncio.to_thread(studio.service.library.list_datasets))


async def _list_images(studio: StudioState, request: Request) -> Response:
    dataset, split = _text_param(request, "dataset"), _text_param(request, "split")
    start, count = _int_param(request, "start", 0), _int_param(request, "count", 24)
    return json_response(await asyncio.to_thread(studio.service.library.page, dataset, split, start, count))


async def _image(studio: StudioState, request: Request) -> Response:
    id, size = _text_param(request, "image"), _int_param(request, "size", 256)
    with_boxes = bool(request.query_params.get("boxes"))
    png = await asyncio.to_thread(studio.service.library.thumbnail, id, size, with_boxes)
    return Response(png, media_type="image/png")


async def _upload(studio: StudioState, request: Request) -> Response:
    content = await _read_body(request, MAX_UPLOAD_BYTES, "an image")
    name = request.query_params.get("name", "image")
    return json_response(await asyncio.to_thread(studio.service.library.upload, name, content))


async def _trace(studio: StudioState, request: Request) -> Response:
    model_ref, image, target = _model_ref(request), _text_param(request, "image"), _optional_int_param(request, "class")
    selection = _selection_param(request)
    return _binary_response(await studio.run_cancellable(request, studio.service.trace, model_ref, image, target, selection))


async def _attention_rows(studio: StudioState, request: Request) -> Response:
    model_ref, image, query = _model_ref(request), _text_param(request, "image"), _int_param(request, "query")
    return _binary_response(await studio.run_cancellable(request, studio.service.attention_rows, model_ref, image, query))


async def _saliency(studio: StudioState, request: Request) -> Response:
    model_ref, image, target = _model_ref(request), _text_param(request, "image"), _optional_int_param(request, "class")
    method, selection = _text_param(request, "method"), _selection_param(request)
    return _binary_response(
        await studio.run_cancellable(request, studio.service.saliency, model_ref, image, target, method, selection)
    )


async def _mask(studio: StudioState, request: Request) -> Response:
    model_ref, image, patches = _model_ref(request), _text_param(request, "image"), _patches_param(request)
    mode, seed = request.query_params.get("mode", "mask"), _int_param(request, "seed", 0)
    return _binary_response(await studio.run_cancellable(request, studio.service.mask, model_ref, image, patches, mode, seed))


async def _boxes(studio: StudioState, request: Request) -> Response:
    model_ref, image, patches = _model_ref(request), _text_param(request, "image"), _patches_param(request)
    mode, seed = request.query_params.get("mode", "mask"), _int_param(request, "seed", 0)
    return _binary_response(await studio.run_cancellable(request, studio.service.boxes, model_ref, image, patches, mode, seed))


async def _attention_pair(studio: StudioState, request: Request) -> Response:
    model_ref, image = _model_ref(request), _text_param(request, "image")
    layer, head, query, key = (_int_param(request, name) for name in ("layer", "head", "query", "key"))
    return json_response(
        await studio.run_cancellable(request, studio.service.attention_pair, model_ref, image, layer, head, query, key)
    )


async def _ablate(studio: StudioState, request: Request) -> Response:
    body = await _read_body(request, MAX_JSON_BYTES, "a request")
    try:
        parsed = loads(body or b"{}")
    except (ValueError, RecursionError):
        raise VitrailError("the request is not JSON; send {model, image, patches, mode}") from None
    fields: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    model_ref = parse_value(fields.get("model"), str, "model"), parse_value(fields.get("step"), int | None, "step")
    image, seed = parse_value(fields.get("image"), str, "image"), parse_value(fields.get("seed", 0), int, "seed")
    patches = parse_value(fields.get("patches"), tuple[int, ...], "patches")
    mode = parse_value(fields.get("mode", "mask"), str, "mode")
    target = parse_value(fields.get("class"), int | None, "class")
    pixel = parse_value(fields.get("pixel"), tuple[int, int] | None, "pixel")
    selection = Selection(pixel, parse_value(fields.get("box"), int | None, "box"))
    return json_response(
        await studio.run_cancellable(request, studio.service.ablate, model_ref, image, patches, mode, seed, target, selection)
    )


async def _model(studio: StudioState, request: Request) -> Response:
    model_ref = _model_ref(request)
    return _binary_response(await studio.run_cancellable(request, studio.service.model_view, model_ref))


async def _cost(studio: StudioState, request: Request) -> Response:
    like = request.query_params.get("like")
    config = await asyncio.to_thread(studio.service.store.config, like) if like else None
    return json_response(await asyncio.to_thread(cost_of, dict(request.query_params), config))


async def _run(studio: StudioState, request: Request) -> Response:
    run = studio.service.predictions(_text_param(request, "model")).run
    return json_response(await asyncio.to_thread(run_summary, run))


async def _events(studio: StudioState, request: Request) -> Response:
    """Stream server-sent events until the run is finished, the page is closed or the studio ends."""
    run, after = studio.service.predictions(_text_param(request, "model")).run, _int_param(request, "after", -1)

    async def events() -> AsyncIterator[str]:
        async for kind, data in stream_events(run, after, lambda: studio.shutting_down):
            yield f"event: {kind}\ndata: {dumps(data, allow_nan=False)}\n\n" if kind else ":\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def _confusion(studio: StudioState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(studio.service.predictions(_text_param(request, "model")).confusion))


async def _confused_images(studio: StudioState, request: Request) -> Response:
    predictions = studio.service.predictions(_text_param(request, "model"))
    true, predicted = _int_param(request, "true"), _int_param(request, "predicted")
    return json_response(await asyncio.to_thread(predictions.confused_images, true, predicted))


async def _class_metrics(studio: StudioState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(studio.service.predictions(_text_param(request, "model")).class_metrics))


async def _highest_loss(studio: StudioState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(studio.service.predictions(_text_param(request, "model")).highest_loss))


async def _lowest_precision(studio: StudioState, request: Request) -> Response:
    predictions = studio.service.predictions(_text_param(request, "model"))
    return json_response(await asyncio.to_thread(predictions.lowest_precision))


API: dict[str, tuple[str, Handler]] = {
    "studio": ("GET", _studio),
    "datasets": ("GET", _datasets),
    "images": ("GET", _list_images),
    "image": ("GET", _image),
    "upload": ("POST", _upload),
    "trace": ("GET", _trace),
    "attention-rows": ("GET", _attention_rows),
    "saliency": ("GET", _saliency),
    "mask": ("GET", _mask),
    "boxes": ("GET", _boxes),
    "attention-pair": ("GET", _attention_pair),
    "ablate": ("POST", _ablate),
    "model": ("GET", _model),
    "cost": ("GET", _cost),
    "run": ("GET", _run),
    "events": ("GET", _events),
    "confusion": ("GET", _confusion),
    "confused-images": ("GET", _confused_images),
    "class-metrics": ("GET", _class_metrics),
    "highest-loss": ("GET", _highest_loss),
    "lowest-precision": ("GET", _lowest_precision),
}


def _binary_response(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _model_ref(request: Request) -> ModelRef:
    return _text_param(request, "model"), _optional_int_param(request, "step")


def _text_param(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise VitrailError(f"the request has no {name}; add {name}=...")
    return value


def _optional_int_param(request: Request, name: str) -> int | None:
    return _int_param(request, name) if request.query_params.get(name) else None


def _selection_param(request: Request) -> Selection:
    text, box = request.query_params.get("pixel"), _optional_int_param(request, "box")
    if not text:
        return Selection(box=box)
    match = re.fullmatch(r"(\d{1,6}),(\d{1,6})", text, re.ASCII)
    if match is None:
        raise VitrailError(f"pixel must be COLUMN,ROW of the model's input, got {printable(text[:20])!r}; try pixel=0,0")
    return Selection((int(match[1]), int(match[2])), box)


def _patches_param(request: Request) -> tuple[int, ...]:
    """Return patches that are given as ranges, such as 3-7,12."""
    patches: list[int] = []
    for text in filter(None, request.query_params.get("patches", "").split(",")):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text, re.ASCII)
        if match is None or len(patches) > MAX_PATCHES:
            raise VitrailError(f"patches must be ranges such as 3-7,12, got {printable(text[:20])!r}; try patches=0")
        patches += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(patches)


def _int_param(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 12:
        raise VitrailError(f"{name} must be an integer, got {printable((text or 'nothing')[:20])!r}; try {name}=0")
    return int(text)


async def _read_body(request: Request, max_bytes: int, what: str) -> bytes:
    error = VitrailError(f"{what} may have at most {max_bytes / 2**20:g} MiB, got more; make it smaller")
    return b"".join([chunk async for chunk in read_chunks(request, max_bytes, error)])
