"""``vitrail serve``: serve a model over HTTP until it is stopped."""

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.export import default_export_name
from vitrail.cli.options import (
    BackendOption,
    CompileOption,
    DropPatchesOption,
    ImageSizeOption,
    JsonOption,
    MergeTokensOption,
    PredictorArgument,
    require_packages,
    select_speedups,
    warn_about_compiling,
)
from vitrail.cli.panels import batching_option, limits_option, network_option, output_option, run_option
from vitrail.cli.run_recipe import DeviceOption, ThreadsOption
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.inference.predictor import Predictor
    from vitrail.serve.server import Started


def serve(
    model: PredictorArgument,
    host: Annotated[
        str, network_option(metavar="ADDRESS", help="Address to bind to; 0.0.0.0 for all interfaces.")
    ] = "127.0.0.1",
    port: Annotated[int, network_option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000,
    backend: BackendOption = "auto",
    max_batch: Annotated[int, batching_option(metavar="B", min=1, help="Maximum number of images per batch.")] = 16,
    max_batch_delay: Annotated[
        float, batching_option(metavar="MS", min=0, help="Milliseconds that a batch waits for more images.")
    ] = 5.0,
    max_queue: Annotated[
        int, limits_option(metavar="N", min=1, help="Maximum number of images in flight; more are refused with 503.")
    ] = 128,
    request_timeout: Annotated[
        float, limits_option(metavar="S", help="Seconds that an image may wait to be computed, else 504.")
    ] = 10.0,
    read_timeout: Annotated[
        float, limits_option(metavar="S", help="Seconds that a client may take to send a request, else 408.")
    ] = 30.0,
    shutdown_timeout: Annotated[
        float, limits_option(metavar="S", help="Seconds to finish accepted requests when stopped.")
    ] = 30.0,
    max_body: Annotated[float, limits_option(metavar="MIB", help="Maximum size of a request in MiB, else 413.")] = 16.0,
    max_pixels: Annotated[int, limits_option(metavar="N", min=1, help="Maximum number of pixels of an image, else 422.")] = 2
    ** 26,
    token: Annotated[
        str | None,
        network_option(
            metavar="TOKEN",
            envvar="VITRAIL_TOKEN",
            help="Bearer token that clients must send; safer as an environment variable.",
        ),
    ] = None,
    top: Annotated[
        int, output_option(metavar="K", min=1, help="Number of labels per image, unless a client asks otherwise.")
    ] = 5,
    compile: CompileOption = False,
    merge_tokens: MergeTokensOption = None,
    drop_patches: DropPatchesOption = 0.0,
    image: ImageSizeOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    decode_workers: Annotated[
        int | None, run_option(metavar="N", min=1, help="Number of threads that decode images; default: one per core.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Serve a model over HTTP with dynamic batching."""
    from vitrail.serve.config import MEBIBYTE, ServeConfig
    from vitrail.web.sockets import LOCAL_HOSTS, bind_socket

    if not 0 < max_body <= 4096:
        raise VitrailError(f"--max-body must be above 0 and at most 4096 MiB, got {max_body:g}; try --max-body 16")
    if token == "":  # as of a variable that was never set: naming a token asks for a protected server
        raise VitrailError("--token must not be empty; try a long random string, or leave it out")
    config = ServeConfig(
        max_batch=max_batch,
        max_batch_delay=max_batch_delay / 1000,
        max_queue=max_queue,
        request_timeout=request_timeout,
        max_body=round(max_body * MEBIBYTE) or 1,
        max_pixels=max_pixels,
        read_timeout=read_timeout,
        shutdown_timeout=shutdown_timeout,
        top_k=top,
        decode_workers=decode_workers,
        token=token,
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if host not in LOCAL_HOSTS and token is None:
        typer.echo(f"vitrail: anyone who can reach {host} can use this server; protect it with --token", err=True)
    with bind_socket(host, port) as listener:
        require_packages("serving", "serve", "fastapi", "uvicorn", "python_multipart")

        from vitrail.inference.load import load_predictor
        from vitrail.serve.server import run_server
        from vitrail.system import select_device

        def open_predictor() -> "Predictor":
            predictor = load_predictor(model, backend, threads, speedups, device)
            warn_about_compiling(speedups)
            return predictor

        speedups = select_speedups(compile, merge_tokens, drop_patches, image, select_device(device).type)
        all_answered = run_server(
            open_predictor,
            config,
            listener,
            default_export_name(model),
            lambda ready: _print_ready(ready, config.token, json),
        )
    if not all_answered:
        typer.echo(
            f"vitrail: not all requests were answered within {shutdown_timeout:g} seconds; try a longer --shutdown-timeout",
            err=True,
        )
        raise typer.Exit(1)


def _print_ready(started: "Started", token: str | None, json: bool) -> None:
    """Print one line once the server is ready."""
    import json as json_module

    from vitrail.serve.pages import describe_outputs

    predictor = started.predictor
    if json:
        summary = {"url": started.url, "model": predictor.source, "backend": predictor.backend}
        task, classes = predictor.task.config.name, len(predictor.class_names)
        typer.echo(json_module.dumps({**summary, "task": task, "classes": classes}))
    else:
        token_note = ", token required" if token else ""
        what = describe_outputs(predictor.task)
        typer.echo(f"{started.url}  {predictor.source} with {predictor.backend}, {what}{token_note}; stop with Ctrl-C")
