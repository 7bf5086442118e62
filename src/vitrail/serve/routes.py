"""Routes ``/predict``, ``/segment`` and ``/explain``: read the images, submit them to the batcher, write the response."""

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect

from vitrail.errors import did_you_mean, printable
from vitrail.explain.saliency import SALIENCY_METHODS
from vitrail.inference.predictor import Predictor
from vitrail.serve.batcher import Finish, Job, QueuedImage
from vitrail.serve.errors import RequestError, not_ready
from vitrail.serve.middleware import ServerState, respond_with_error
from vitrail.serve.request_body import read_images
from vitrail.serve.responses import box_step, prediction_json, saliency_job, saliency_overlay
from vitrail.serve.schema import BODY, ExplainResponse, PredictResponse, SegmentResponse, error_responses, success_response
from vitrail.serve.segmentation import Segmented, fractions_step, require_segmentation, segment_step
from vitrail.web.http import json_response, on_disconnect

SaliencyMethod = StrEnum("SaliencyMethod", {name: name for name in SALIENCY_METHODS})  # type: ignore[misc]  # members from SALIENCY_METHODS


class MaskOutput(StrEnum):
    """How the classes of pixels are written."""

    RLE = "rle"
    MASK = "mask"
    OVERLAY = "overlay"


DEFAULT_METHOD = SaliencyMethod("rollout")
MAX_LABELS = 100_000
MAX_BOXES = 10_000
TopParameter = Annotated[int | None, Query(ge=1, le=MAX_LABELS, description="Number of labels per image, from a classifier.")]
PARAMETERS = {  # what each must be, and a value that works
    "top": (f"a whole number from 1 to {MAX_LABELS:,}", "5"),
    "output": (f"one of {', '.join(MaskOutput)}", str(MaskOutput.RLE)),
    "box": (f"a whole number from 0 to {MAX_BOXES:,}", "0"),
    "method": (f"one of {', '.join(SALIENCY_METHODS)}", str(DEFAULT_METHOD)),
}


def add_routes(app: FastAPI, server_state: ServerState) -> None:
    statuses = (400, 408, 413, 415, 422, 500, 503, 504) + ((401,) if server_state.config.token else ())
    route_options: dict[str, Any] = {"openapi_extra": {"requestBody": BODY}, "response_class": Response}

    @app.post("/predict", responses={**success_response(PredictResponse), **error_responses(*statuses)}, **route_options)
    async def predict(request: Request, top: TopParameter = None) -> Response:
        """Predict images: one as the body, or any number as files of a multipart form.

        200 if at least one image succeeded; the others have an error each. If all failed, the status is that of the first.
        """
        _check_names(request, "top")
        task, count = _require_predictor(server_state).task, top or server_state.config.top_k
        finish = fractions_step(task)
        names, outcomes = await _run_images(server_state, request, finish=finish)
        return _respond(
            server_state, names, outcomes, "predictions", lambda row: row if finish else prediction_json(row, task, count)
        )

    png = {"image/png": {"schema": {"type": "string", "format": "binary"}}}

    @app.post(
        "/segment",
        responses={**success_response(SegmentResponse, content=png), **error_responses(*statuses, 501)},
        **route_options,
    )
    async def segment(
        request: Request,
        output: Annotated[
            MaskOutput | None,
            Query(
                description="Run lengths of each class; a PNG of the classes, of the image's size; or one of their colours "
                "over the model's input. Default: rle, or mask with Accept: image/png."
            ),
        ] = None,
    ) -> Response:
        """Predict the class of each pixel; with ``Accept: image/png`` and a single image, the response is the PNG itself."""
        _check_names(request, "output")
        wants_png = "image/png" in request.headers.get("accept", "")
        kind = output or (MaskOutput.MASK if wants_png else MaskOutput.RLE)
        finish = segment_step(require_segmentation(_require_predictor(server_state)), str(kind))
        names, outcomes = await _run_images(server_state, request, finish=finish)
        if wants_png and len(outcomes) == 1 and isinstance(outcomes[0], Segmented) and outcomes[0].png is not None:
            server_state.metrics.count_images("predicted")
            return Response(outcomes[0].png, media_type="image/png")
        return _respond(server_state, names, outcomes, "segmentations", Segmented.to_json)

    png_or_json = success_response(ExplainResponse, content=png)

    @app.post("/explain", responses={**png_or_json, **error_responses(*statuses, 501)}, **route_options)
    async def explain(
        request: Request,
        method: Annotated[SaliencyMethod, Query(description="Saliency method.")] = DEFAULT_METHOD,
        target: Annotated[
            str | None,
            Query(
                alias="class", description="Class to explain, or the index of another output; default: the most probable class."
            ),
        ] = None,
        box: Annotated[
            int | None,
            Query(ge=0, le=MAX_BOXES, description="Of a detection model, the detection to explain: 0 has the highest score."),
        ] = None,
    ) -> Response:
        """Compute saliency maps; with ``Accept: image/png`` and a single image, drawn over the model's input."""
        _check_names(request, "method", "class", "box")
        predictor = _require_predictor(server_state)
        job = saliency_job(predictor, str(method), target, box)
        names, outcomes = await _run_images(server_state, request, job, box_step(predictor.task))
        if "image/png" in request.headers.get("accept", "") and len(outcomes) == 1 and isinstance(outcomes[0], dict):
            server_state.metrics.count_images("predicted")
            outcome = outcomes[0]
            drawing = await asyncio.to_thread(saliency_overlay, outcome["pixels"], outcome["map"], outcome.get("input_box"))
            return Response(drawing, media_type="image/png")
        return _respond(server_state, names, outcomes, "explanations", _saliency_json)


