"""What a client is told when it gets no answer: a status, one sentence, and when to come again."""


class Trouble(Exception):  # most often the client's, or the hour's
    """A whole request or one picture of it that is not answered. ``reason`` is a word for the counters."""

    def __init__(self, status: int, sentence: str, reason: str, retry: float | None = None, picture: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.reason = reason
        self.retry = retry  # seconds
        self.picture = picture  # of one picture, so that others of its request may be answered


def full(retry: float) -> Trouble:
    return Trouble(503, "the server is full and takes no more pictures for the moment; try again later", "full", retry)


def late() -> Trouble:
    return Trouble(504, "the picture's turn did not come before its deadline; try again later", "late", 1.0, picture=True)


def resting(what: str) -> Trouble:
    return Trouble(503, f"the server is {what}; try again later", what.split()[0], 1.0)
