"""``vitrail weights``: show, convert and verify checkpoints of any origin."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from vitrail.cli.options import Json, pair
from vitrail.cli.screen import add, console, count, print_json, table
from vitrail.errors import VitrailError

weights = typer.Typer(name="weights", help="Show, convert and verify checkpoints of any origin.", no_args_is_help=True)

Source = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="Checkpoint: a model folder, .npz, .safetensors, .pth, a folder, or hf:owner/name."),
]
Grid = Annotated[
    str | None,
    typer.Option(metavar="HxW", rich_help_panel="Source", help="Grid of the position embedding, if the file does not tell."),
]
Heads = Annotated[
    int | None, typer.Option(rich_help_panel="Source", help="Number of attention heads, if the file does not tell.")
]
Pool = Annotated[
    str | None,
    typer.Option(metavar="cls|gap|map", rich_help_panel="Source", help="Pooling, if the file does not tell."),
]
Gelu = Annotated[
    str | None,
    typer.Option(metavar="tanh|exact", rich_help_panel="Source", help="GELU approximation, if the file does not tell."),
]


@weights.command(epilog="Example: vitrail weights show ViT-B_16.npz")
def show(source: Source, json: Json = False) -> None:
    """List the tensors of a checkpoint: shape, dtype, norm and values that are not finite (NaN/Inf)."""
    from vitrail.weights import hub
    from vitrail.weights.files import read_file

    path = hub.fetch(source) if source.startswith("hf:") else Path(source)
    tensors = read_file(path).tensors
    rows = [_describe(name, tensor) for name, tensor in tensors.items()]
    whole = {"tensors": len(rows), "parameters": sum(tensor.numel() for tensor in tensors.values())}
    if json:
        print_json({**whole, "rows": rows})
        return
    sheet = table("tensor", "shape", "dtype", "#norm", "#not finite", title=source)
    before: list[str] = []
    for row in sorted(rows, key=lambda row: _order(row["name"])):
        *parents, leaf = row["name"].replace("/", ".").split(".")
        for depth, parent in enumerate(parents):
            if before[: depth + 1] != parents[: depth + 1]:
                add(sheet, "  " * depth + parent)
        before = parents
        bad = Text(str(row["bad"]) if row["bad"] else "", style="red")
        add(sheet, "  " * len(parents) + leaf, str(tuple(row["shape"])), row["dtype"], f"{row['norm']:.4g}", bad)
    screen = console()
    screen.print(sheet)
    screen.print(f"{count(whole['tensors'])} tensors, {count(whole['parameters'])} parameters")


@weights.command(epilog="Example: vitrail weights convert ViT-B_16.npz vit.safetensors --to timm")
def convert(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder or file to write, depending on the format.")],
    format: Annotated[
        str,
        typer.Option(
            "--to", rich_help_panel="Output", help="Format to write: vitrail, official, timm, huggingface or torchvision."
        ),
    ] = "vitrail",
    image: Annotated[
        str | None,
        typer.Option(metavar="H[xW]", rich_help_panel="Model", help="New image size; the position embedding is resized."),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(metavar="H[xW]", rich_help_panel="Model", help="New patch size; the patch embedding is resampled."),
    ] = None,
    channels: Annotated[int | None, typer.Option(rich_help_panel="Model", help="New number of input channels.")] = None,
    classes: Annotated[
        int | None, typer.Option(rich_help_panel="Model", help="New number of classes; the head becomes zero.")
    ] = None,
    resize: Annotated[
        str,
        typer.Option(
            rich_help_panel="Model",
            help="Whose rule resizes the position embedding: origin, official, timm, huggingface or torchvision.",
        ),
    ] = "origin",
    grid: Grid = None,
    heads: Heads = None,
    gelu: Gelu = None,
    pool: Pool = None,
    decoder_heads: Annotated[
        int | None,
        typer.Option(rich_help_panel="Source", help="Number of heads of the MAE decoder, if the file does not tell."),
    ] = None,
    json: Json = False,
) -> None:
    """Convert a checkpoint of any origin to another format, and report what became of its tensors.

    The decoder of a pre-trained model is converted too, if the format supports it and the model is not changed.
    """
    from vitrail.weights.checkpoint import save
    from vitrail.weights.load import load, untold

    sizes: dict[str, Any] = {
        "image": pair(image, "--image") if image else None,
        "patch": pair(patch, "--patch") if patch else None,
    }
    said = _said(grid, heads, gelu, pool)
    with untold():  # the report is printed below
        whole, why = _decoder(source, said, decoder_heads)
        if whole is not None and any(value is not None for value in (image, patch, channels, classes)):
            whole, why = None, "the model was changed by the conversion"
        if whole is None:
            model = load(source, classes=classes, channels=channels, resize=resize, **sizes, **said)  # type: ignore[arg-type]
        else:
            model, why = whole.encoder, _refusal(whole, out, format)
    carried = whole is not None and why is None
    written = out.expanduser().resolve() if carried else save(model, out, format=format, facts=model.facts)  # type: ignore[arg-type]
    if json:
        print_json({"written": str(written), "format": format, **vars(model.report), "decoder": carried, "without": why})
        return
    for line in model.report.lines():
        typer.echo(line)
    if why is not None:
        typer.echo(f"without the decoder: {why}")
    typer.echo(f"wrote {format} weights{' and the decoder' if carried else ''}: {written}")


@weights.command(epilog="Example: vitrail weights verify ViT-B_16.npz vit.safetensors")
def verify(
    first: Source,
    second: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="Checkpoint to compare with; default: the library it came from.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(rich_help_panel="Run", help="Largest accepted absolute difference of the logits.")
    ] = 1e-4,
    grid: Grid = None,
    heads: Heads = None,
    gelu: Gelu = None,
    pool: Pool = None,
    json: Json = False,
) -> None:
    """Compare the parameter count with the published one and the logits with a reference; exit code 1 if they differ."""
    from vitrail.weights.load import untold
    from vitrail.weights.verify import verify as check

    with untold():
        verdict = check(first, second, tolerance, **_said(grid, heads, gelu, pool))
    if json:
        print_json({**vars(verdict), "ok": verdict.ok})
    else:
        right = {None: "no published model to compare with", verdict.parameters: "as published"}
        typer.echo(
            f"{verdict.name}: {verdict.parameters:,} parameters, {right.get(verdict.expected, f'published {verdict.expected}')}"
        )
        for item in verdict.assumed:
            typer.echo(f"assumed {item}")
        if verdict.difference is None:
            typer.echo("no reference for the logits: name a second checkpoint, or install the library it came from")
        else:
            typer.echo(
                f"logits against {verdict.against}: max difference {verdict.difference:.2e}, tolerance {verdict.tolerance:.0e}"
            )
    if not verdict.ok:
        raise typer.Exit(1)


def _decoder(source: str, said: dict[str, Any], heads: int | None) -> tuple[Any, str | None]:
    """Return the model with its decoder, or why there is none; neither if the file has no decoder."""
    from vitrail.weights.convert.detect import Wishes
    from vitrail.weights.convert.mae import Hints
    from vitrail.weights.masked import decoded

    try:
        whole = decoded(source, Wishes(**said), Hints(heads))
    except VitrailError as error:
        if heads is not None:  # asked for explicitly
            raise
        return None, str(error)
    if whole is None and heads is not None:
        raise VitrailError(f"--decoder-heads is for the MAE decoder, and {source} has none; leave it out")
    return whole, None


def _refusal(whole: Any, out: Path, format: str) -> str | None:
    """Write the model with its decoder; return why the format cannot hold it, or None."""
    from vitrail.weights.checkpoint import save

    try:
        save(whole, out, format=format, facts=whole.encoder.facts)  # type: ignore[arg-type]
    except VitrailError as error:
        return str(error)
    return None


def _said(grid: str | None, heads: int | None, gelu: str | None, pool: str | None) -> dict[str, Any]:
    if gelu not in (None, "tanh", "exact"):
        raise VitrailError(f"--gelu must be tanh or exact, got {gelu!r}")
    if pool not in (None, "cls", "gap", "map"):
        raise VitrailError(f"--pool must be cls, gap or map, got {pool!r}")
    return {"grid": pair(grid, "--grid") if grid else None, "heads": heads, "gelu": gelu, "pool": pool}


def _describe(name: str, tensor: Any) -> dict[str, Any]:
    import torch

    values = tensor.double()
    finite = torch.isfinite(values)
    norm = torch.where(finite, values, 0).norm().item()
    bad = int(tensor.numel() - finite.sum())
    return {
        "name": name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "norm": norm,
        "bad": bad,
    }


def _order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers by value: block 2 before block 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.replace("/", ".").replace("_", ".").split(".")]
