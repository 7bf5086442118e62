"""What goes over the wire, as the OpenAPI page tells it."""

from typing import Any

from pydantic import BaseModel, Field


class Guess(BaseModel):
    label: str
    probability: float = Field(ge=0, le=1)


class Answered(BaseModel):
    """A picture and what it shows, most probable first."""

    file: str
    label: str
    probability: float = Field(ge=0, le=1)
    top: list[Guess]


class Unanswered(BaseModel):
    """A picture that got no answer, and the status it would have had alone."""

    file: str
    error: str
    status: int


class Predicted(BaseModel):
    """In the order in which the pictures were sent."""

    model: str
    pictures: list[Answered | Unanswered]


class Map(BaseModel):
    """How much each patch mattered, row by row, from the top left; none is below zero."""

    file: str
    label: str
    probability: float = Field(ge=0, le=1)
    explained: str = Field(description="The class that the map is for.")
    method: str
    map: list[list[float]]


class Explained(BaseModel):
    model: str
    pictures: list[Map | Unanswered]


class Failed(BaseModel):
    """One sentence; and what it is of each picture where none was answered."""

    error: str
    pictures: list[Unanswered] | None = None


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
    200: "What became of each picture.",
    400: "No picture, or a multipart form that cannot be read.",
    401: "The token is missing or wrong.",
    408: "The request was sent too slowly.",
    413: "The request is too large, or has too many pictures.",
    415: "The body is of no kind that can be a picture.",
    422: "No picture could be read, or a parameter is wrong.",
    500: "The model failed on every picture.",
    501: "The engine or the model cannot do this.",
    503: "Full, loading or stopping; Retry-After says when to come again.",
    504: "No picture's turn came before its deadline.",
}


def success(model: type[BaseModel], words: str = WORDS[200], **more: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model, "description": words, **more}}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """As FastAPI takes them."""
    return {status: {"model": Failed, "description": WORDS[status]} for status in statuses}
