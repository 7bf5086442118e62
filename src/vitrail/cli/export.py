"""``vitrail export``: a model as one file that runs without Vitrail, kept only if it answers as the model does."""

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
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or any weights: a folder, a file, hf:owner/name.")],
    to: Annotated[
        Literal["onnx", "int8", "program"], typer.Option(help="ONNX, ONNX in 8 bits for CPUs, or a torch.export program.")
    ] = "onnx",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; else here, under the run's name.")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Take pictures of any height and width.")] = False,
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="Pictures to compare on; else the run's own, else drawn ones.")
    ] = None,
    pictures: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many to compare on; else up to 250, fewer of a large model.")
    ] = None,
    merge: Annotated[
        str | None, typer.Option(metavar="N", help="Merge N alike tokens in each layer, or as many as make it 1.5x as fast.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="T", help="The largest difference of a logit, as a share of the largest logit.")
    ] = 1e-3,
    activations: Annotated[
        Literal["static", "dynamic"], typer.Option(help="Of int8: scales found beforehand on pictures, or in each call.")
    ] = "static",
    max_drop: Annotated[
        float, typer.Option(metavar="POINTS", min=0, max=99, help="Of int8: accuracy that may be lost, in points of a hundred.")
    ] = 0.5,
    calibration: Annotated[int, typer.Option(metavar="N", min=1, help="Of int8: pictures to find scales on.")] = 128,
    json: Json = False,
) -> None:
    """Write a model as one file that runs without Vitrail. It is tried, and removed unless it answers as the model does."""
    place = out or Path(named(run) + ENDINGS[to])
    check_out(place, "--out", run, (".pt2",) if to == "program" else (".onnx",))
    if place.suffix != place.suffix.lower():
        raise VitrailError(f"--out must end in small letters, got {place}; try {place.with_suffix(place.suffix.lower())}")

    from vitrail.export.exported import open_model
    from vitrail.export.ship import ship

    with progress() as tell:
        told = {} if merge is None else {"merge": merge}
        model = open_model(run, _faster(merge))
        shipped = ship(
            model, place, to, dynamic, data, tolerance, pictures, tell, activations, max_drop / 100, calibration, told
        )
    if json:
        print_json({"model": run, **_plain(shipped)})
    else:
        _tell(shipped)


def named(run: str) -> str:
    """What a file of it is called: by the run, not by which of its weights."""
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
    sheet = table("what", "#value")
    add(sheet, "size of the file", size(shipped.bytes))
    add(sheet, "size of the weights", size(shipped.weights))
    add(sheet, "seconds to write it", f"{shipped.seconds:,.1f}")
    add(sheet, "pictures compared on", f"{found.pictures:,}")
    add(sheet, "largest difference of a logit", f"{found.difference:.2g}")
    if found.other_sizes is not None:
        add(sheet, "largest difference at other sizes", f"{found.other_sizes:.2g}")
    add(sheet, "largest logit", f"{found.scale:.3g}")
    if found.features:
        add(sheet, "cosine of the features", f"{found.agreement:.5f}")
    else:
        add(sheet, "same first answer", f"{found.agreement:.2%}")
    if found.torch_top1 is not None and found.file_top1 is not None:
        add(sheet, "accuracy by torch", f"{found.torch_top1:.2%}")
        add(sheet, f"accuracy by {shipped.engine}", f"{found.file_top1:.2%}")
    if shipped.quantised is not None:
        _tell_layers(sheet, shipped.quantised)
    screen.print(sheet)
    screen.print(f"compared on {printable(found.what)}", soft_wrap=True)
    if shipped.calibrated is not None and found.real:
        screen.print(f"scales found on {printable(shipped.calibrated)}", soft_wrap=True)
    if not found.real:
        screen.print("name real pictures by --data to be sure", soft_wrap=True)
    screen.print(f"file: {shipped.out}", soft_wrap=True)


def _tell_layers(sheet: "Table", found: "Quantised") -> None:
    """How many have 8 bits, and which do not bear it; of the others, the block that suffers most."""
    add(sheet, "layers in 8 bits", f"{found.layers - len(found.in_float)} of {found.layers}")
    for layer in found.in_float:
        add(sheet, f"in float: {layer}", f"error alone {found.sensitivity[layer]:.2g}")
    blocks: dict[str, float] = {}
    for layer, error in found.sensitivity.items():
        if layer not in found.in_float and layer.startswith("blocks."):
            block = ".".join(layer.split(".")[:2])
            blocks[block] = blocks.get(block, 0.0) + error
    if blocks:
        worst = max(blocks, key=lambda block: blocks[block])
        add(sheet, f"most sensitive of the rest: {worst}", f"error {blocks[worst]:.2g}")
