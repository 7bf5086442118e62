"""Options that several commands share, each declared once, with their parsing and checks."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitrail.cli.panels import data_option, model_option, output_option, run_option
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.sources.columns import Columns
    from vitrail.inference.tiles import TileSize
    from vitrail.models.speedup_config import Speedups

JsonOption = Annotated[bool, output_option("--json", help="Print the result as one JSON object.")]
SettingsOption = Annotated[
    list[str] | None, model_option("--set", metavar="FIELD=VALUE", help="Override a configuration field; repeatable.")
]

MODEL_HELP = "Model: a run, a folder or file of weights, a published one such as dinov2-s14 (vitrail models)"
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=f"{MODEL_HELP}, or hf:owner/name.")]
PredictorArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{MODEL_HELP}, hf:owner/name, or an exported .onnx or .pt2 file.")
]
RunsAndDataArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL... DATA",
        help="One or more models, each a run, weights, a name such as dinov2-s14, or an exported .onnx or .pt2 file; then a "
        "labelled dataset.",
    ),
]
BackendOption = Annotated[
    Literal["auto", "torch", "onnxruntime"], model_option(help="Inference backend; auto: the one that the file needs.")
]
SplitOption = Annotated[
    Literal["test", "validation", "train", "all"] | None,
    data_option(help="Split to evaluate on; default: test if there is one, else validation, else all."),
]

LabelsColumnOption = Annotated[
    str | None,
    data_option("--labels-column", metavar="NAME", help="Column of a table with the labels; default: found by name."),
]
SeparatorOption = Annotated[
    str | None,
    data_option(
        "--separator",
        metavar="TEXT",
        help="What separates several labels of one image, such as ';'; none: one label per image.",
    ),
]
TargetOption = Annotated[
    list[str] | None, data_option("--target", metavar="COLUMN", help="Column of a table with a number to predict; repeatable.")
]

IgnoreOption = Annotated[
    list[str] | None,
    data_option(
        "--ignore",
        metavar="VALUE",
        help="Value or class in masks that counts for no class, besides 255 and void; none: no value; repeatable.",
    ),
]
TargetsOption = Annotated[
    Literal["classify", "segment", "detect"] | None,
    data_option("--task", help="What the targets are of a dataset that has several: labels, masks or boxes; default: found."),
]


def column_options(message: str) -> str:
    """Return a message with the options of the command in place of those of Python."""
    return re.sub(
        r"(?<![\w.-])(labels_column|separator|target|ignore|tile|overlap|threshold)=(?=[^\s=])",
        lambda match: f"--{match[1].replace('_', '-')} ",
        message,
    )


BatchOption = Annotated[int, run_option("--batch-size", metavar="B", min=1, help="Number of images per batch.")]

# Options that speed up inference.
CompileOption = Annotated[bool, model_option("--compile", help="Compile the model with torch.compile (about a minute).")]
MergeTokensOption = Annotated[
    str | None,
    model_option(
        "--merge-tokens",
        metavar="N|N/3|1.5x",
        help="Merge N similar tokens in every layer (N/3: every third), or as many as give a speedup (1.5x).",
    ),
]
DropPatchesOption = Annotated[
    float,
    model_option(
        "--drop-patches", metavar="FRACTION", help="Drop this fraction of the patches, those with the least contrast first."
    ),
]
ImageSizeOption = Annotated[
    str | None, model_option("--image-size", metavar="S|HxW", help="Resize images to another input size, such as 160.")
]

TileOption = Annotated[
    str,
    model_option(
        "--tile",
        metavar="auto|H[xW]|none",
        help="Predict masks of larger images in tiles of so many pixels of the image; auto: the size of the training images, "
        "for images at least twice as large.",
    ),
]
OverlapOption = Annotated[
    float, model_option("--overlap", metavar="FRACTION", help="Fraction of a tile that its neighbour shows as well.")
]

TTAOption = Annotated[
    Literal["flip", "crops", "scales"] | None,
    model_option(
        "--tta", help="Test-time augmentation: average over the horizontal flip, ten crops, or of masks three scales."
    ),
]


def parse_tile(text: str) -> "TileSize":
    """Parse ``auto``, ``none``, ``512`` or ``512x640``, which is height and width."""
    return text if text == "auto" or text == "none" else parse_size(text, "--tile")


def parse_size(text: str, option: str) -> tuple[int, int]:
    """Parse ``224`` or ``224x448`` into height and width."""
    sides = text.lower().split("x")
    if not all(side.isdecimal() and len(side) < 7 for side in sides) or len(sides) > 2:
        raise VitrailError(
            f"{option} must be a number or HEIGHTxWIDTH, got {text[:20]!r}; try {option} 224 or {option} 224x448"
        )
    return int(sides[0]), int(sides[-1])


def require_packages(purpose: str, extra: str, *packages: str) -> None:
    """Check that optional packages are installed, before the work."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise VitrailError(f"{purpose} needs {' and '.join(missing)}; try pip install 'vitrail[{extra}]'")


def check_output_file(path: Path, option: str, source: str, endings: tuple[str, ...] | None = None) -> None:
    """Check before the work that the output file can be written and is not the input."""
    if path.is_dir():
        raise VitrailError(f"{option} must be a file, got the folder {path}; try {path / 'mine'}{path.suffix}")
    if not path.parent.is_dir():
        raise VitrailError(f"{option} must be a file in a folder that exists, got {path}; try {path.name or 'mine'}")
    if endings and path.suffix.lower() not in endings:
        raise VitrailError(f"{option} must end in {' or '.join(endings)}, got {path}; try {path.stem}{endings[0]}")
    if path.exists() and (not path.is_file() or (Path(source).exists() and path.samefile(source))):
        raise VitrailError(f"{option} must not be the dataset itself or a device, got {path}; name another file")


def parse_merge_tokens(text: str | None) -> tuple[int | str, int]:
    """Parse ``8``, ``30/3`` (in every third layer) or ``1.5x`` into the tokens to merge and the layer interval."""
    tokens, _, interval = (text or "0").partition("/")
    if interval and not (interval.isdecimal() and len(interval) < 7):
        raise VitrailError(
            f"--merge-tokens must be N, N/LAYERS or a speedup such as 1.5x, got {(text or '')[:20]!r}; try 8, 30/3 or 1.5x"
        )
    return int(tokens) if tokens.isdecimal() and len(tokens) < 7 else tokens, int(interval or 1)


def select_speedups(
    compile: bool, merge_tokens: str | None, drop_patches: float, image: str | None, device: str = "cpu"
) -> "Speedups | None":
    """Return the speedups that are switched on, or None. Checks for a compiler."""
    from vitrail.models.speedup_config import Speedups

    speedups = Speedups(
        compile, *parse_merge_tokens(merge_tokens), drop_patches, None if image is None else parse_size(image, "--image-size")
    )
    if compile:
        from vitrail.training.hardware_check import compiler_fault

        if fault := compiler_fault(device):
            raise VitrailError(f"--compile does not work here ({fault}); install a C++ compiler, or leave it out")
    return None if speedups == Speedups() else speedups


def warn_about_compiling(speedups: "Speedups | None") -> None:
    """Say how long compiling takes, once the model is loaded and so accepts it."""
    if speedups is not None and speedups.compile:
        typer.echo("compiling: the first batch takes about a minute, which pays off for thousands of images", err=True)


def with_targets(columns: "Columns", task: str | None) -> "Columns":
    """Return the columns with the targets of a task, if one is chosen."""
    return columns if task is None else replace(columns, masks=task == "segment", boxes=task == "detect")
