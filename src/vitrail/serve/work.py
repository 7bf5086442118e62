"""Routes ``POST /predict`` and ``POST /explain``: read the images, submit them to the batcher, write the response."""

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from starlette.requests import ClientDisconnect

from vitrail.errors import printable
from vitrail.explain.maps import METHODS
from vitrail.export.engine import Engine
from vitrail.serve.answer import explaining, overlay, told
from vitrail.serve.batcher import Job, Visit
from vitrail.serve.body import received
from vitrail.serve.door import House, as_json, refused
from vitrail.serve.schema import BODY, Explained, Predicted, failures, success
from vitrail.serve.trouble import Trouble, resting

Method = StrEnum("Method", {name: name for name in METHODS})  # type: ignore[misc]  # members from SALIENCY_METHODS
ROLLOUT = Method("rollout")
Top = Annotated[int | None, Query(ge=1, le=100_000, description="Number of labels per image.")]


def add_work(app: FastAPI, house: House) -> None:
    statuses = (400, 408, 413, 415, 422, 500, 503, 504) + ((401,) if house.how.token else ())
    said: dict[str, Any] = {"openapi_extra": {"requestBody": BODY}, "response_class": Response}

    @app.post("/predict", responses={**success(Predicted), **failures(*statuses)}, **said)
    async def predict(request: Request, top: Top = None) -> Response:
        """Classify images: one as the body, or any number as files of a multipart form.

        200 if at least one image succeeded; the others have an error each. If all failed, the status is that of the first.
        """
        names, outcomes = await _visited(house, request)
        engine = _engine(house)
        count = top or house.how.top
        return _answer(house, names, outcomes, "predictions", lambda row: told(row, engine.labels, count, engine.sigmoid))

    drawn = success(Explained, content={"image/png": {"schema": {"type": "string", "format": "binary"}}})

    @app.post("/explain", responses={**drawn, **failures(*statuses, 501)}, **said)
    async def explain(
        request: Request,
        method: Annotated[Method, Query(description="Saliency method.")] = ROLLOUT,
        target: Annotated[
            str | None, Query(alias="class", description="Class to explain; default: the predicted class.")
        ] = None,
    ) -> Response:
        """Compute saliency maps; with ``Accept: image/png`` and a single image, drawn over the model's input."""
        job = explaining(_engine(house), str(method), target)
        names, outcomes = await _visited(house, request, job)
        if "image/png" in request.headers.get("accept", "") and len(outcomes) == 1 and isinstance(outcomes[0], dict):
            house.metrics.picture("predicted")
            drawing = await asyncio.to_thread(overlay, outcomes[0]["pixels"], outcomes[0]["map"])
            return Response(drawing, media_type="image/png")
        return _answer(house, names, outcomes, "explanations", _mapped)


async def _visited(house: House, request: Request, job: Job | None = None) -> tuple[list[str], list[Any]]:
    """Return the file names and outcomes; if the client disconnects, its images are dropped."""
    batcher = house.batcher
    sent = await received(request, batcher)
    names = [picture.name for picture in sent]
    try:
        visits = batcher.enter([picture.content for picture in sent], job)
    except Trouble:
        batcher.hold(-sum(len(picture.content) for picture in sent))
        raise
    del sent  # so that their bytes are freed once decoded
    gone = asyncio.ensure_future(_left(request))
    gone.add_done_callback(lambda done: None if done.cancelled() else _cancel(visits))
    try:
        return names, await batcher.answered(visits)
    except ClientDisconnect:
        house.metrics.picture("disconnected", len(visits))
        raise
    finally:
        gone.cancel()
        _cancel(visits)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _cancel(visits: Sequence[Visit]) -> None:
    for visit in visits:
        visit.future.cancel()


def _answer(
    house: House, names: Sequence[str], outcomes: Sequence[Any], key: str, tell: Callable[[Any], dict[str, Any]]
) -> Response:
    """Return 200 if any image succeeded, else the status of the first error."""
    rows, first = list[dict[str, Any]](), None
    for name, outcome in zip(names, outcomes, strict=True):
        try:
            if isinstance(outcome, Trouble):
                raise outcome
            rows.append({"file": name, **tell(outcome)})
            house.metrics.picture("predicted")
        except Trouble as trouble:
            first = first or trouble
            rows.append({"file": name, "error": trouble.sentence, "status": trouble.status})
            house.metrics.picture(trouble.reason if trouble.reason in house.metrics.pictures else "failed")
    if first is not None and all("error" in row for row in rows):
        return refused(first, house.metrics, rows)
    return as_json({"model": printable(house.source), key: rows})


def _mapped(outcome: dict[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in outcome.items() if name != "pixels"}, "map": outcome["map"].tolist()}


def _engine(house: House) -> Engine:
    if house.batcher.engine is None:
        raise resting("loading its model")
    return house.batcher.engine
