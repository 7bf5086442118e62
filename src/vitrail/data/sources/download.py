"""Download a file: resumed after an interruption, and verified against its published checksum before it is opened."""

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

PATIENCE = 8.0  # seconds without a response
PIECE = 2**20  # bytes read at a time


@dataclass(frozen=True)
class Remote:
    """A file on a server, with its size and checksum."""

    address: str
    size: int
    sha256: str
    unpacked: str = ""  # SHA-256 of a .gz's content; Debian's package compresses it differently

    @property
    def name(self) -> str:
        return self.address.rsplit("/", 1)[1]


def fetch(file: Remote, folder: Path, command: str, package: str = "", progress: Progress | None = None) -> bool:
    """Download the file unless it is there, and verify it; return whether it was downloaded. ``command`` and the system's
    ``package`` are for the message that says what to do without a network."""
    place, part = folder / file.name, folder / f"{file.name}.part"
    if place.is_file():
        if _sha256(place) != file.sha256:
            raise VitrailError(f"{place} is not the published file (its SHA-256 differs); delete it to download it again")
        return False
    if part.is_file() and part.stat().st_size > file.size:
        part.unlink()
    try:
        _download(file, part, progress)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        otherwise = f", or apt install {package}" if package else ""
        raise VitrailError(
            f"{file.address} cannot be downloaded ({str(reason) or type(error).__name__}); try again later{otherwise}, or put "
            f"the file at {place} by hand and run `{command}` again"
        ) from None
    if part.stat().st_size < file.size:
        raise VitrailError(
            f"{file.address} was interrupted at {part.stat().st_size:,} of {file.size:,} bytes; run it again to resume"
        )
    if _sha256(part) != file.sha256:
        part.unlink()
        raise VitrailError(
            f"what {file.address} sent is not the published file (its SHA-256 differs); it was deleted, try again later"
        )
    part.replace(place)
    return True


def _download(file: Remote, part: Path, progress: Progress | None) -> None:
    """Download to ``part``, resuming an earlier download if the server supports ranges."""
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
                    progress(f"downloading {file.name}", min(done, file.size), file.size)


def _answer(request: Request) -> Any:
    """Open the URL in a thread, because name resolution has no timeout."""
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(urlopen(request, timeout=PATIENCE))
        except Exception as error:  # raised below, in the waiting thread
            answers.append(error)

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE + 1)
    if not answers:
        raise TimeoutError("no response")
    if isinstance(answers[0], Exception):
        if isinstance(answers[0], HTTPError):
            answers[0].close()
        raise answers[0]
    return answers[0]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
