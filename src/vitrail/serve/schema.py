"""Request and response schemas, as OpenAPI documents them."""

from typing import Any

from pydantic import BaseModel, Field


class Guess(BaseModel):
    label: str
    probability: float = Field(ge=0, le=1)


class Answered(BaseModel):
    """An image and its most probable classes, most probable first."""

    file: str
    label: str
    probability: float = Field(ge=0, le=1)
    top: list[Guess]


class Unanswered(BaseModel):
    """An image that failed, and the status it would have had as a single image."""

    file: str
    error: str
    status: int


class Predicted(BaseModel):
    """Predictions in the order of the images in the request."""

    model: str
    predictions: list[Answered | Unanswered]


class Map(BaseModel):
    """Saliency of each patch, row by row from the top left; never negative."""

    file: str
    label: str
    probability: float = Field(ge=0, le=1)
    explained: str = Field(description="Class that the map explains.")
    method: str
    map: list[list[float]]


class Explained(BaseModel):
    model: str
    explanations: list[Map | Unanswered]


class Failed(BaseModel):
    """Error message, and the error of each image if all failed."""

    error: str
    images: list[Unanswered] | None = None


class State(BaseModel):
    status: str


_BYTES = {"type": "string", "format": "binary"}
BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"files": {"type": "array", "items": _BYTES, "minItems": 1}},
                "required": ["files"],
            }
        },
        "application/octet-stream": {"schema": _BYTES},
        "image/*": {"schema": _BYTES},
    },
}

WORDS = {
    200: "The result of each image.",
    400: "No image, or a malformed multipart form.",
    401: "The token is missing or wrong.",
    408: "The request was sent too slowly.",
    413: "The request is too large, or has too many images.",
    415: "The content type is not supported.",
    422: "No image could be read, or a parameter is invalid.",
    500: "The model failed on every image.",
    501: "The engine or the model does not support this.",
    503: "The server is full, loading or shutting down; see Retry-After.",
    504: "The request timed out in the queue.",
}


def success(model: type[BaseModel], words: str = WORDS[200], **more: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model, "description": words, **more}}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses in FastAPI's form."""
    return {status: {"model": Failed, "description": WORDS[status]} for status in statuses}
