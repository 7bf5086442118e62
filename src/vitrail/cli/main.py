"""The command ``vitrail``: finds the command, runs it, and turns every mistake into one sentence and an exit code."""

import io
import os
import signal
import sys
import time
from collections.abc import Sequence
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
from vitrail.cli.inspect import inspect
from vitrail.cli.lab import lab
from vitrail.cli.plan import plan
from vitrail.cli.predict import predict
from vitrail.cli.pretrain import pretrain
from vitrail.cli.probe import probe
from vitrail.cli.push import push
from vitrail.cli.robust import robust
from vitrail.cli.search import search
from vitrail.cli.serve import serve
from vitrail.cli.studio import studio
from vitrail.cli.train import train
from vitrail.cli.weights import weights
from vitrail.errors import VitrailError

BEHIND = 2.0  # seconds that the other processes of a run leave to the first

app = typer.Typer(name="vitrail", no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(inspect)
app.command()(plan)
app.command()(train)
app.command()(pretrain)
app.command()(finetune)
app.command()(evaluate)
app.command()(robust)
app.command()(predict)
app.command()(probe)
app.command()(embed)
app.command()(search)
app.command()(explain)
app.command()(export)
app.command()(serve)
app.command()(studio)
app.command()(push)
app.add_typer(data)
app.add_typer(weights)
app.add_typer(bench)
app.command()(lab)
app.command()(doctor)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half done is cleared away
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """0 when it worked, 2 for bad input, 1 when the machine refused, 130 when interrupted; what a command returns otherwise."""
    _write_anything()
    try:
        code = app(args=list(arguments), prog_name="vitrail", standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except (VitrailError, typer.TyperException) as error:
        return _say(error.format_message() if isinstance(error, typer.TyperException) else str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `vitrail inspect B/16 | head -1`
        _close_output()
        return 141
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        return _say("there is not enough memory; try a smaller batch, picture or model", 1)
    except OSError as error:
        _close_output()
        return _say(str(error), 1)
    return code if isinstance(code, int) else 0


def _write_anything() -> None:
    """A terminal that knows no × gets a ? instead of an error."""
    if sys.stdout is None or sys.stderr is None:  # closed before the start
        nowhere = open(os.devnull, "w")  # noqa: SIM115
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(message: str, code: int) -> int:
    """Of several processes that make the same mistake the first one says so, and what has started them ends the others."""
    rank = os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"
    if rank != "0":
        time.sleep(BEHIND)
    print(f"vitrail{'' if rank == '0' else f' (rank {rank})'}: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return code


def _close_output() -> None:
    """What could not be written now cannot be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vitrail {version('vitrail')}")
        raise typer.Exit


@app.callback()
def vitrail(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")] = False,
) -> None:
    """The Vision Transformer, end to end and transparent."""
