"""How a server behaves: what it takes, how long it lets wait, whom it lets in. Needs no torch."""

from dataclasses import dataclass, field

from vitrail.config import check
from vitrail.errors import VitrailError

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Serving:
    """Times are in seconds, sizes in bytes. A picture is in the house from when its request is whole until it is answered."""

    max_batch: int = 16  # pictures computed at a time
    max_delay: float = 0.005  # that the first picture of a batch waits for others which are on their way
    queue: int = 128  # pictures in the house, and so of one request; whoever comes then is refused at once
    deadline: float = 10.0  # from the whole request to its turn
    max_body: int = 16 * MEBIBYTE  # of one request
    max_pixels: int = 2**26  # of one picture
    patience: float = 30.0  # with a client that sends slowly
    drain: float = 30.0  # for what was accepted, when the server is asked to stop
    top: int = 5  # labels of each picture, unless the client asks for another number
    decoders: int | None = None  # threads that read pictures; none: one a core
    token: str | None = field(default=None, repr=False)  # that a client must show

    def __post_init__(self) -> None:
        check(self)
        for name in ("max_batch", "queue", "max_body", "max_pixels", "top"):
            if getattr(self, name) < 1:
                raise VitrailError(f"{name} must be at least 1, got {getattr(self, name)}; try {name}={_usual(name)}")
        for name in ("deadline", "patience", "drain"):
            if not 0 < getattr(self, name) <= 86400:
                raise VitrailError(f"{name} must be seconds above 0, got {getattr(self, name)}; try {name}={_usual(name)}")
        if not 0 <= self.max_delay <= 10:
            raise VitrailError(f"max_delay must be from 0 to 10 seconds, got {self.max_delay}; try max_delay=0.005")
        if self.queue < self.max_batch:
            raise VitrailError(
                f"queue must have room for a batch of {self.max_batch}, got {self.queue}; try {8 * self.max_batch}"
            )
        if self.decoders is not None and self.decoders < 1:
            raise VitrailError(f"decoders must be at least 1, got {self.decoders}; leave it out for one a core")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise VitrailError("the token must be of plain letters, digits and signs, and not be empty; try a long random word")

    @property
    def max_bodies(self) -> int:
        """Bytes of all requests that are being received or wait, together; a request's own pictures are freed once decoded."""
        return 8 * self.max_body


def _usual(name: str) -> object:
    return Serving.__dataclass_fields__[name].default
