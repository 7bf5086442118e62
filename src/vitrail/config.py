"""Settings as frozen dataclasses: strict overrides from text, lossless JSON in both directions, types checked on creation.

A field is a bool, int, float, str, ``Literal``, a tuple of those, another settings class, or one of them or ``None``.
If a field may hold one of several settings classes, their ``Literal`` fields select the class; a class with a method
``select`` stands for an open set of classes, and selects among them itself.
"""

import json
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitrail.errors import VitrailError, did_you_mean

T = TypeVar("T")
MAX_LISTED_FIELDS = 12  # more than these are not listed in an error


def added(default: T) -> T:
    """A field that was added after files with these settings had been written.

    JSON leaves it out at its default, so that settings from before and after the field have the same text and hash.
    """
    result: T = field(default=default, metadata={"added": True})
    return result


def override(settings: T, assignments: Sequence[str]) -> T:
    """Return changed settings: ``override(recipe, ["model.depth=6"])``. All at once: some fields are valid only together."""
    return build_config(type(settings), _field_values(settings), assignments)


def build_config(cls: type[T], values: Mapping[str, Any], assignments: Sequence[str], prefix: str = "") -> T:
    """Build settings of this class from field values and overrides, whose paths start with the prefix."""
    changes: dict[str, str] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise VitrailError(f"an override reads FIELD=VALUE, got {assignment!r}; try '{path}=...'")
        changes[path.strip()] = text.strip()
    valid_paths = field_paths(cls, values, prefix)
    for path in changes:
        if path not in valid_paths:
            raise VitrailError(f"no field is named {path!r}{_suggest_path(path, valid_paths)}")
    return cls(**_apply_overrides(cls, values, changes, prefix))


def validate(settings: Any) -> None:
    """Check and convert every field by its type; the first line of every ``__post_init__``."""
    cls: Any = type(settings)
    for name, annotation in type_hints(cls).items():
        object.__setattr__(settings, name, parse_value(getattr(settings, name), annotation, name))


def to_json(settings: object) -> str:
    return json.dumps(to_dict(settings), indent=2, allow_nan=False)


def from_json(cls: type[T], text: str) -> T:
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise VitrailError(f"not JSON: {error}") from None
    return parse_value(plain, cls, "")


def to_dict(value: Any) -> Any:
    """Return settings as dicts, lists and scalars, ready for ``json.dumps``."""
    if is_dataclass(value):
        return {field.name: to_dict(getattr(value, field.name)) for field in fields(value) if not _is_left_out(field, value)}
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    return value


def _is_left_out(field: Field[Any], settings: Any) -> bool:
    return "added" in field.metadata and getattr(settings, field.name) == field.default


def parse_value(value: Any, annotation: Any, path: str) -> Any:
    """Convert a plain value to the annotated type, or raise an error that names what ``path`` must be."""
    for option in (annotation.select(value),) if hasattr(annotation, "select") else union_members(annotation):
        matches, parsed = _parse_as(value, option, path)
        if matches:
            return parsed
    expected = " or ".join(describe_type(option) for option in union_members(annotation))
    hint = ""
    if isinstance(value, str):
        hint = did_you_mean(value, [choice for option in union_members(annotation) for choice in literal_choices(option)])
    raise VitrailError(f"{path or 'the settings'} must be {expected}, got {value!r}{hint}")


@cache
def type_hints(cls: Any) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def union_members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def literal_choices(annotation: Any) -> list[str]:
    return [choice for choice in get_args(annotation) if isinstance(choice, str)] if get_origin(annotation) is Literal else []


def describe_type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        *others, last = (repr(choice) for choice in get_args(annotation))
        return f"{', '.join(others)} or {last}" if others else last
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        if inner == (int, int):
            return "a whole number or a pair such as 224x448"
        return f"a list of values, each {describe_type(inner[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "none"}
    return names.get(annotation) or f"a {annotation.__name__}"


