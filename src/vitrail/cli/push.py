"""``vitrail push``: upload a model and its model card to the Hugging Face hub, or write them to a folder."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitrail.cli.console import add_row, format_bytes, make_console, make_table, print_json
from vitrail.cli.options import JsonOption, ModelArgument
from vitrail.cli.panels import hub_option, output_option
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.report.hub_folder import HubFolder


def push(
    run: ModelArgument,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub.")],
    out: Annotated[
        Path | None, output_option(metavar="DIR", help="Write the files into a new folder instead of uploading.")
    ] = None,
    license: Annotated[
        str | None, hub_option(metavar="NAME", help="Licence, such as apache-2.0; without one, nobody may use the model.")
    ] = None,
    format: Annotated[
        Literal["vitrail", "huggingface"],
        output_option(help="Layout: Vitrail's own, or that of transformers if it supports the model."),
    ] = "vitrail",
    private: Annotated[bool, hub_option("--private", help="Create the repository as private.")] = False,
    json: JsonOption = False,
) -> None:
    """Upload a model and its model card to the Hugging Face hub, without checkpoints, images or local paths."""
    from vitrail.weights import hub

    repo_id = hub.parse_repo_id(name)
    if out is not None and private:
        raise VitrailError("--private is for a repository on the hub, and --out writes a local folder; leave one of them out")
    api = None if out is not None else hub.authenticated_api(repo_id)

    from vitrail.report.hub_folder import build_hub_folder
    from vitrail.weights.load import quiet_loading

    with tempfile.TemporaryDirectory() as temporary, quiet_loading():
        hub_folder = build_hub_folder(run, Path(temporary) / "model" if out is None else out, repo_id, license, format)
        url = None if api is None else hub.push_folder(api, hub_folder.folder, repo_id, private)
    if json:
        print_json(
            {
                "name": repo_id,
                "pushed": url,
                "out": None if out is None else str(out),
                "files": hub_folder.files,
                "assumed": hub_folder.assumed,
            }
        )
    else:
        _print_result(hub_folder, repo_id, url, license)


def _print_result(hub_folder: "HubFolder", name: str, url: str | None, license: str | None) -> None:
    sheet = make_table("file", "#size")
    for file, count in hub_folder.files.items():
        add_row(sheet, file, format_bytes(count))
    screen = make_console()
    screen.print(sheet)
    for item in hub_folder.assumed:
        screen.print(f"assumed {item}", soft_wrap=True)
    if license is None:
        screen.print(
            "no licence is set, so nobody else may use the model; set one, such as --license apache-2.0", soft_wrap=True
        )
    if url is None:
        screen.print(f"folder: {hub_folder.folder}; without --out it would be pushed as {name}", soft_wrap=True)
    else:
        screen.print(f"pushed: {url}; load it with vitrail.load('hf:{name}')", soft_wrap=True)
