"""A file from elsewhere, resumed where it broke off and compared with its published checksum before anybody opens it."""

import hashlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError

PATIENCE = 8.0  # seconds without an answer
PIECE = 2**20  # bytes read at a time


@dataclass(frozen=True)
class Remote:
    """A file somewhere, and how to know it."""

    address: str
    size: int
    sha256: str
    unpacked: str = ""  # SHA-256 of what a .gz holds, which Debian's package has in a gzip of its own

    @property
    def name(self) -> str:
        return self.address.rsplit("/", 1)[1]


def fetch(file: Remote, folder: Path, command: str, package: str = "", progress: Progress | None = None) -> bool:
    """Whether the file had to be downloaded; where it lies already, it is compared. ``command`` and the system's ``package``
    are for the sentence that says what to do without network."""
    place, part = folder / file.name, folder / f"{file.name}.part"
    if place.is_file():
        if _sha256(place) != file.sha256:
            raise VitrailError(
                f"{place} is not the published file (its SHA-256 differs); take it away, so that it is fetched again"
            )
        return False
    if part.is_file() and part.stat().st_size > file.size:
        part.unlink()
    try:
        _download(file, part, progress)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        otherwise = f", or apt install {package}" if package else ""
        raise VitrailError(
            f"{file.address} cannot be fetched ({str(reason) or type(error).__name__}); try again later{otherwise}, or put the "
            f"file at {place} by hand and call `{command}` again"
        ) from None
    if part.stat().st_size < file.size:
        raise VitrailError(
            f"{file.address} broke off at {part.stat().st_size:,} of {file.size:,} bytes; call again to go on from there"
        )
    if _sha256(part) != file.sha256:
        part.unlink()
        raise VitrailError(
            f"what {file.address} sent is not the published file (its SHA-256 differs); it was taken away, try later"
        )
    part.replace(place)
    return True


def _download(file: Remote, part: Path, progress: Progress | None) -> None:
    """Goes on behind what an earlier call left, where the server can."""
    done = part.stat().st_size if part.is_file() else 0
    if done == file.size:
        return
    with _answer(Request(file.address, headers={"Range": f"bytes={done}-"} if done else {})) as answer:
        if not (answer.status == 206 and str(answer.headers["Content-Range"]).startswith(f"bytes {done}-")):
            done = 0
        with open(part, "ab" if done else "wb") as out:
            while done <= file.size and (piece := answer.read(PIECE)):
                out.write(piece)
                done += len(piece)
                if progress:
                    progress(f"fetching {file.name}", min(done, file.size), file.size)


def _answer(request: Request) -> Any:
    """In a thread, because looking a name up knows no time-out."""
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(urlopen(request, timeout=PATIENCE))
        except Exception as error:  # told below, by the thread that waits
            answers.append(error)

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE + 1)
    if not answers:
        raise TimeoutError("no answer")
    if isinstance(answers[0], Exception):
        if isinstance(answers[0], HTTPError):
            answers[0].close()
        raise answers[0]
    return answers[0]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
