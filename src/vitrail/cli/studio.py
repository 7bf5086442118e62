"""``vitrail studio``: explore a Vision Transformer in the browser, with your own model and images."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.console import progress_bars
from vitrail.cli.options import JsonOption, require_packages
from vitrail.cli.panels import data_option, network_option, run_option
from vitrail.cli.run_recipe import ThreadsOption
from vitrail.data.class_names import read_class_names
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.studio.service import StudioService

MIN_TOKEN_LENGTH = 24  # characters of the token at least, so that it cannot be guessed


def studio(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...", help="Models: runs, also while they train, weights, or hf:owner/name; default: a small model."
        ),
    ] = None,
    data: Annotated[
        list[str] | None, data_option(metavar="DATA", help="Dataset to choose images from, besides the runs' own; repeatable.")
    ] = None,
    labels: Annotated[
        Path | None, data_option(metavar="FILE", help="Class names for weights without any: a JSON list, or one name per line.")
    ] = None,
    port: Annotated[int, network_option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 0,
    browser: Annotated[bool, run_option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    token: Annotated[
        str | None,
        network_option(
            metavar="TOKEN",
            envvar="VITRAIL_TOKEN",
            help="Secret part of the address, fixed so that links stay valid; default: random.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Explore a model in the browser: from pixels through attention to the prediction."""
    if token is not None and (
        len(token) < MIN_TOKEN_LENGTH or not (token.isascii() and token.replace("-", "").replace("_", "").isalnum())
    ):
        raise VitrailError(
            f"--token must be at least {MIN_TOKEN_LENGTH} letters, digits, - or _, got {len(token)}; try "
            f"{secrets.token_urlsafe(MIN_TOKEN_LENGTH)}"
        )
    from vitrail.web.sockets import bind_socket, socket_url

    with bind_socket("127.0.0.1", port) as listener:
        require_packages("the studio", "studio", "starlette", "uvicorn")

        import torch

        from vitrail.studio.app import create_studio_app, run_studio_server
        from vitrail.studio.default_model import default_model

        with default_model(runs or [], lambda message: typer.echo(message, err=True), progress_bars) as sources:
            if threads is not None:
                torch.set_num_threads(threads)
            service = _open_service(sources, data or [], list(read_class_names(labels)) if labels else [])
            url_token = token or secrets.token_urlsafe(MIN_TOKEN_LENGTH)
            url = f"{socket_url(listener)}/{url_token}/"
            run_studio_server(
                create_studio_app(service, url_token), listener, lambda: _print_ready(url, service, browser, json)
            )


def _open_service(sources: list[str], data: list[str], labels: list[str]) -> "StudioService":
    from vitrail.studio.default_model import wait_for_weights
    from vitrail.studio.image_library import ImageLibrary
    from vitrail.studio.model_store import ModelStore, validate_models
    from vitrail.studio.service import StudioService

    store = ModelStore(sources, labels)
    with progress_bars() as on_progress:
        wait_for_weights([model.run for model in store.models.values() if model.run is not None], on_progress)
    validate_models(store)
    return StudioService(store, ImageLibrary(data))


def _print_ready(url: str, service: "StudioService", browser: bool, json: bool) -> None:
    """Print one line with the address and open the page."""
    import json as json_module
    import webbrowser
    from threading import Thread

    if json:
        typer.echo(json_module.dumps({"url": url, "models": [model.name for model in service.store.models.values()]}))
    else:
        typer.echo(f"{url}  {', '.join(model.name for model in service.store.models.values())}; stop with Ctrl-C")
    if browser:  # in a thread, since some browsers block until they exit, and they wait for the page
        Thread(target=webbrowser.open, args=(url,), name="vitrail-browser", daemon=True).start()
