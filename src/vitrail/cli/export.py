"""``vitrail export``: write a model as one ONNX or torch.export file, kept only if its outputs match the model's."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.cli.faster import merging
from vitrail.cli.options import Json, check_out
from vitrail.cli.screen import add, console, print_json, progress, size, table
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from rich.table import Table

    from vitrail.export.quantise import Quantised
    from vitrail.export.ship import Shipped

ENDINGS = {"onnx": ".onnx", "int8": ".int8.onnx", "program": ".pt2"}


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, or any weights: a folder, a file, hf:owner/name.")],
    to: Annotated[
        Literal["onnx", "int8", "program"],
        typer.Option(rich_help_panel="Output", help="Format: ONNX, int8 ONNX for CPUs, or a torch.export program."),
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel="Output", help="File to write; default: the run's name, in this folder."),
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", rich_help_panel="Model", help="Accept images of any height and width.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            rich_help_panel="Verification",
            help="Dataset to compare the outputs on; default: the run's own, else synthetic images.",
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            rich_help_panel="Verification",
            help="Number of images to compare on; default: up to 250, fewer for a large model.",
        ),
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option(
            "--merge-tokens",
            metavar="N|N/3|1.5x",
            rich_help_panel="Model",
            help="Merge N similar tokens in every (third) layer, or as many as give this speedup.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="T",
            rich_help_panel="Verification",
            help="Largest accepted difference of a logit, relative to the largest logit.",
        ),
    ] = 1e-3,
    activations: Annotated[
        Literal["static", "dynamic"],
        typer.Option(
            rich_help_panel="Int8", help="Activation scales: calibrated beforehand (static) or computed in each call (dynamic)."
        ),
    ] = "static",
    max_drop: Annotated[
        float,
        typer.Option(
            metavar="POINTS",
            min=0,
            max=99,
            rich_help_panel="Int8",
            help="Largest accepted loss of accuracy, in percentage points.",
        ),
    ] = 0.5,
    calibration: Annotated[
        int, typer.Option(metavar="N", min=1, rich_help_panel="Int8", help="Number of images to calibrate the scales on.")
    ] = 128,
    json: Json = False,
) -> None:
    """Export a model to ONNX, int8 ONNX or torch.export, and verify its outputs against the model."""
    place = out or Path(named(run) + ENDINGS[to])
    check_out(place, "--out", run, (".pt2",) if to == "program" else (".onnx",))
    if place.suffix != place.suffix.lower():
        raise VitrailError(f"--out must have a lower-case suffix, got {place}; try {place.with_suffix(place.suffix.lower())}")

    from vitrail.export.exported import open_model
    from vitrail.export.ship import ship

    with progress() as tell:
        told = {} if merge is None else {"merge": merge}
        model = open_model(run, _faster(merge))
        shipped = ship(model, place, to, dynamic, data, tolerance, images, tell, activations, max_drop / 100, calibration, told)
    if json:
        print_json({"model": run, **_plain(shipped)})
    else:
        _tell(shipped)


def named(run: str) -> str:
    """Return the default name of an exported file: the run's name, not that of its weights folder."""
    path = Path(run.removeprefix("hf:"))
    path = path.parent if path.name in ("best", "last", "model.safetensors") and path.parent.name else path
    name = path.resolve().name if path.name in ("", ".", "..") else path.name
    return name.removesuffix(path.suffix) if path.suffix in (".npz", ".safetensors", ".pth", ".pt", ".bin") else name


def _faster(merge: str | None) -> Any:
    from vitrail.models.faster import Faster

    if merge is None:
        return None
    tokens, every = merging(merge)
    return Faster(merge=tokens, every=every)


def _plain(shipped: "Shipped") -> dict[str, Any]:
    found = shipped.checked
    return {**asdict(shipped), "out": str(shipped.out), "checked": {**asdict(found), "relative": found.relative}}


def _tell(shipped: "Shipped") -> None:
    found, screen = shipped.checked, console()
    sheet = table("metric", "#value")
    add(sheet, "file size", size(shipped.bytes))
    add(sheet, "weights size", size(shipped.weights))
    add(sheet, "export time in seconds", f"{shipped.seconds:,.1f}")
    add(sheet, "images compared", f"{found.pictures:,}")
    add(sheet, "max logit difference", f"{found.difference:.2g}")
    if found.other_sizes is not None:
        add(sheet, "max logit difference at other sizes", f"{found.other_sizes:.2g}")
    add(sheet, "max logit", f"{found.scale:.3g}")
    if found.features:
        add(sheet, "cosine similarity of features", f"{found.agreement:.5f}")
    else:
        add(sheet, "same top-1 prediction", f"{found.agreement:.2%}")
    if found.torch_top1 is not None and found.file_top1 is not None:
        add(sheet, "accuracy with torch", f"{found.torch_top1:.2%}")
        add(sheet, f"accuracy with {shipped.engine}", f"{found.file_top1:.2%}")
    if shipped.quantised is not None:
        _tell_layers(sheet, shipped.quantised)
    screen.print(sheet)
    screen.print(f"compared on {printable(found.what)}", soft_wrap=True)
    if shipped.calibrated is not None and found.real:
        screen.print(f"scales calibrated on {printable(shipped.calibrated)}", soft_wrap=True)
    if not found.real:
        screen.print("pass real images with --data for a reliable comparison", soft_wrap=True)
    screen.print(f"file: {shipped.out}", soft_wrap=True)


def _tell_layers(sheet: "Table", found: "Quantised") -> None:
    """Add the number of int8 layers, the layers kept in float, and the most sensitive block of the rest."""
    add(sheet, "layers in int8", f"{found.layers - len(found.in_float)} of {found.layers}")
    for layer in found.in_float:
        add(sheet, f"kept in float: {layer}", f"error in int8 {found.sensitivity[layer]:.2g}")
    blocks: dict[str, float] = {}
    for layer, error in found.sensitivity.items():
        if layer not in found.in_float and layer.startswith("blocks."):
            block = ".".join(layer.split(".")[:2])
            blocks[block] = blocks.get(block, 0.0) + error
    if blocks:
        worst = max(blocks, key=lambda block: blocks[block])
        add(sheet, f"most sensitive of the rest: {worst}", f"error {blocks[worst]:.2g}")
