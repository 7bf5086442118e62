"""``vitrail push``: upload a model and its model card to the Hugging Face hub, or write them to a folder."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitrail.cli.options import Json
from vitrail.cli.screen import add, console, print_json, size, table
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.report.parcel import Parcel


def push(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, or any weights: a folder, a file, hf:owner/name.")],
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel="Output", help="Write the files into a new folder instead of uploading."),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel="Hub", help="Licence, such as apache-2.0; without one, nobody may use the model."
        ),
    ] = None,
    format: Annotated[
        Literal["vitrail", "huggingface"],
        typer.Option(rich_help_panel="Output", help="Layout: Vitrail's own, or that of transformers if it supports the model."),
    ] = "vitrail",
    private: Annotated[
        bool, typer.Option("--private", rich_help_panel="Hub", help="Create the repository as private.")
    ] = False,
    json: Json = False,
) -> None:
    """Upload a model and its model card to the Hugging Face hub, without checkpoints, images or local paths."""
    from vitrail.weights import hub

    called = hub.named(name)
    if out is not None and private:
        raise VitrailError("--private is for a repository on the hub, and --out writes a local folder; leave one of them out")
    api = None if out is not None else hub.entrance(called)

    from vitrail.report.parcel import pack
    from vitrail.weights.load import untold

    with tempfile.TemporaryDirectory() as aside, untold():
        parcel = pack(run, Path(aside) / "model" if out is None else out, called, license, format)
        address = None if api is None else hub.publish(api, parcel.folder, called, private)
    if json:
        print_json(
            {
                "name": called,
                "pushed": address,
                "out": None if out is None else str(out),
                "files": parcel.files,
                "assumed": parcel.assumed,
            }
        )
    else:
        _tell(parcel, called, address, license)


def _tell(parcel: "Parcel", name: str, address: str | None, license: str | None) -> None:
    sheet = table("file", "#size")
    for file, count in parcel.files.items():
        add(sheet, file, size(count))
    screen = console()
    screen.print(sheet)
    for item in parcel.assumed:
        screen.print(f"assumed {item}", soft_wrap=True)
    if license is None:
        screen.print(
            "no licence is set, so nobody else may use the model; set one, such as --license apache-2.0", soft_wrap=True
        )
    if address is None:
        screen.print(f"folder: {parcel.folder}; without --out it would be pushed as {name}", soft_wrap=True)
    else:
        screen.print(f"pushed: {address}; load it with vitrail.load('hf:{name}')", soft_wrap=True)
