"""Download a file: resumed after an interruption, and verified against its published checksum before it is opened."""

import hashlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError

TIMEOUT_SECONDS = 8.0  # seconds without a response
CHUNK_BYTES = 2**20  # bytes read at a time


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, with its size and checksum."""

    url: str
    size: int
    sha256: str
    unpacked_sha256: str = ""  # SHA-256 of a .gz's content; Debian's package compresses it differently

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def download_file(file: RemoteFile, folder: Path, command: str, package: str = "", progress: Progress | None = None) -> bool:
    """Download the file unless it is there, and verify it; return whether it was downloaded. ``command`` and the system's
    ``package`` are for the message that says what to do without a network."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    if target.is_file():
        if _sha256(target) != file.sha256:
            raise VitrailError(f"{target} is not the published file (its SHA-256 differs); delete it to download it again")
        return False
    if part.is_file() and part.stat().st_size > file.size:
        part.unlink()
    try:
        _download(file, part, progress)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        alternative = f", or apt install {package}" if package else ""
        raise VitrailError(
            f"{file.url} cannot be downloaded ({str(reason) or type(error).__name__}); try again later{alternative}, or put "
            f"the file at {target} by hand and run `{command}` again"
        ) from None
    if part.stat().st_size < file.size:
        raise VitrailError(
            f"{file.url} was interrupted at {part.stat().st_size:,} of {file.size:,} bytes; run it again to resume"
        )
    if _sha256(part) != file.sha256:
        part.unlink()
        raise VitrailError(
            f"what {file.url} sent is not the published file (its SHA-256 differs); it was deleted, try again later"
        )
    part.replace(target)
    return True


def _download(file: RemoteFile, part: Path, progress: Progress | None) -> None:
    """Download to ``part``, resuming an earlier download if the server supports ranges."""
    done = part.stat().st_size if part.is_file() else 0
    if done == file.size:
        return
    with open_url(Request(file.url, headers={"Range": f"bytes={done}-"} if done else {}), TIMEOUT_SECONDS) as response:
        if not (response.status == 206 and str(response.headers["Content-Range"]).startswith(f"bytes {done}-")):
            done = 0
        with open(part, "ab" if done else "wb") as out:
            while done <= file.size and (chunk := response.read(CHUNK_BYTES)):
                out.write(chunk)
                done += len(chunk)
                if progress:
                    progress(f"downloading {file.name}", min(done, file.size), file.size)


def open_url(request: Request, timeout: float) -> Any:
    """Open the URL in a thread, because name resolution has no timeout."""
    results: list[Any] = []

    def send() -> None:
        try:
            results.append(urlopen(request, timeout=timeout))
        except Exception as error:  # raised below, in the waiting thread
            results.append(error)

    thread = Thread(target=send, daemon=True)
    thread.start()
    thread.join(timeout + 1)
    if not results:
        raise TimeoutError("no response")
    if isinstance(results[0], Exception):
        if isinstance(results[0], HTTPError):
            results[0].close()
        raise results[0]
    return results[0]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
