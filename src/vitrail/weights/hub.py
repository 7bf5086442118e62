"""``hf:owner/name``: a model of the Hugging Face hub, through its own client, kept in that client's cache."""

import re
from http.client import HTTPException
from pathlib import Path
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
    name = address.removeprefix("hf:")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII) or ".." in name:
        raise VitrailError(f"a model of the hub reads hf:owner/name, got {address!r}")
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError:
        raise VitrailError(f"{address} needs the hub's client: pip install -c constraints.txt 'vitrail[hub]'") from None
    offline = not _reachable(constants.ENDPOINT)
    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS, local_files_only=offline, etag_timeout=4))
    except Exception as error:  # the client has many kinds
        reason = "the hub cannot be reached and the model is not in the cache" if offline else str(error).splitlines()[0]
        raise VitrailError(f"{address} cannot be fetched: {reason}") from None


def _reachable(endpoint: str) -> bool:
    """Whether somebody answers within seconds, which the client's own retries would not find out."""
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=3):
            return True
    except HTTPError:
        return True  # an answer all the same
    except (OSError, ValueError, HTTPException):
        return False
