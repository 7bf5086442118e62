"""``hf:owner/name``: download a model from the Hugging Face hub, or push one, through the hub's own client and its cache."""

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

FILE_PATTERNS = [
    "config.json",
    "open_clip_config.json",
    "*processor_config.json",
    "vitrail.json",
    "decoder.safetensors",
    "*model*.safetensors",
    "*.index.json",
    "pytorch_model*.bin",
    "open_clip_pytorch_model.bin",
]


def fetch(source: str) -> Path:
    """Download a repository's weights and config files and return their folder; without a network, use the cache."""
    repo_id = parse_repo_id(source)
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError:
        raise VitrailError(f"{source} needs the hub's client; try pip install 'vitrail[hub]'") from None
    offline = not _is_reachable(constants.ENDPOINT)
    try:
        with _without_telemetry(constants):
            return Path(snapshot_download(repo_id, allow_patterns=FILE_PATTERNS, local_files_only=offline, etag_timeout=4))
    except Exception as error:  # the client raises many types
        reason = "the hub cannot be reached and the model is not in the cache" if offline else str(error).splitlines()[0]
        raise VitrailError(f"{source} cannot be downloaded: {reason}") from None


def parse_repo_id(source: str) -> str:
    """Parse ``owner/name`` or ``hf:owner/name``."""
    repo_id = source.removeprefix("hf:")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo_id, re.ASCII) or ".." in repo_id:
        raise VitrailError(f"a model on the hub must be written hf:owner/name, got {source!r}")
    return repo_id


def authenticated_api(repo_id: str) -> Any:
    """Return the hub's client for pushing, after checking, before any work, that the hub is reachable and a token is set."""
    try:
        from huggingface_hub import HfApi, constants, get_token
    except ImportError:
        raise VitrailError("pushing needs the hub's client; try pip install 'vitrail[hub]'") from None
    if constants.HF_HUB_OFFLINE:
        raise VitrailError(f"{repo_id} cannot be pushed: HF_HUB_OFFLINE is set; unset it, or write a folder with --out DIR")
    if not _is_reachable(constants.ENDPOINT):
        raise VitrailError(f"{repo_id} cannot be pushed: the hub cannot be reached; --out DIR writes what would be pushed")
    if get_token() is None:
        raise VitrailError(
            f"{repo_id} cannot be pushed: you are not logged in to the hub; run `hf auth login`, or set HF_TOKEN"
        )
    return HfApi()


def push_folder(api: Any, folder: Path, repo_id: str, private: bool = False) -> str:
    """Push every file of a folder in one commit, which also deletes files of an older model; return the model's URL."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, constants

    files = sorted(path for path in folder.iterdir() if path.is_file())
    try:
        with _without_telemetry(constants):
            url = api.create_repo(repo_id, private=private or None, exist_ok=True)
            if private and not api.model_info(repo_id).private:
                raise VitrailError(
                    "the repository already exists and is public; make it private on the hub, or leave --private out"
                )
            remote_files = {
                path for path in api.list_repo_files(repo_id) if any(fnmatch(path, pattern) for pattern in FILE_PATTERNS)
            }
            operations: list[Any] = [
                CommitOperationDelete(path) for path in sorted(remote_files - {file.name for file in files})
            ]
            operations += [CommitOperationAdd(file.name, file) for file in files]
            api.create_commit(repo_id, operations, commit_message="Push by vitrail")
    except Exception as error:  # the client raises many types
        raise VitrailError(f"{repo_id} cannot be pushed: {_error_message(error, repo_id)}") from None
    return str(url)


@contextmanager
def _without_telemetry(constants: Any) -> Iterator[None]:
    """Disable the client's telemetry."""
    before = constants.HF_HUB_DISABLE_TELEMETRY
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = before


def _error_message(error: Exception, repo_id: str) -> str:
    code = getattr(getattr(error, "response", None), "status_code", None)
    if code in (401, 403):
        return (
            f"the hub refuses it ({code}); is {repo_id.partition('/')[0]} your account, and does your token have write access?"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _is_reachable(endpoint: str) -> bool:
    """Return whether the endpoint answers within seconds; the client's own retries would take much longer."""
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=3):
            return True
    except HTTPError:
        return True  # an answer all the same
    except (OSError, ValueError, HTTPException):
        return False
