"""``vitrail push``: a model and its card to the Hugging Face hub, or into a folder to be looked at first."""

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
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or any weights: a folder, a file, hf:owner/name.")],
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="What the model is called on the hub.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write what would be pushed into a new folder, and stop.")
    ] = None,
    license: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as apache-2.0; without one, nobody may use the model.")
    ] = None,
    format: Annotated[
        Literal["vitrail", "huggingface"], typer.Option(help="Our folder, or transformers' layout where it can hold the model.")
    ] = "vitrail",
    private: Annotated[bool, typer.Option("--private", help="A new repository that others cannot see.")] = False,
    json: Json = False,
) -> None:
    """Push a model with a card written from its facts. No checkpoints, no pictures, no paths of this machine go along."""
    from vitrail.weights import hub

    called = hub.named(name)
    if out is not None and private:
        raise VitrailError("--private is for a repository on the hub, and --out writes a folder here; leave one of them out")
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
        screen.print("no licence is named, so nobody else may use it; --license apache-2.0, for example", soft_wrap=True)
    if address is None:
        screen.print(f"folder: {parcel.folder}; without --out it would be pushed as {name}", soft_wrap=True)
    else:
        screen.print(f"pushed: {address}; vitrail.load('hf:{name}') reads it", soft_wrap=True)
