"""Settings as frozen dataclasses: strict overrides from text, lossless JSON in both directions, types checked on creation.

A field is a bool, int, float, str, ``Literal``, a tuple of those, another settings class, or one of them or ``None``.
If a field may hold one of several settings classes, their ``Literal`` fields select the class.
"""

import json
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitrail.errors import VitrailError, suggestion

T = TypeVar("T")


def override(settings: T, assignments: Sequence[str]) -> T:
    """Return changed settings: ``override(recipe, ["model.depth=6"])``. All at once: some fields are valid only together."""
    return make(type(settings), _values(settings), assignments)


def make(kind: type[T], values: Mapping[str, Any], assignments: Sequence[str], prefix: str = "") -> T:
    """Build settings of this class from field values and overrides, whose paths start with the prefix."""
    changes: dict[str, str] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise VitrailError(f"an override reads FIELD=VALUE, got {assignment!r}; try '{path}=...'")
        changes[path.strip()] = text.strip()
    known = paths(kind, values, prefix)
    for path in changes:
        if path not in known:
            raise VitrailError(f"no field is named {path!r}{_nearest_path(path, known)}")
    return kind(**_changed(kind, values, changes, prefix))


def check(settings: Any) -> None:
    """Check and convert every field by its type; the first line of every ``__post_init__``."""
    cls: Any = type(settings)
    for name, kind in hints(cls).items():
        object.__setattr__(settings, name, read(getattr(settings, name), kind, name))


def to_json(settings: object) -> str:
    return json.dumps(to_plain(settings), indent=2, allow_nan=False)


def from_json(kind: type[T], text: str) -> T:
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise VitrailError(f"not JSON: {error}") from None
    return read(plain, kind, "")


def to_plain(value: Any) -> Any:
    """Return settings as dicts, lists and scalars, ready for ``json.dumps``."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def read(value: Any, kind: Any, path: str) -> Any:
    """Convert a plain value to the annotated type, or raise an error that names what ``path`` must be."""
    for option in alternatives(kind):
        matches, made = _read_as(value, option, path)
        if matches:
            return made
    what = " or ".join(describe(option) for option in alternatives(kind))
    hint = ""
    if isinstance(value, str):
        hint = suggestion(value, [choice for option in alternatives(kind) for choice in choices(option)])
    raise VitrailError(f"{path or 'the settings'} must be {what}, got {value!r}{hint}")


@cache
def hints(cls: Any) -> Mapping[str, Any]:
    return get_type_hints(cls)


def alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def choices(kind: Any) -> list[str]:
    return [choice for choice in get_args(kind) if isinstance(choice, str)] if get_origin(kind) is Literal else []


def describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        *most, last = (repr(choice) for choice in get_args(kind))
        return f"{', '.join(most)} or {last}" if most else last
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if inner == (int, int):
            return "a whole number or a pair such as 224x448"
        return f"a list of values, each {describe(inner[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "none"}
    return names.get(kind) or f"a {kind.__name__}"


def paths(kind: Any, values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the dotted path of every field that can be set."""
    found = []
    for name in hints(kind):
        value = values.get(name)
        if is_dataclass(value):
            found += paths(type(value), _values(value), f"{prefix}{name}.")
        if not is_dataclass(value) or types.NoneType in alternatives(hints(kind)[name]):
            found.append(prefix + name)
    return found


def _values(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def _nearest_path(path: str, known: list[str]) -> str:
    leaf = path.rpartition(".")[2]
    same_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    return f"; did you mean {same_leaf[0]!r}?" if same_leaf else suggestion(path, known)


def _changed(kind: Any, values: Mapping[str, Any], changes: Mapping[str, str], prefix: str) -> dict[str, Any]:
    new = dict(values)
    for name, hint in hints(kind).items():
        path, value = prefix + name, values.get(name)
        if path in changes:
            new[name] = read(_parse(changes[path], hint), hint, path)
        elif is_dataclass(value):
            inner: Any = type(value)
            new[name] = inner(**_changed(inner, _values(value), changes, path + "."))
    return new


def _parse(text: str, kind: Any) -> Any:
    """Parse an override's text to a plain value, before its type is checked."""
    options = alternatives(kind)
    if types.NoneType in options and text.lower() in ("none", "null"):
        return None
    if any(get_origin(option) is tuple for option in options):
        parts = text.strip("[]()").replace("x", ",").split(",")
        numbers = [_scalar(part.strip()) for part in parts if part.strip()]
        pair = any(get_args(option) == (int, int) for option in options)
        return numbers[0] if pair and len(numbers) == 1 else numbers
    if any(option is str or text in choices(option) for option in options):
        return text
    return _scalar(text)


def _scalar(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def _read_as(value: Any, kind: Any, path: str) -> tuple[bool, Any]:
    if kind is types.NoneType:
        return value is None, None
    if get_origin(kind) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(kind)), value
    if get_origin(kind) is tuple:
        return _read_tuple(value, get_args(kind), path)
    if is_dataclass(kind):
        return _read_settings(value, kind, path)
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        return number, float(value) if number else value
    return type(value) is kind, value


def _read_tuple(value: Any, inner: tuple[Any, ...], path: str) -> tuple[bool, Any]:
    if inner == (int, int) and type(value) is int:
        return True, (value, value)  # one number stands for both sides
    if not isinstance(value, list | tuple):
        return False, value
    kinds = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
    if len(kinds) != len(value):
        return False, value
    pairs = [_read_as(item, kind, path) for item, kind in zip(value, kinds, strict=True)]
    return all(matches for matches, _ in pairs), tuple(made for _, made in pairs)


def _read_settings(value: Any, kind: Any, path: str) -> tuple[bool, Any]:
    if isinstance(value, kind):
        return True, value
    if not isinstance(value, dict):
        return False, value
    known = hints(kind)
    tags = {name: get_args(hint) for name, hint in known.items() if get_origin(hint) is Literal and len(get_args(hint)) == 1}
    if any(value.get(name) not in expected for name, expected in tags.items()):
        return False, value  # another of several settings classes
    prefix = f"{path}." if path else ""
    for name in value:
        if name not in known:
            raise VitrailError(f"no field is named {prefix + name!r}{suggestion(name, known)}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise VitrailError(f"the field {prefix + field.name!r} is missing")
    return True, kind(**{name: read(item, known[name], prefix + name) for name, item in value.items()})
