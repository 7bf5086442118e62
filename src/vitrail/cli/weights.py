"""``vitrail weights``: show, convert and verify checkpoints of any origin."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from vitrail.cli.console import add_row, format_count, make_console, make_table, print_json
from vitrail.cli.help import Command, Group
from vitrail.cli.options import JsonOption, parse_size
from vitrail.cli.panels import model_option, output_option, run_option, source_option
from vitrail.cli.preprocess_options import with_preprocess_options
from vitrail.errors import VitrailError

weights = typer.Typer(
    name="weights",
    help="Show, convert and verify checkpoints of any origin.",
    epilog="Example: vitrail weights show ViT-B_16.npz",
    no_args_is_help=True,
    cls=Group,
)

CheckpointArgument = Annotated[
    str,
    typer.Argument(metavar="WEIGHTS", help="Checkpoint: a run, a model folder, .npz, .safetensors, .pth, or hf:owner/name."),
]
GridOption = Annotated[
    str | None, source_option(metavar="HxW", help="Grid of the position embedding, if the file does not record it.")
]
HeadsOption = Annotated[int | None, source_option(help="Number of attention heads, if the file does not record it.")]
PoolOption = Annotated[str | None, source_option(metavar="cls|gap|map", help="Pooling, if the file does not record it.")]
GeluOption = Annotated[
    str | None, source_option(metavar="tanh|exact|quick", help="Form of the GELU, if the file does not record it.")
]


@weights.command(cls=Command, epilog="Example: vitrail weights show ViT-B_16.npz")
def show(source: CheckpointArgument, json: JsonOption = False) -> None:
    """List the tensors of a checkpoint: shape, dtype, norm and values that are not finite (NaN/Inf)."""
    from vitrail.weights import hub
    from vitrail.weights.read_file import read_file

    tensors = read_file(hub.locate(source)).tensors
    rows = [_tensor_json(name, tensor) for name, tensor in tensors.items()]
    summary = {"tensors": len(rows), "parameters": sum(tensor.numel() for tensor in tensors.values())}
    if json:
        print_json({**summary, "rows": rows})
        return
    sheet = make_table("tensor", "shape", "dtype", "#norm", "#not finite", title=source)
    before: list[str] = []
    for row in sorted(rows, key=lambda row: _sort_key(row["name"])):
        *parents, leaf = row["name"].replace("/", ".").split(".")
        for depth, parent in enumerate(parents):
            if before[: depth + 1] != parents[: depth + 1]:
                add_row(sheet, "  " * depth + parent)
        before = parents
        nonfinite = Text(str(row["bad"]) if row["bad"] else "", style="red")
        add_row(sheet, "  " * len(parents) + leaf, str(tuple(row["shape"])), row["dtype"], f"{row['norm']:.4g}", nonfinite)
    screen = make_console()
    screen.print(sheet)
    screen.print(f"{format_count(summary['tensors'])} tensors, {format_count(summary['parameters'])} parameters")


@weights.command(cls=Command, epilog="Example: vitrail weights convert ViT-B_16.npz vit.safetensors --to timm")
@with_preprocess_options
def convert(
    source: CheckpointArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder or file to write, depending on the format.")],
    format: Annotated[
        str, output_option("--to", help="Format to write: vitrail, official, timm, huggingface, torchvision or segmenter.")
    ] = "vitrail",
    image: Annotated[
        str | None, model_option("--image-size", metavar="H[xW]", help="New image size; the position embedding is resized.")
    ] = None,
    patch: Annotated[
        str | None, model_option(metavar="H[xW]", help="New patch size; the patch embedding is resampled.")
    ] = None,
    channels: Annotated[int | None, model_option(help="New number of input channels.")] = None,
    classes: Annotated[int | None, model_option(help="New number of classes; the head becomes zero.")] = None,
    resize: Annotated[
        str,
        model_option(
            help="Whose rule resizes the position embedding: origin, official, timm, huggingface, torchvision, dino, segmenter."
        ),
    ] = "origin",
    grid: GridOption = None,
    heads: HeadsOption = None,
    gelu: GeluOption = None,
    pool: PoolOption = None,
    decoder_heads: Annotated[
        int | None, source_option(help="Number of heads of the MAE decoder, if the file does not record it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Convert a checkpoint of any origin to another format, and report what became of its tensors.

    The decoder of a pre-trained model is converted too, if the format supports it and the model is not changed.
    """
    from vitrail.weights.load import load, quiet_loading
    from vitrail.weights.save import save

    sizes: dict[str, Any] = {
        "image": parse_size(image, "--image-size") if image else None,
        "patch": parse_size(patch, "--patch") if patch else None,
    }
    overrides = _overrides(grid, heads, gelu, pool)
    with quiet_loading():  # the report is printed below
        masked, reason = _load_with_decoder(source, overrides, decoder_heads)
        if masked is not None and any(value is not None for value in (image, patch, channels, classes)):
            masked, reason = None, "the model was changed by the conversion"
        if masked is None:
            model = load(source, classes=classes, channels=channels, resize=resize, **sizes, **overrides)  # type: ignore[arg-type]
        else:
            model, reason = masked.encoder, _save_with_decoder(masked, out, format)
    with_decoder = masked is not None and reason is None
    left_behind = _left_behind(model, out, format)
    written = out.expanduser().resolve() if with_decoder else save(model, out, format=format, metadata=model.metadata)  # type: ignore[arg-type]
    if json:
        print_json(
            {
                "written": str(written),
                "format": format,
                **vars(model.load_report),
                "decoder": with_decoder,
                "without": reason,
                "left_behind": left_behind,
            }
        )
        return
    for line in model.load_report.lines():
        typer.echo(line)
    if reason is not None:
        typer.echo(f"without the decoder: {reason}")
    if left_behind:
        typer.echo(f"{' and '.join(left_behind)} of the model are left behind, for which the format has no place: {format}")
    typer.echo(f"wrote {format} weights{' and the decoder' if with_decoder else ''}: {written}")


