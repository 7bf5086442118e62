"""Download a model from the Hugging Face hub, or push one, through the hub's own client and its cache.

A model is ``hf:owner/name`` or a name of the catalogue. ``HF_ENDPOINT`` selects another hub; ``VITRAIL_MIRROR`` is a folder
with repositories as ``owner/name``, which are read in place of the hub's.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from warnings import catch_warnings

from vitrail.errors import VitrailError, first_line
from vitrail.weights.catalogue import check_name, find_published

MIRROR_VARIABLE = "VITRAIL_MIRROR"
TIMEOUT_SECONDS = 3.0  # seconds for the hub to respond; its client would retry for minutes
SIDECAR_PATTERNS = ["config.json", "open_clip_config.json", "*processor_config.json", "vitrail.json", "decoder.safetensors"]
# Files of weights in the order in which a folder is read; a repository often has the same weights in several of them.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")
# Files of a model; a push deletes those that an older model left.
FILE_PATTERNS = [*SIDECAR_PATTERNS, "*model*.safetensors", "*.index.json", "pytorch_model*.bin", "open_clip_pytorch_model.bin"]


def locate(source: str | Path) -> Path:
    """Return where weights are: a path as it is; ``hf:owner/name`` and the name of a published model are downloaded first."""
    if str(source).startswith("hf:"):
        return fetch(str(source))
    if (model := find_published(source)) is not None:
        return fetch(model.repository, model.name)
    check_name(source)
    return Path(source).expanduser()


def fetch(source: str, name: str | None = None) -> Path:
    """Download a repository's weights and config files and return their folder; without a network, use the cache.

    Files that were downloaded now must have the SHA-256 that the hub states. ``name``: what error messages call the model.
    """
    repo_id, title = parse_repo_id(source), source if name is None else f"{name} ({source})"
    mirror = os.environ.get(MIRROR_VARIABLE)
    if mirror and (folder := Path(mirror).expanduser() / repo_id).is_dir():
        return folder
    try:
        from huggingface_hub import constants
    except ImportError:
        raise VitrailError(f"{title} needs the hub's client; try pip install 'vitrail[hub]'") from None
    offline = constants.HF_HUB_OFFLINE or not _is_reachable(constants.ENDPOINT)
    try:
        with _quiet_client(constants):
            return _from_cache(repo_id) if offline else _download(repo_id, title)
    except VitrailError:
        raise
    except Exception as error:  # the client raises many types
        reason = "the hub cannot be reached and the model is not in the cache" if offline else _download_error(error, repo_id)
        raise VitrailError(f"{title} cannot be downloaded: {reason}") from None


def _from_cache(repo_id: str) -> Path:
    from huggingface_hub import try_to_load_from_cache

    for name in (file for weights in WEIGHT_FILES for file in (f"{weights}.index.json", weights)):
        if isinstance(file := try_to_load_from_cache(repo_id, name), str):
            return Path(file).parent
    raise FileNotFoundError(repo_id)


def _download(repo_id: str, title: str) -> Path:
    """Download the files that loading reads, and no second copy of the weights in another format."""
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache

    info = HfApi().model_info(repo_id, files_metadata=True, timeout=TIMEOUT_SECONDS + 1)
    files = {file.rfilename: file.lfs.sha256 if file.lfs else None for file in info.siblings or []}
    selected = select_files(list(files))
    if not selected:
        raise VitrailError(f"{title} has no weights that can be read: no {', no '.join(WEIGHT_FILES)}")
    cached = {name: try_to_load_from_cache(repo_id, name, revision=info.sha) for name in selected}
    new = [name for name, path in cached.items() if not isinstance(path, str)]
    if not new:
        return Path(str(cached[selected[-1]])).parent
    folder = Path(snapshot_download(repo_id, allow_patterns=selected, etag_timeout=TIMEOUT_SECONDS + 1))
    for name in new:
        if (stated := files[name]) is not None:
            _check_hash(folder / name, stated, title)
    return folder


def select_files(names: list[str]) -> list[str]:
    """Return the files of a repository that loading it reads: configs, and the weights in one format; none without weights."""
    selected = [name for name in names if "/" not in name and any(fnmatch(name, pattern) for pattern in SIDECAR_PATTERNS)]
    for weights in WEIGHT_FILES:
        stem, _, ending = weights.rpartition(".")
        if f"{weights}.index.json" in names:
            shards = [name for name in names if re.fullmatch(rf"{stem}-[\w-]+\.{ending}", name)]
            return [*selected, f"{weights}.index.json", *shards]
        if weights in names:
            return [*selected, weights]
    return []


def _check_hash(file: Path, stated: str, title: str) -> None:
    """Refuse a downloaded file with another SHA-256 than the hub states, and delete it, so that it is downloaded again."""
    with open(file, "rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if actual != stated:
        for path in {file.resolve(), file}:  # the cache links to it
            path.unlink(missing_ok=True)
        raise VitrailError(
            f"{title} was damaged on its way: {file.name} must have the SHA-256 {stated[:12]}... that the hub states, got "
            f"{actual[:12]}...; the file was deleted, try again"
        )


def _download_error(error: Exception, repo_id: str) -> str:
    code = getattr(getattr(error, "response", None), "status_code", None)
    if code in (401, 403, 404):
        return (
            f"the hub refuses it ({code}): there is no {repo_id}, or its licence must be accepted on its page and a token "
            "set by `hf auth login`"
        )
    return first_line(error)


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
        with _quiet_client(constants):
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
def _quiet_client(constants: Any) -> Iterator[None]:
    """Disable the client's telemetry and, unless a terminal shows them, its progress bars."""
    from huggingface_hub import utils

    bars: Any = utils
    before, hidden = constants.HF_HUB_DISABLE_TELEMETRY, not sys.stderr.isatty() and not bars.are_progress_bars_disabled()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    with catch_warnings(action="ignore"):  # about progress bars requested by the environment
        if hidden:
            bars.disable_progress_bars()
        try:
            yield
        finally:
            constants.HF_HUB_DISABLE_TELEMETRY = before
            if hidden:
                bars.enable_progress_bars()


def _error_message(error: Exception, repo_id: str) -> str:
    code = getattr(getattr(error, "response", None), "status_code", None)
    if code in (401, 403):
        return (
            f"the hub refuses it ({code}); is {repo_id.partition('/')[0]} your account, and does your token have write access?"
        )
    return first_line(error)


def _is_reachable(endpoint: str) -> bool:
    """Return whether the endpoint responds within seconds; in a thread, because name resolution has no timeout."""
    responses: list[bool] = []

    def send() -> None:
        try:
            with urlopen(Request(endpoint, method="HEAD"), timeout=TIMEOUT_SECONDS):
                responses.append(True)
        except HTTPError as error:  # a response all the same
            error.close()
            responses.append(True)
        except (OSError, ValueError, HTTPException):
            pass

    thread = Thread(target=send, daemon=True)
    thread.start()
    thread.join(TIMEOUT_SECONDS + 0.5)
    return bool(responses)
