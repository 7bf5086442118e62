"""Options of every command that loads weights, for the preprocessing of files that do not record it."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from vitrail.cli.panels import PREPROCESSING
from vitrail.config import parse_value
from vitrail.data.preprocess import Interpolation, PreprocessChanges, change_assumed_preprocess
from vitrail.errors import VitrailError


def _option(name: str, metavar: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(f"--{name}", metavar=metavar, rich_help_panel=PREPROCESSING, help=text)]


OPTIONS = {
    "mean": _option("mean", "X|X,X,X", "Mean of each channel, from 0 to 1."),
    "std": _option("std", "X|X,X,X", "Standard deviation of each channel, from 0 to 1."),
    "interpolation": _option("interpolation", "NAME", "Resize by nearest, bilinear, bicubic or lanczos."),
    "crop": _option("crop", "X|squash", "Fraction that the centre crop keeps; squash: no crop, and any aspect ratio."),
}


def with_preprocess_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that also has ``--mean``, ``--std``, ``--interpolation`` and ``--crop``."""

    @wraps(command)
    def wrapped(**values: Any) -> Any:
        changes = parse_changes(**{name: values.pop(f"preprocess_{name}") for name in OPTIONS})
        with change_assumed_preprocess(changes):
            return command(**values)

    added = {f"preprocess_{name}": option for name, option in OPTIONS.items()}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in added.items()
    ]
    signature = inspect.signature(command)
    wrapped.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *parameters])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {**command.__annotations__, **added}
    return wrapped


def parse_changes(
    mean: str | None = None, std: str | None = None, interpolation: str | None = None, crop: str | None = None
) -> PreprocessChanges | None:
    """Parse the four options; None if none of them is given."""
    if mean is std is interpolation is crop is None:
        return None
    return PreprocessChanges(
        mean=None if mean is None else _numbers(mean, "--mean"),
        std=None if std is None else _numbers(std, "--std"),
        interpolation=parse_value(interpolation, Interpolation | None, "--interpolation"),
        crop_pct=None if crop is None else 1.0 if crop == "squash" else _numbers(crop, "--crop")[0],
        squash=None if crop is None else crop == "squash",
    )


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        example = "0.875 or --crop squash" if option == "--crop" else "0.485,0.456,0.406"
        raise VitrailError(f"{option} must be numbers, got {text[:40]!r}; try {option} {example}") from None
