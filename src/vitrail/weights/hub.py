"""``hf:owner/name``: a model of the Hugging Face hub, fetched and pushed through its own client and that client's cache."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from vitrail.errors import VitrailError

PATTERNS = [
    "config.json",
    "*processor_config.json",
    "vitrail.json",
    "decoder.safetensors",
    "*model*.safetensors",
    "*.index.json",
    "pytorch_model*.bin",
]


def fetch(address: str) -> Path:
    """The folder of a repository's weights and side files; from the cache when there is no network."""
    name = named(address)
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError:
        raise VitrailError(f"{address} needs the hub's client: pip install -c constraints.txt 'vitrail[hub]'") from None
    offline = not _reachable(constants.ENDPOINT)
    try:
        with _untracked(constants):
            return Path(snapshot_download(name, allow_patterns=PATTERNS, local_files_only=offline, etag_timeout=4))
    except Exception as error:  # the client has many kinds
        reason = "the hub cannot be reached and the model is not in the cache" if offline else str(error).splitlines()[0]
        raise VitrailError(f"{address} cannot be fetched: {reason}") from None


def named(address: str) -> str:
    """``owner/name``, with ``hf:`` before it or not."""
    name = address.removeprefix("hf:")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII) or ".." in name:
        raise VitrailError(f"a model of the hub reads hf:owner/name, got {address!r}")
    return name


def entrance(name: str) -> Any:
    """The hub's client for pushing, once it is sure that somebody answers and will ask who we are: before any work is done."""
    try:
        from huggingface_hub import HfApi, constants, get_token
    except ImportError:
        raise VitrailError("pushing needs the hub's client: pip install -c constraints.txt 'vitrail[hub]'") from None
    if constants.HF_HUB_OFFLINE:
        raise VitrailError(f"{name} cannot be pushed: HF_HUB_OFFLINE is set; unset it, or write a folder with --out DIR")
    if not _reachable(constants.ENDPOINT):
        raise VitrailError(f"{name} cannot be pushed: the hub cannot be reached; --out DIR writes what would be pushed")
    if get_token() is None:
        raise VitrailError(f"{name} cannot be pushed: the hub does not know who you are; `hf auth login`, or set HF_TOKEN")
    return HfApi()


def publish(api: Any, folder: Path, name: str, private: bool = False) -> str:
    """Every file of a folder in one commit, which takes away what an older model left beside them; the model's address."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, constants

    files = sorted(path for path in folder.iterdir() if path.is_file())
    try:
        with _untracked(constants):
            address = api.create_repo(name, private=private or None, exist_ok=True)
            if private and not api.model_info(name).private:
                raise VitrailError(
                    "it is there already and everybody can see it; make it private on the hub, or leave --private"
                )
            there = {path for path in api.list_repo_files(name) if any(fnmatch(path, pattern) for pattern in PATTERNS)}
            changes: list[Any] = [CommitOperationDelete(path) for path in sorted(there - {file.name for file in files})]
            changes += [CommitOperationAdd(file.name, file) for file in files]
            api.create_commit(name, changes, commit_message="Push by vitrail")
    except Exception as error:  # the client has many kinds
        raise VitrailError(f"{name} cannot be pushed: {_reason(error, name)}") from None
    return str(address)


@contextmanager
def _untracked(constants: Any) -> Iterator[None]:
    """The client tells nobody what else is installed here, nor asks who might be driving it."""
    before = constants.HF_HUB_DISABLE_TELEMETRY
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = before


def _reason(error: Exception, name: str) -> str:
    code = getattr(getattr(error, "response", None), "status_code", None)
    if code in (401, 403):
        return f"the hub refuses it ({code}); is {name.partition('/')[0]} yours, and may your token write there?"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _reachable(endpoint: str) -> bool:
    """Whether somebody answers within seconds, which the client's own retries would not find out."""
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=3):
            return True
    except HTTPError:
        return True  # an answer all the same
    except (OSError, ValueError, HTTPException):
        return False
