"""Options of commands that load weights, for what their files do not record: the preprocessing and the class names."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli.panels import PREPROCESSING
from vitrail.config import parse_value
from vitrail.data.class_names import give_class_names, read_class_names
from vitrail.data.preprocess import Fit, Interpolation, PreprocessChanges, change_assumed_preprocess
from vitrail.errors import VitrailError


def _option(name: str, metavar: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(f"--{name}", metavar=metavar, rich_help_panel=PREPROCESSING, help=text)]


OPTIONS = {
    "mean": _option("mean", "X|X,X,X", "Mean of each channel, from 0 to 1."),
    "std": _option("std", "X|X,X,X", "Standard deviation of each channel, from 0 to 1."),
    "interpolation": _option("interpolation", "NAME", "Resize by nearest, bilinear, bicubic or lanczos."),
    "crop": _option("crop", "X", "Fraction that the centre crop keeps."),
    "fit": _option("fit", "crop|pad|stretch", "Crop the image, pad it with the mean colour, or change its aspect ratio."),
}


LABELS = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        rich_help_panel=PREPROCESSING,
        help="Class names, one per line or a JSON list, for weights that do not record them.",
    ),
]


def with_labels_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that also has ``--labels``."""

    @wraps(command)
    def wrapped(labels: Path | None = None, **values: Any) -> Any:
        with give_class_names(None if labels is None else read_class_names(labels)):
            return command(**values)

    return _with_options(wrapped, command, {"labels": LABELS})


def with_preprocess_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that also has ``--mean``, ``--std``, ``--interpolation``, ``--crop`` and ``--fit``, unless it has one of
    that name itself."""
    added = {name: option for name, option in OPTIONS.items() if name not in inspect.signature(command).parameters}

    @wraps(command)
    def wrapped(**values: Any) -> Any:
        changes = parse_changes(**{name: values.pop(f"preprocess_{name}") for name in added})
        with change_assumed_preprocess(changes):
            return command(**values)

    return _with_options(wrapped, command, {f"preprocess_{name}": option for name, option in added.items()})


def _with_options(wrapped: Any, command: Callable[..., Any], added: Mapping[str, Any]) -> Callable[..., Any]:
    """Give a wrapped command its own options and the added ones."""
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in added.items()
    ]
    signature = inspect.signature(command)
    wrapped.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *parameters])
    wrapped.__annotations__ = {**command.__annotations__, **added}
    result: Callable[..., Any] = wrapped
    return result


def parse_changes(
    mean: str | None = None,
    std: str | None = None,
    interpolation: str | None = None,
    crop: str | None = None,
    fit: str | None = None,
) -> PreprocessChanges | None:
    """Parse the options; None if none of them is given. A fraction to crop implies ``fit="crop"``."""
    if mean is std is interpolation is crop is fit is None:
        return None
    return PreprocessChanges(
        mean=None if mean is None else _numbers(mean, "--mean"),
        std=None if std is None else _numbers(std, "--std"),
        interpolation=parse_value(interpolation, Interpolation | None, "--interpolation"),
        crop_pct=None if crop is None else _numbers(crop, "--crop")[0],
        fit=parse_value(fit or (None if crop is None else "crop"), Fit | None, "--fit"),
    )


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        example = "0.875" if option == "--crop" else "0.485,0.456,0.406"
        raise VitrailError(f"{option} must be numbers, got {text[:40]!r}; try {option} {example}") from None
