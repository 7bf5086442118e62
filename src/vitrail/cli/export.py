"""``vitrail export``: write a model as one ONNX or torch.export file, kept only if its outputs match the model's."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vitrail.cli.console import add_row, format_bytes, make_console, make_table, print_json, progress_bars
from vitrail.cli.options import JsonOption, ModelArgument, check_output_file, parse_merge_tokens
from vitrail.cli.panels import int8_option, model_option, output_option, verification_option
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from rich.table import Table

    from vitrail.exporters.export import ExportResult
    from vitrail.exporters.quantise import QuantisationReport

EXPORT_SUFFIXES = {"onnx": ".onnx", "int8": ".int8.onnx", "program": ".pt2"}


def export(
    run: ModelArgument,
    to: Annotated[
        Literal["onnx", "int8", "program"], output_option(help="Format: ONNX, int8 ONNX for CPUs, or a torch.export program.")
    ] = "onnx",
    out: Annotated[
        Path | None, output_option(metavar="FILE", help="File to write; default: the model's name, in this folder.")
    ] = None,
    dynamic: Annotated[bool, model_option("--dynamic", help="Accept images of any height and width.")] = False,
    data: Annotated[
        str | None,
        verification_option(
            metavar="DATA", help="Dataset to compare the outputs on; default: the run's own, else synthetic images."
        ),
    ] = None,
    images: Annotated[
        int | None,
        verification_option(
            metavar="N", min=1, help="Number of images to compare on; default: up to 250, fewer for a large model."
        ),
    ] = None,
    merge_tokens: Annotated[
        str | None,
        model_option(
            "--merge-tokens",
            metavar="N|N/3|1.5x",
            help="Merge N similar tokens in every layer (N/3: every third), or as many as give a speedup (1.5x).",
        ),
    ] = None,
    tolerance: Annotated[
        float, verification_option(metavar="T", help="Largest accepted difference of a logit, relative to the largest logit.")
    ] = 1e-3,
    activations: Annotated[
        Literal["static", "dynamic"],
        int8_option(help="Activation scales: calibrated beforehand (static) or computed in each call (dynamic)."),
    ] = "static",
    max_drop: Annotated[
        float,
        int8_option(
            metavar="POINTS", min=0, max=99, help="Largest accepted loss of accuracy, mean IoU or AP, in percentage points."
        ),
    ] = 0.5,
    calibration: Annotated[int, int8_option(metavar="N", min=1, help="Number of images to calibrate the scales on.")] = 128,
    json: JsonOption = False,
) -> None:
    """Export a model to ONNX, int8 ONNX or torch.export, and verify its outputs against the model."""
    path = out or Path(default_export_name(run) + EXPORT_SUFFIXES[to])
    check_output_file(path, "--out", run, (".pt2",) if to == "program" else (".onnx",))
    if path.suffix != path.suffix.lower():
        raise VitrailError(f"--out must have a lower-case suffix, got {path}; try {path.with_suffix(path.suffix.lower())}")

    from vitrail.exporters.export import export, load_to_export

    with progress_bars() as on_progress:
        speedup_metadata = {} if merge_tokens is None else {"merge_tokens": merge_tokens}
        model = load_to_export(run, _speedups(merge_tokens))
        result = export(
            model,
            path,
            to,
            dynamic,
            data,
            tolerance,
            images,
            on_progress,
            activations,
            max_drop / 100,
            calibration,
            speedup_metadata,
        )
    if json:
        print_json({"model": run, **_result_json(result)})
    else:
        _print_result(result)


def default_export_name(run: str) -> str:
    """Return the default name of an exported file: the run's name, not that of its weights folder."""
    path = Path(run.removeprefix("hf:"))
    path = path.parent if path.name in ("best", "last", "model.safetensors") and path.parent.name else path
    name = path.resolve().name if path.name in ("", ".", "..") else path.name
    return name.removesuffix(path.suffix) if path.suffix in (".npz", ".safetensors", ".pth", ".pt", ".bin") else name


def _speedups(merge_tokens: str | None) -> Any:
    from vitrail.models.speedup_config import Speedups

    if merge_tokens is None:
        return None
    tokens, merge_every = parse_merge_tokens(merge_tokens)
    return Speedups(merge_tokens=tokens, merge_every=merge_every)


def _result_json(result: "ExportResult") -> dict[str, Any]:
    parity = result.parity
    return {
        **asdict(result),
        "out": str(result.out),
        "parity": {**asdict(parity), "relative_difference": parity.relative_difference},
    }


def _print_result(result: "ExportResult") -> None:
    parity, screen = result.parity, make_console()
    sheet = make_table("metric", "#value")
    add_row(sheet, "file size", format_bytes(result.file_bytes))
    add_row(sheet, "weights size", format_bytes(result.weight_bytes))
    add_row(sheet, "export time in seconds", f"{result.write_seconds:,.1f}")
    add_row(sheet, "images compared", f"{parity.num_images:,}")
    add_row(sheet, "max logit difference", f"{parity.max_difference:.2g}")
    if parity.other_sizes_difference is not None:
        add_row(sheet, "max logit difference at other sizes", f"{parity.other_sizes_difference:.2g}")
    add_row(sheet, "max logit", f"{parity.max_logit:.3g}")
    if parity.features:
        add_row(sheet, "cosine similarity of features", f"{parity.agreement:.5f}")
    else:
        add_row(sheet, parity.agreement_title, f"{parity.agreement:.2%}")
    for metric, expected, actual in (
        ("accuracy", parity.torch_top1, parity.file_top1),
        ("mAP", parity.torch_map, parity.file_map),
        ("mean IoU", parity.torch_miou, parity.file_miou),
        ("AP", parity.torch_ap, parity.file_ap),
    ):
        if expected is not None and actual is not None:
            add_row(sheet, f"{metric} with torch", f"{expected:.2%}")
            add_row(sheet, f"{metric} with {result.backend}", f"{actual:.2%}")
    if result.quantisation is not None:
        _add_layer_rows(sheet, result.quantisation)
    screen.print(sheet)
    screen.print(f"compared on {printable(parity.image_source)}", soft_wrap=True)
    if result.calibrated_on is not None and parity.real_images:
        screen.print(f"scales calibrated on {printable(result.calibrated_on)}", soft_wrap=True)
    if not parity.real_images:
        screen.print("pass real images with --data for a reliable comparison", soft_wrap=True)
    screen.print(f"file: {result.out}", soft_wrap=True)


def _add_layer_rows(sheet: "Table", quantised: "QuantisationReport") -> None:
    """Add the number of int8 layers, the layers kept in float, and the most sensitive block of the rest."""
    add_row(sheet, "layers in int8", f"{quantised.num_layers - len(quantised.float_layers)} of {quantised.num_layers}")
    for layer in quantised.float_layers:
        add_row(sheet, f"kept in float: {layer}", f"error in int8 {quantised.sensitivity[layer]:.2g}")
    blocks: dict[str, float] = {}
    for layer, error in quantised.sensitivity.items():
        if layer not in quantised.float_layers and layer.startswith("blocks."):
            block = ".".join(layer.split(".")[:2])
            blocks[block] = blocks.get(block, 0.0) + error
    if blocks:
        worst = max(blocks, key=lambda block: blocks[block])
        add_row(sheet, f"most sensitive of the rest: {worst}", f"error {blocks[worst]:.2g}")