def invalid_parameter(error: RequestValidationError) -> str:
    """Return one sentence about the first parameter with an invalid value."""
    first = error.errors()[0]
    name, value = ".".join(map(str, first["loc"][1:])), str(first.get("input"))[:80]
    rule, example = PARAMETERS.get(name, ("as /docs describes it", ""))
    return printable(f"{name} must be {rule}, got {value!r}" + (f"; try {name}={example}" if example else ""))


def _check_names(request: Request, *known: str) -> None:
    """Refuse a misspelt parameter, which would have no effect."""
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name[:80], known) or f"; there is {' and '.join(known)}"
            raise RequestError(422, printable(f"{request.url.path} has no parameter {name[:80]!r}{hint}"), "parameter")


async def _run_images(
    server_state: ServerState, request: Request, job: Job | None = None, finish: Finish | None = None
) -> tuple[list[str], list[Any]]:
    """Return the file names and outcomes; if the client disconnects, its images are dropped."""
    batcher = server_state.batcher
    uploads = await read_images(request, batcher)
    names = [upload.name for upload in uploads]
    try:
        images = batcher.submit([upload.content for upload in uploads], job, finish)
    except RequestError:
        batcher.reserve_bytes(-sum(len(upload.content) for upload in uploads))
        raise
    del uploads  # so that their bytes are freed once decoded
    try:
        async with on_disconnect(request, lambda: _cancel_images(images)):
            return names, await batcher.wait(images)
    except ClientDisconnect:
        server_state.metrics.count_images("disconnected", len(images))
        raise
    finally:
        _cancel_images(images)


def _cancel_images(images: Sequence[QueuedImage]) -> None:
    for image in images:
        image.future.cancel()


def _respond(
    server_state: ServerState, names: Sequence[str], outcomes: Sequence[Any], key: str, to_json: Callable[[Any], dict[str, Any]]
) -> Response:
    """Return 200 if any image succeeded, else the status of the first error."""
    rows, first = list[dict[str, Any]](), None
    for name, outcome in zip(names, outcomes, strict=True):
        try:
            if isinstance(outcome, RequestError):
                raise outcome
            rows.append({"file": name, **to_json(outcome)})
            server_state.metrics.count_images("predicted")
        except RequestError as error:
            first = first or error
            rows.append({"file": name, "error": error.message, "status": error.status})
            server_state.metrics.count_images(error.reason if error.reason in server_state.metrics.images else "failed")
    if first is not None and all("error" in row for row in rows):
        return respond_with_error(first, server_state.metrics, rows)
    return json_response({"model": printable(server_state.source), key: rows})


def _saliency_json(outcome: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in outcome.items() if name not in ("pixels", "input_box")}
    return {**shown, "map": outcome["map"].tolist()}


def _require_predictor(server_state: ServerState) -> Predictor:
    if server_state.batcher.predictor is None:
        raise not_ready("loading its model")
    return server_state.batcher.predictor
