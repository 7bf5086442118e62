"""The ``vitrail`` command: runs a subcommand and turns every user error into one sentence and an exit code."""

import io
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated

import typer

from vitrail.cli.bench import bench
from vitrail.cli.data import data
from vitrail.cli.doctor import doctor
from vitrail.cli.embed import embed
from vitrail.cli.evaluate import evaluate
from vitrail.cli.explain import explain
from vitrail.cli.export import export
from vitrail.cli.finetune import finetune
from vitrail.cli.help import Command, Group, invalid_value
from vitrail.cli.inspect import inspect
from vitrail.cli.lab import lab
from vitrail.cli.models import models
from vitrail.cli.options import column_options
from vitrail.cli.plan import plan
from vitrail.cli.predict import predict
from vitrail.cli.preprocess_options import with_labels_option, with_preprocess_options
from vitrail.cli.pretrain import pretrain
from vitrail.cli.probe import probe
from vitrail.cli.push import push
from vitrail.cli.robustness import robustness
from vitrail.cli.search import search
from vitrail.cli.serve import serve
from vitrail.cli.studio import studio
from vitrail.cli.train import train
from vitrail.cli.weights import weights
from vitrail.errors import VitrailError
from vitrail.system import is_main_process, rank_text

NON_MAIN_DELAY = 2.0  # seconds that the other ranks leave rank 0 to report an error

START = "Start with: vitrail finetune dinov2-s14 photos"
EXAMPLES: dict[str, dict[Callable[..., object], str]] = {
    "Train": {
        finetune: "vitrail finetune dinov2-s14 photos",
        train: "vitrail train photos --minutes 30 --out runs/photos",
        pretrain: "vitrail pretrain photos --method mae --out runs/mae",
        models: "vitrail models --filter dinov2",
        plan: "vitrail plan paper-jft --model L/16 --nodes 4 --gpu H100",
    },
    "Evaluate": {
        evaluate: "vitrail evaluate runs/photos photos --split test",
        robustness: "vitrail robustness runs/photos photos --out robustness.html",
        probe: "vitrail probe ViT-B_16.npz cifar10 --protocol knn",
    },
    "Look inside": {
        inspect: "vitrail inspect B/16 --image-size 384",
        explain: "vitrail explain runs/photos cat.jpg --method rollout --out explained",
        studio: "vitrail studio runs/photos --data photos",
        lab: "vitrail lab positions --minutes 20",
    },
    "Use": {
        predict: "vitrail predict runs/photos new/*.jpg --out predictions.csv",
        embed: "vitrail embed runs/photos photos --out features.parquet",
        search: "vitrail search runs/photos photos cat.jpg --contact-sheet similar.png",
        export: "vitrail export runs/photos --to onnx --out photos.onnx",
        serve: "vitrail serve runs/photos --port 8000 --max-batch 32",
        push: "vitrail push runs/photos owner/name --license apache-2.0",
    },
    "Tools": {doctor: "vitrail doctor --json"},
}

LOADS_WEIGHTS = (finetune, evaluate, robustness, probe, explain, studio, predict, embed, search, export, serve)
NAMES_CLASSES = (evaluate, robustness, explain, predict, export, serve)  # the studio has labels of its own

app = typer.Typer(name="vitrail", cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, epilog=START)
for panel, examples in EXAMPLES.items():
    for command, example in examples.items():
        callback = with_labels_option(command) if command in NAMES_CLASSES else command
        callback = with_preprocess_options(callback) if command in LOADS_WEIGHTS else callback
        app.command(cls=Command, rich_help_panel=panel, epilog=f"Example: {example}")(callback)
for group in (data, weights, bench):
    app.add_typer(group, rich_help_panel="Tools")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that temporary files are removed
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 for success, 2 for bad input, 1 for a lack of memory or an I/O error, 130 when interrupted."""
    _replace_unencodable()
    try:
        with _verbosity(arguments):
            code = app(args=_without_verbosity(arguments), prog_name="vitrail", standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except (VitrailError, typer.TyperException) as error:
        message = invalid_value(error.format_message(), arguments) if isinstance(error, typer.TyperException) else str(error)
        return _print_error(column_options(message), 2)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader closed the pipe, as in `vitrail inspect B/16 | head -1`
        _discard_output()
        return 141
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        return _print_error("there is not enough memory; try a smaller batch, image or model", 1)
    except OSError as error:
        _discard_output()
        return _print_error(str(error), 1)
    return code if isinstance(code, int) else 0


@contextmanager
def _verbosity(arguments: Sequence[str]) -> Iterator[None]:
    """Log what loading assumes in one line; with --verbose every item, with --quiet nothing."""
    logger, handler = logging.getLogger("vitrail"), logging.StreamHandler()
    level = logging.INFO if "--verbose" in arguments else logging.ERROR if "--quiet" in arguments else None
    before = logger.level
    if level is not None:
        logger.setLevel(level)
    if level == logging.INFO:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def _without_verbosity(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the two flags, which every command takes at any position."""
    return [argument for argument in arguments if argument not in ("--quiet", "--verbose")]


def _replace_unencodable() -> None:
    """Print ? for characters that the terminal cannot encode, such as ×, instead of failing."""
    if sys.stdout is None or sys.stderr is None:  # closed before the start
        devnull = open(os.devnull, "w")  # noqa: SIM115
        sys.stdout, sys.stderr = sys.stdout or devnull, sys.stderr or devnull
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _print_error(message: str, code: int) -> int:
    """Print an error and return the exit code; of several processes rank 0 prints first, and torchrun then ends the others."""
    if not is_main_process():
        time.sleep(NON_MAIN_DELAY)
    print(f"vitrail{'' if is_main_process() else f' (rank {rank_text()})'}: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return code


def _discard_output() -> None:
    """Discard unwritten output, which could not be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"vitrail {version('vitrail')}")
        raise typer.Exit


@app.callback()
def vitrail(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    __: Annotated[bool, typer.Option("--quiet", help="With any command: do not print what loading a model assumed.")] = False,
    ___: Annotated[
        bool, typer.Option("--verbose", help="With any command: list everything that loading a model assumed or changed.")
    ] = False,
) -> None:
    """The Vision Transformer, end to end and transparent."""
