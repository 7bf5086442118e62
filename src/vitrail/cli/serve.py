"""``vitrail serve``: a model over HTTP, until it is asked to stop."""

import logging
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitrail.cli.export import named
from vitrail.cli.faster import Compile, Drop, Image, Merge, switches
from vitrail.cli.fitting import Device, Threads
from vitrail.cli.options import Json
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.serve.listen import Ready

LOCAL = ("127.0.0.1", "::1", "localhost")


def serve(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, any weights, or an exported .onnx or .pt2 file.")],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="0.0.0.0 for every network that this machine is in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one and tells it.")] = 8000,
    engine: Annotated[Literal["auto", "torch", "onnxruntime"], typer.Option(help="What computes.")] = "auto",
    max_batch: Annotated[int, typer.Option(metavar="B", min=1, help="Pictures computed at a time.")] = 16,
    max_delay: Annotated[
        float, typer.Option(metavar="MS", min=0, help="Milliseconds that a picture waits for others on their way.")
    ] = 5.0,
    queue: Annotated[int, typer.Option(metavar="N", min=1, help="Pictures taken in at a time; more get 503 at once.")] = 128,
    deadline: Annotated[float, typer.Option(metavar="S", help="Seconds until a picture's turn, else 504.")] = 10.0,
    patience: Annotated[float, typer.Option(metavar="S", help="Seconds that a client may take to send, else 408.")] = 30.0,
    drain: Annotated[float, typer.Option(metavar="S", help="Seconds for what was accepted, once asked to stop.")] = 30.0,
    max_body: Annotated[float, typer.Option(metavar="MIB", help="Mebibytes of a request, else 413.")] = 16.0,
    max_pixels: Annotated[int, typer.Option(metavar="N", min=1, help="Pixels of a picture, else 422.")] = 2**26,
    token: Annotated[
        str | None, typer.Option(metavar="WORD", envvar="VITRAIL_TOKEN", help="That clients must show; safer as a variable.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="K", min=1, help="Labels of a picture, unless a client asks otherwise.")] = 5,
    compile: Compile = False,
    merge: Merge = None,
    drop: Drop = 0.0,
    image: Image = None,
    device: Device = "auto",
    threads: Threads = None,
    decoders: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads that read pictures; else one a core.")
    ] = None,
    json: Json = False,
) -> None:
    """Answer pictures over HTTP, many clients at once. Ctrl-C or SIGTERM answers what was accepted, then ends."""
    from vitrail.serve.port import bound
    from vitrail.serve.settings import MEBIBYTE, Serving

    if not 0 < max_body <= 4096:
        raise VitrailError(f"--max-body must be mebibytes above 0 and up to 4096, got {max_body:g}; try --max-body 16")
    if token == "":  # as of a variable that was never set: whoever names a token does not want an open door
        raise VitrailError("--token must be a word, got an empty one; try a long random word, or leave it out")
    how = Serving(
        max_batch=max_batch,
        max_delay=max_delay / 1000,
        queue=queue,
        deadline=deadline,
        max_body=round(max_body * MEBIBYTE) or 1,
        max_pixels=max_pixels,
        patience=patience,
        drain=drain,
        top=top,
        decoders=decoders,
        token=token,
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if host not in LOCAL and token is None:
        typer.echo(f"vitrail: whoever reaches {host} can use this server; --token would ask them for a word", err=True)
    with bound(host, port) as place:
        _check_extra()

        from vitrail.export.engine import open_engine
        from vitrail.models.device import device as chosen
        from vitrail.serve.listen import listen

        faster = switches(compile, merge, drop, image, chosen(device).type)
        clean = listen(
            lambda: open_engine(run, engine, threads, faster, device),
            how,
            place,
            named(run),
            lambda ready: _tell(ready, how.token, json),
        )
    if not clean:
        typer.echo(f"vitrail: not everything was answered within {drain:g} seconds; --drain gives it longer", err=True)
        raise typer.Exit(1)


def _check_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "python_multipart") if find_spec(name) is None]
    if missing:
        raise VitrailError(f"serving needs {' and '.join(missing)}; pip install 'vitrail[serve]'")


def _tell(ready: "Ready", token: str | None, json: bool) -> None:
    """One line, so that whoever started it knows that it is there."""
    import json as objects

    engine = ready.engine
    if json:
        said = {"url": ready.url, "model": engine.model, "engine": engine.name, "classes": len(engine.labels)}
        typer.echo(objects.dumps(said))
    else:
        asks = ", asks for a token" if token else ""
        typer.echo(f"{ready.url}  {engine.model} by {engine.name}, {len(engine.labels):,} classes{asks}; Ctrl-C ends it")
