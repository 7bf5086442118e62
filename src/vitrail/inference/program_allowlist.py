"""Allow-list for ``torch.export`` programs: only files that compute and do nothing else are loaded.

Torch unpickles and evaluates parts of such a file when loading it. So only what ``vitrail export`` writes is accepted:
plain tensors, arithmetic on tensors, and symbolic sizes. Anything else in a file is refused unread.
"""

import io
import json
import re
import zipfile
from typing import Any

import torch

from vitrail.errors import VitrailError

ALLOWED_FILES = re.compile(
    r"[^/]+/(models/model\.json|data/(weights/(weight_\d+|model_weights_config\.json)"
    r"|constants/(tensor_\d+|model_constants_config\.json)|sample_inputs/model\.pt)"
    r"|extra/vitrail|archive_format|archive_version|byteorder|\.data/(version|serialization_id|alignment))"
)
ALLOWED_TARGETS = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+|torch\.sym_\w+|math\.(ceil|floor|trunc)"
    r"|_operator\.(add|sub|mul|neg|floordiv|truediv|mod|pow|eq|ne|lt|le|gt|ge|getitem|and_|or_)"
)
ALLOWED_SIZE_EXPRESSIONS = re.compile(
    r"(Symbol\('[su]\d+'|[su]\d+|positive=True|integer=True|(Mul|Add|Pow|Max|Min|Mod|FloorDiv|CleanDiv|Integer|IntTrueDiv)(?=\()"
    r"|\d+|[-+*/(), ])*"
)
MAX_JSON_BYTES = 2**26  # of one JSON file


def check_allowlist(content: bytes, source: str) -> None:
    """Refuse a file that might do more than compute."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_archive(archive)
    except VitrailError as error:
        raise VitrailError(f"{source} {error}; run only files that `vitrail export` wrote") from None
    except Exception as error:  # a damaged file can fail its reader in any way
        raise VitrailError(f"{source} is not a program that `vitrail export` wrote, or is damaged: {error}") from None


def _check_archive(archive: zipfile.ZipFile) -> None:
    names = archive.namelist()
    for name in names:
        if not ALLOWED_FILES.fullmatch(name):
            raise VitrailError(f"contains {name!r}, which does not belong in an exported program")
    for name in (name for name in names if name.endswith(".json")):
        if archive.getinfo(name).file_size > MAX_JSON_BYTES:
            raise VitrailError(f"has {archive.getinfo(name).file_size:,} bytes of JSON, too many for a model")
        _check_json(json.loads(archive.read(name)))
    for name in (name for name in names if name.endswith(".pt")):
        torch.load(io.BytesIO(archive.read(name)), weights_only=True)


def _check_json(value: Any) -> None:
    for item in value if isinstance(value, list) else ():
        _check_json(item)
    for name, item in value.items() if isinstance(value, dict) else ():
        forbidden = (
            (name == "target" and not ALLOWED_TARGETS.fullmatch(str(item)))
            or (name == "expr_str" and not ALLOWED_SIZE_EXPRESSIONS.fullmatch(str(item)))
            or (name in ("use_pickle", "guards_code") and bool(item))
        )
        if forbidden:
            raise VitrailError(f"contains {name} {str(item)[:60]!r}, which no model needs")
        _check_json(item)
