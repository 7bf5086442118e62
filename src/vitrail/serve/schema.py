"""Request and response schemas, as OpenAPI documents them."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class LabelProbability(BaseModel):
    label: str
    probability: float = Field(ge=0, le=1)


class ImagePrediction(BaseModel):
    """Prediction for an image: from a classifier the most probable classes, most probable first; from a model of several labels
    per image also those that reach their threshold; from a model for another task the fields of its predictions."""

    model_config = ConfigDict(extra="allow")

    file: str
    label: str = Field(default="", description="The most probable class.")
    probability: float = Field(default=0, ge=0, le=1)
    labels: list[str] = Field(
        default=[],
        description="Of a model of several labels per image, those that reach their threshold, most probable first.",
    )
    probabilities: list[float] = Field(default=[], description="Probabilities of labels.")
    top: list[LabelProbability] = Field(default=[], description="The most probable classes, whatever their thresholds.")


class ImageError(BaseModel):
    """An image that failed, and the status it would have had as a single image."""

    file: str
    error: str
    status: int


class PredictResponse(BaseModel):
    """Predictions in the order of the images in the request."""

    model: str
    predictions: list[ImagePrediction | ImageError]


class RunLengths(BaseModel):
    """A region as COCO writes it: run lengths of its pixels, column by column, as compressed text."""

    size: list[int] = Field(min_length=2, max_length=2, description="Height and width.")
    counts: str


class PixelClass(BaseModel):
    """A class that some pixels of an image have."""

    label: str
    value: int = Field(ge=0, description="Its value in a PNG of the classes.")
    fraction: float = Field(ge=0, le=1, description="Fraction of the pixels.")
    colour: str = Field(description="Its colour in a PNG, as #rrggbb.")
    rle: RunLengths | None = Field(default=None, description="Its pixels, with ?output=rle.")


class ImageSegmentation(BaseModel):
    """The classes of the pixels of an image, the largest first."""

    file: str
    size: list[int] = Field(min_length=2, max_length=2, description="Height and width of the upright image.")
    classes: list[PixelClass]
    png: str = Field(default="", description="With ?output=mask or overlay, the PNG in Base64.")


class SegmentResponse(BaseModel):
    model: str
    segmentations: list[ImageSegmentation | ImageError]


class SaliencyMap(BaseModel):
    """Saliency of each patch, row by row from the top left; never negative."""

    model_config = ConfigDict(extra="allow")

    file: str
    label: str = Field(default="", description="The most probable class.")
    probability: float = Field(default=0, ge=0, le=1)
    labels: list[str] = Field(default=[], description="As in a prediction.")
    probabilities: list[float] = []
    score: float = Field(default=0, description="Of a detection model, that of the box.")
    box: list[float] = Field(
        default=[], description="Of a detection model: left, top, right and bottom in pixels of the image."
    )
    explained: str = Field(
        description="Class that the map explains, or the index of another output; empty if the model has neither."
    )
    method: str
    map: list[list[float]]


class ExplainResponse(BaseModel):
    model: str
    explanations: list[SaliencyMap | ImageError]


class ErrorResponse(BaseModel):
    """Error message, and the error of each image if all failed."""

    error: str
    images: list[ImageError] | None = None


class StatusResponse(BaseModel):
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

STATUS_DESCRIPTIONS = {
    200: "The result of each image.",
    400: "No image, or a malformed multipart form.",
    401: "The token is missing or wrong.",
    408: "The request was sent too slowly.",
    413: "The request is too large, or has too many images.",
    415: "The content type is not supported.",
    422: "No image could be read, or a parameter is invalid.",
    500: "The model failed on every image.",
    501: "The backend or the model does not support this.",
    503: "The server is full, loading or shutting down; see Retry-After.",
    504: "The request timed out in the queue.",
}


def success_response(
    model: type[BaseModel], description: str = STATUS_DESCRIPTIONS[200], **extra: Any
) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model, "description": description, **extra}}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses in FastAPI's form."""
    return {status: {"model": ErrorResponse, "description": STATUS_DESCRIPTIONS[status]} for status in statuses}
