"""The small part of YAML in which datasets are described: keys with texts, lists, and names by number.

Blocks of text, such as a script that downloads the images, are passed over.
"""

import re
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError

MAX_BYTES = 2**22  # bytes
KEY = re.compile(r"""("[^"]*"\s*|'[^']*'\s*|[^\s'"#:\[\]{},][^:#]*):(?:\s+(.*))?""")
ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"\s*|'(?:[^']|'')*'\s*|[^,'"\s][^,]*)(?:,|$)""")
COMMENT = re.compile(r"""((?:"[^"]*"|'[^']*'|[^'"#]|(?<=\S)[#'"])*)(?:(?:^|\s)#.*)?""")
BLOCK = re.compile(r"[^\s:#][^:#]*:\s+[|>][-+]?")  # the beginning of a block of text


def read_small_yaml(path: Path) -> dict[str, Any]:
    """Return texts, lists of texts and dictionaries of texts by key; an error names the line that is something else."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise VitrailError(f"{path} must be a description of a dataset, got a file of {path.stat().st_size:,} bytes")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise VitrailError(f"{path} cannot be read: {error}; write it as UTF-8 text") from None
    content: dict[str, Any] = {}
    key, number = "", 0
    while number < len(lines):
        line, number = _without_comment(lines[number]), number + 1
        if not line.strip() or line.strip() in ("---", "..."):
            continue
        begin = number
        while _is_open(line) and number < len(lines):  # a list over several lines
            line, number = f"{line} {_without_comment(lines[number]).strip()}", number + 1
        if BLOCK.fullmatch(line):
            while number < len(lines) and (not lines[number].strip() or lines[number][0] in " \t"):
                number += 1
        elif not _add_line(content, key, line):
            shown = line.strip()[:60]
            raise VitrailError(
                f"{path}, line {begin} cannot be read: {shown!r}; write lists as [cat, dog] or with one item per line"
            )
        key = next(reversed(content), "")
    return content


def _add_line(content: dict[str, Any], key: str, line: str) -> bool:
    """Add a line to what the last key has, or as a new key; False if it is neither."""
    text, is_indented = line.strip(), line[0] in " \t"
    if text.startswith("- ") or text == "-":
        if content.get(key) in (None, ""):
            content[key] = []
        if not key or not isinstance(content[key], list):
            return False
        content[key].append(_scalar(text[1:].strip()))
        return True
    match = KEY.fullmatch(text)
    if match is None:
        return False
    name, value = str(_scalar(match[1].strip())), (match[2] or "").strip()
    if not is_indented:
        content[name] = _value(value)
        return True
    if content.get(key) in (None, ""):
        content[key] = {}
    if not key or not isinstance(content[key], dict):
        return False
    content[key][name] = _scalar(value)
    return True


def _value(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(item) for item in ITEM.findall(text[1:-1])]
    if text.startswith("{") and text.endswith("}"):
        pairs = (KEY.fullmatch(item if ": " in item else item.replace(":", ": ", 1)) for item in ITEM.findall(text[1:-1]))
        return {str(_scalar(pair[1])): _scalar(pair[2] or "") for pair in pairs if pair is not None}
    return _scalar(text)


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return "" if text in ("null", "~") else text


def _without_comment(line: str) -> str:
    match = COMMENT.match(line)
    return (line if match is None else match[1]).rstrip()


def _is_open(line: str) -> bool:
    """Whether a list or dictionary in brackets goes on."""
    plain = re.sub(r"""'[^']*'|"[^"]*\"""", "", line)
    return plain.count("[") > plain.count("]") or plain.count("{") > plain.count("}")
