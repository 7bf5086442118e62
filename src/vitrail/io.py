"""Files and folders that appear whole or not at all, and locks between processes. Torch-free.

What is written has a temporary name next to its own, is synced to disk and then renamed. If that fails, the temporary file is
removed, and what had the name before stays.
"""

import ctypes
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def atomic_write(path: Path, content: bytes | str, locked: bool = False) -> None:
    """Write a file whole or not at all; text is UTF-8."""
    with atomic_path(path, locked) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_path(path: Path, locked: bool = False) -> Iterator[Path]:
    """Yield an empty temporary file with the suffix of ``path``, which gets that name if no error is raised.

    ``locked``: a lock keeps other processes out of the folder, so the temporary name is always the same, and what a killed
    process has left is overwritten.
    """
    temporary = _temporary_path(path, locked)
    try:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        yield temporary
        _finish_file(temporary, mode)
        temporary.replace(path)
    finally:
        with suppress(OSError):  # it was renamed, or the disk is read-only
            temporary.unlink()


@contextmanager
def atomic_folder(path: Path, locked: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder, which replaces ``path`` if no error is raised. ``locked`` as of ``atomic_path``."""
    temporary = _temporary_path(path, locked)
    try:
        create_empty_folder(temporary)
        yield temporary
        publish_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def create_empty_folder(path: Path) -> None:
    """Create a folder and its parents; one of that name is removed."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def publish_folder(temporary: Path, path: Path) -> None:
    """Sync a folder of files to disk, and rename it to ``path``, atomically where the system can exchange two names.

    Elsewhere an older folder is renamed first, and renamed back if the new one cannot take its name.
    """
    mode = temporary.stat().st_mode & 0o666
    for file in temporary.iterdir():
        _finish_file(file, mode)
    fsync_path(temporary)
    if not _try_rename(temporary, path) and not _exchange_names(temporary, path):
        old = temporary.with_name(f"{temporary.name}.old")
        path.rename(old)
        try:
            temporary.rename(path)
        except OSError:
            old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    fsync_path(path.parent)
    shutil.rmtree(temporary, ignore_errors=True)  # the older folder, if names were exchanged


def fsync_path(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: Path, error: Exception | None = None) -> Iterator[None]:
    """Hold a lock, which ends with the process. If another process holds it, raise ``error``; None: wait."""
    import fcntl  # Windows has none

    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if error is None else fcntl.LOCK_NB))
        except BlockingIOError:
            assert error is not None
            raise error from None
        yield


def _temporary_path(path: Path, locked: bool) -> Path:
    token = "" if locked else f".{secrets.token_hex(4)}"
    return path.with_name(f".{path.stem[:50]}{token}.part{path.suffix}")  # a name has at most 255 bytes


def _finish_file(path: Path, mode: int) -> None:
    """Sync a file, after giving it the usual permissions: safetensors makes files that only the owner can read."""
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
    fsync_path(path)


def _try_rename(temporary: Path, path: Path) -> bool:
    """Rename, and return False if a folder with content has that name, which may also appear at the last moment."""
    try:
        temporary.replace(path)
    except OSError:
        if path.is_dir():
            return False
        raise
    return True


def _exchange_names(first: Path, second: Path) -> bool:
    """Exchange two names by Linux's renameat2 with RENAME_EXCHANGE; return whether it succeeded."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    at_fdcwd = -100  # AT_FDCWD
    return bool(renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), 2) == 0)
