"""``vitrail studio``: explore a Vision Transformer in the browser, with your own model and images."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.fitting import Threads
from vitrail.cli.options import Json
from vitrail.cli.screen import progress
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.studio.desk import Desk

WORD = 24  # characters of the token at least, so that it cannot be guessed


def studio(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN|WEIGHTS...]", help="Runs, also while they train, or any weights; default: a small model."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA", rich_help_panel="Data", help="Dataset to choose images from, besides the runs' own; repeatable."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Data",
            help="Class names for weights without any: a JSON list, or one name per line.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, rich_help_panel="Network", help="Port to listen on; 0 picks a free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", rich_help_panel="Run", help="Open the page in a browser.")
    ] = True,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="VITRAIL_TOKEN",
            rich_help_panel="Network",
            help="Secret part of the address, fixed so that links stay valid; default: random.",
        ),
    ] = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Explore a model in the browser: from pixels through attention to the prediction."""
    if token is not None and (len(token) < WORD or not (token.isascii() and token.replace("-", "").replace("_", "").isalnum())):
        raise VitrailError(
            f"--token must be at least {WORD} letters, digits, - or _, got {len(token)}; try {secrets.token_urlsafe(WORD)}"
        )
    from vitrail.serve.port import bound

    with bound("127.0.0.1", port) as place:
        _check_extra()

        import torch

        from vitrail.studio.app import make_app
        from vitrail.studio.first import beginning
        from vitrail.studio.listen import listen

        with beginning(runs or [], lambda words: typer.echo(words, err=True), progress) as sources:
            if threads is not None:
                torch.set_num_threads(threads)
            desk = _desk(sources, data or [], _names(labels))
            word = token or secrets.token_urlsafe(WORD)
            url = f"http://127.0.0.1:{place.getsockname()[1]}/{word}/"
            listen(make_app(desk, word), place, lambda: _tell(url, desk, browser, json))


def _desk(sources: list[str], data: list[str], labels: list[str]) -> "Desk":
    from vitrail.studio.album import Album
    from vitrail.studio.desk import Desk
    from vitrail.studio.first import weights_of
    from vitrail.studio.shelf import Shelf, check

    shelf = Shelf(sources, labels)
    with progress() as tell:
        weights_of([one.run for one in shelf.models.values() if one.run is not None], tell)
    check(shelf)
    return Desk(shelf, Album(data))


def _names(path: Path | None) -> list[str]:
    import json as objects

    if path is None:
        return []
    try:
        text = path.read_text()
        found = objects.loads(text) if text.lstrip().startswith("[") else text.splitlines()
    except (OSError, ValueError) as error:
        raise VitrailError(f"--labels must be a file with one name per line or a JSON list, got {path}: {error}") from None
    return [str(name) for name in found]


def _check_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise VitrailError(f"the studio needs {' and '.join(missing)}; pip install 'vitrail[studio]'")


def _tell(url: str, desk: "Desk", browser: bool, json: bool) -> None:
    """Print one line with the address and open the page."""
    import json as objects
    import webbrowser
    from threading import Thread

    if json:
        typer.echo(objects.dumps({"url": url, "models": [one.name for one in desk.shelf.models.values()]}))
    else:
        typer.echo(f"{url}  {', '.join(one.name for one in desk.shelf.models.values())}; stop with Ctrl-C")
    if browser:  # in a thread, since some browsers block until they exit, and they wait for the page
        Thread(target=webbrowser.open, args=(url,), name="vitrail-browser", daemon=True).start()