@weights.command(cls=Command, epilog="Example: vitrail weights verify ViT-B_16.npz vit.safetensors")
def verify(
    first: CheckpointArgument,
    second: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Checkpoint to compare with; default: the library it came from.")
    ] = None,
    tolerance: Annotated[float, run_option(help="Largest accepted absolute difference of the logits.")] = 1e-4,
    grid: GridOption = None,
    heads: HeadsOption = None,
    gelu: GeluOption = None,
    pool: PoolOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the parameter count with the published one and the logits with a reference; exit code 1 if they differ."""
    from vitrail.weights.load import quiet_loading
    from vitrail.weights.verify import verify as verify_weights

    with quiet_loading():
        verdict = verify_weights(first, second, tolerance, **_overrides(grid, heads, gelu, pool))
    if json:
        print_json({**vars(verdict), "ok": verdict.ok})
    else:
        match_text = {None: "no published model to compare with", verdict.parameters: "as published"}
        typer.echo(
            f"{verdict.variant}: {verdict.parameters:,} parameters, "
            f"{match_text.get(verdict.published_parameters, f'published {verdict.published_parameters}')}"
        )
        for item in verdict.assumed:
            typer.echo(f"assumed {item}")
        if verdict.difference is None:
            typer.echo("no reference for the logits: name a second checkpoint, or install the library it came from")
        else:
            typer.echo(
                f"logits against {verdict.reference}: max difference {verdict.difference:.2e}, tolerance "
                f"{verdict.tolerance:.0e}"
            )
    if not verdict.ok:
        raise typer.Exit(1)


def _left_behind(model: Any, out: Path, format: str) -> list[str]:
    """Return the names of what a task has fitted to its data and the written file cannot record, such as thresholds."""
    records_all = format != "huggingface" and out.suffix != ".pth"
    return [] if records_all else list(model.metadata.get("task_state", {}))


def _load_with_decoder(source: str, overrides: dict[str, Any], heads: int | None) -> tuple[Any, str | None]:
    """Return the model with its decoder, or why there is none; neither if the file has no decoder."""
    from vitrail.weights.convert.inspect import Overrides
    from vitrail.weights.convert.mae import MAEOverrides
    from vitrail.weights.load_masked import load_with_decoder

    try:
        masked = load_with_decoder(source, Overrides(**overrides), MAEOverrides(heads))
    except VitrailError as error:
        if heads is not None:  # asked for explicitly
            raise
        return None, str(error)
    if masked is None and heads is not None:
        raise VitrailError(f"--decoder-heads is for the MAE decoder, and {source} has none; leave it out")
    return masked, None


def _save_with_decoder(masked: Any, out: Path, format: str) -> str | None:
    """Write the model with its decoder; return why the format cannot hold it, or None."""
    from vitrail.weights.save import save

    try:
        save(masked, out, format=format, metadata=masked.encoder.metadata)  # type: ignore[arg-type]
    except VitrailError as error:
        return str(error)
    return None


def _overrides(grid: str | None, heads: int | None, gelu: str | None, pool: str | None) -> dict[str, Any]:
    if gelu not in (None, "tanh", "exact", "quick"):
        raise VitrailError(f"--gelu must be tanh, exact or quick, got {gelu!r}")
    if pool not in (None, "cls", "gap", "map"):
        raise VitrailError(f"--pool must be cls, gap or map, got {pool!r}")
    return {"grid": parse_size(grid, "--grid") if grid else None, "heads": heads, "gelu": gelu, "pool": pool}


def _tensor_json(name: str, tensor: Any) -> dict[str, Any]:
    import torch

    values = tensor.double()
    finite = torch.isfinite(values)
    norm = torch.where(finite, values, 0).norm().item()
    nonfinite = int(tensor.numel() - finite.sum())
    return {
        "name": name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "norm": norm,
        "bad": nonfinite,
    }


def _sort_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers by value: block 2 before block 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.replace("/", ".").replace("_", ".").split(".")]
