"""Errors of requests: status, message and when to retry."""


class RequestError(Exception):
    """Error of a whole request or of one image. ``reason`` is the label in the metrics."""

    def __init__(
        self, status: int, message: str, reason: str, retry_after: float | None = None, is_image_error: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.retry_after = retry_after  # seconds
        self.is_image_error = is_image_error  # of one image, so that others of its request may succeed


def queue_full(retry_after: float) -> RequestError:
    return RequestError(503, "the server is full; try again later", "full", retry_after)


def deadline_exceeded() -> RequestError:
    return RequestError(
        504, "the image was not computed before the request timeout; try again later", "timed_out", 1.0, is_image_error=True
    )


def not_ready(status: str) -> RequestError:
    return RequestError(503, f"the server is {status}; try again later", status.split()[0], 1.0)
