"""Server configuration: limits, timeouts and authentication. Torch-free."""

from dataclasses import dataclass, field

from vitrail.config import check
from vitrail.errors import VitrailError

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Serving:
    """Server configuration; times in seconds, sizes in bytes. An image is in flight from its complete request to its result."""

    max_batch: int = 16  # images per batch
    max_delay: float = 0.005  # that the first image of a batch waits for others being decoded
    queue: int = 128  # images in flight, and so per request; more are refused at once
    deadline: float = 10.0  # from the complete request to the start of its computation
    max_body: int = 16 * MEBIBYTE  # of one request
    max_pixels: int = 2**26  # of one image
    patience: float = 30.0  # for a client to send its request
    drain: float = 30.0  # for accepted requests, when the server is stopped
    top: int = 5  # labels per image, unless the client asks for another number
    decoders: int | None = None  # threads that decode images; None: one per core
    token: str | None = field(default=None, repr=False)  # bearer token that clients must send

    def __post_init__(self) -> None:
        check(self)
        for name in ("max_batch", "queue", "max_body", "max_pixels", "top"):
            if getattr(self, name) < 1:
                raise VitrailError(f"{name} must be at least 1, got {getattr(self, name)}; try {name}={_usual(name)}")
        for name in ("deadline", "patience", "drain"):
            if not 0 < getattr(self, name) <= 86400:
                raise VitrailError(f"{name} must be above 0 seconds, got {getattr(self, name)}; try {name}={_usual(name)}")
        if not 0 <= self.max_delay <= 10:
            raise VitrailError(f"max_delay must be from 0 to 10 seconds, got {self.max_delay}; try max_delay=0.005")
        if self.queue < self.max_batch:
            raise VitrailError(
                f"queue must have room for a batch of {self.max_batch}, got {self.queue}; try {8 * self.max_batch}"
            )
        if self.decoders is not None and self.decoders < 1:
            raise VitrailError(f"decoders must be at least 1, got {self.decoders}; leave it out for one per core")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise VitrailError("the token must be printable ASCII and not be empty; try a long random string")

    @property
    def max_bodies(self) -> int:
        """Maximum bytes of all request bodies together; an image's bytes are freed once it is decoded."""
        return 8 * self.max_body


def _usual(name: str) -> object:
    return Serving.__dataclass_fields__[name].default
