"""Server configuration: limits, timeouts and authentication. Torch-free."""

from dataclasses import dataclass, field

from vitrail.config import validate
from vitrail.errors import VitrailError

MEBIBYTE = 2**20


@dataclass(frozen=True)
class ServeConfig:
    """Server configuration; times in seconds, sizes in bytes. An image is in flight from its complete request to its result."""

    max_batch: int = 16  # images per batch
    max_batch_delay: float = 0.005  # that the first image of a batch waits for others being decoded
    max_queue: int = 128  # images in flight, and so per request; more are refused at once
    request_timeout: float = 10.0  # from the complete request to the start of its computation
    max_body: int = 16 * MEBIBYTE  # of one request
    max_pixels: int = 2**26  # of one image
    read_timeout: float = 30.0  # for a client to send its request
    shutdown_timeout: float = 30.0  # for accepted requests, when the server is stopped
    top_k: int = 5  # labels per image, unless the client asks for another number
    decode_workers: int | None = None  # threads that decode images; None: one per core
    token: str | None = field(default=None, repr=False)  # bearer token that clients must send

    def __post_init__(self) -> None:
        validate(self)
        for name in ("max_batch", "max_queue", "max_body", "max_pixels", "top_k"):
            if getattr(self, name) < 1:
                raise VitrailError(f"{name} must be at least 1, got {getattr(self, name)}; try {name}={_default(name)}")
        for name in ("request_timeout", "read_timeout", "shutdown_timeout"):
            if not 0 < getattr(self, name) <= 86400:
                raise VitrailError(f"{name} must be above 0 seconds, got {getattr(self, name)}; try {name}={_default(name)}")
        if not 0 <= self.max_batch_delay <= 10:
            raise VitrailError(
                f"max_batch_delay must be from 0 to 10 seconds, got {self.max_batch_delay}; try max_batch_delay=0.005"
            )
        if self.max_queue < self.max_batch:
            raise VitrailError(
                f"max_queue must have room for a batch of {self.max_batch}, got {self.max_queue}; try {8 * self.max_batch}"
            )
        if self.decode_workers is not None and self.decode_workers < 1:
            raise VitrailError(f"decode_workers must be at least 1, got {self.decode_workers}; leave it out for one per core")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise VitrailError("the token must be printable ASCII and not be empty; try a long random string")

    @property
    def max_total_body(self) -> int:
        """Maximum bytes of all request bodies together; an image's bytes are freed once it is decoded."""
        return 8 * self.max_body


def _default(name: str) -> object:
    return ServeConfig.__dataclass_fields__[name].default