def field_paths(cls: Any, values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the dotted path of every field that can be set."""
    result = []
    for name, hint in type_hints(cls).items():
        value = values.get(name)
        if is_dataclass(value):
            result += field_paths(type(value), _field_values(value), f"{prefix}{name}.")
        elif (optional := _optional_settings(hint)) is not None:
            result += field_paths(optional, _field_values(optional()), f"{prefix}{name}.")
        if not is_dataclass(value) or types.NoneType in union_members(hint):
            result.append(prefix + name)
    return result


def _optional_settings(annotation: Any) -> Any:
    """Return the one settings class of a field that may be none, if it can be built without values; else None."""
    options = union_members(annotation)
    classes = [option for option in options if is_dataclass(option)]
    if types.NoneType not in options or len(classes) != 1:
        return None
    has_defaults = all(field.default is not MISSING or field.default_factory is not MISSING for field in fields(classes[0]))
    return classes[0] if has_defaults else None


def _field_values(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def _suggest_path(path: str, valid_paths: list[str]) -> str:
    leaf = path.rpartition(".")[2]
    same_leaf = [name for name in valid_paths if name.rpartition(".")[2] == leaf]
    if same_leaf:
        return f"; did you mean {same_leaf[0]!r}?"
    few = len(valid_paths) <= MAX_LISTED_FIELDS
    remedy = f"; there are {', '.join(valid_paths)}" if few else "; vitrail train --print-recipe lists all fields"
    return did_you_mean(path, valid_paths) or remedy


def _apply_overrides(cls: Any, values: Mapping[str, Any], changes: Mapping[str, str], prefix: str) -> dict[str, Any]:
    new = dict(values)
    for name, hint in type_hints(cls).items():
        path, value = prefix + name, values.get(name)
        if path in changes:
            new[name] = parse_value(_parse_text(changes[path], hint), hint, path)
        elif is_dataclass(value) or any(other.startswith(f"{path}.") for other in changes):
            inner = value if is_dataclass(value) else _optional_settings(hint)()
            inner_cls: Any = type(inner)
            new[name] = inner_cls(**_apply_overrides(inner_cls, _field_values(inner), changes, path + "."))
    return new


def _parse_text(text: str, annotation: Any) -> Any:
    """Parse an override's text to a plain value, before its type is checked."""
    options = union_members(annotation)
    if types.NoneType in options and text.lower() in ("none", "null"):
        return None
    if any(get_origin(option) is tuple for option in options):
        parts = text.strip("[]()").replace("x", ",").split(",")
        numbers = [_parse_scalar(part.strip()) for part in parts if part.strip()]
        pair = any(get_args(option) == (int, int) for option in options)
        return numbers[0] if pair and len(numbers) == 1 else numbers
    if any(option is str or text in literal_choices(option) for option in options):
        return text
    return _parse_scalar(text)


def _parse_scalar(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def _parse_as(value: Any, annotation: Any, path: str) -> tuple[bool, Any]:
    if annotation is types.NoneType:
        return value is None, None
    if get_origin(annotation) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(annotation)), value
    if get_origin(annotation) is tuple:
        return _parse_tuple(value, get_args(annotation), path)
    if is_dataclass(annotation):
        return _parse_settings(value, annotation, path)
    if annotation is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        return is_number, float(value) if is_number else value
    return type(value) is annotation, value


def _parse_tuple(value: Any, inner: tuple[Any, ...], path: str) -> tuple[bool, Any]:
    if inner == (int, int) and type(value) is int:
        return True, (value, value)  # one number stands for both sides
    if not isinstance(value, list | tuple):
        return False, value
    annotations = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
    if len(annotations) != len(value):
        return False, value
    pairs = [_parse_as(item, annotation, path) for item, annotation in zip(value, annotations, strict=True)]
    return all(matches for matches, _ in pairs), tuple(parsed for _, parsed in pairs)


def _parse_settings(value: Any, cls: Any, path: str) -> tuple[bool, Any]:
    if isinstance(value, cls):
        return True, value
    if not isinstance(value, dict):
        return False, value
    annotations = type_hints(cls)
    tags = {
        name: get_args(hint) for name, hint in annotations.items() if get_origin(hint) is Literal and len(get_args(hint)) == 1
    }
    if any(value.get(name) not in expected for name, expected in tags.items()):
        return False, value  # another of several settings classes
    prefix = f"{path}." if path else ""
    for name in value:
        if name not in annotations:
            raise VitrailError(f"no field is named {prefix + name!r}{did_you_mean(name, annotations)}")
    for needed in fields(cls):
        if needed.name not in value and needed.default is MISSING and needed.default_factory is MISSING:
            raise VitrailError(f"the field {prefix + needed.name!r} is missing")
    return True, cls(**{name: parse_value(item, annotations[name], prefix + name) for name, item in value.items()})
