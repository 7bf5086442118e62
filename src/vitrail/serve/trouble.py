"""Errors of requests: status, message and when to retry."""


class Trouble(Exception):
    """Error of a whole request or of one image. ``reason`` is the label in the metrics."""

    def __init__(self, status: int, sentence: str, reason: str, retry: float | None = None, picture: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.reason = reason
        self.retry = retry  # seconds
        self.picture = picture  # of one image, so that others of its request may succeed


def full(retry: float) -> Trouble:
    return Trouble(503, "the server is full; try again later", "full", retry)


def late() -> Trouble:
    return Trouble(
        504, "the image was not computed before the request timeout; try again later", "timed_out", 1.0, picture=True
    )


def resting(what: str) -> Trouble:
    return Trouble(503, f"the server is {what}; try again later", what.split()[0], 1.0)
