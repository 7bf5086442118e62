"""The default model of the studio: a small one, trained once on the embedded Fashion-MNIST while the page is open.

Training runs in its own process and takes some minutes; the page follows its curves and checkpoints.
An interrupted training is resumed at the next start.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import torch

from vitrail.data import cache
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.studio.history import steps_done, training
from vitrail.train.past import steps
from vitrail.train.run import Run
from vitrail.weights.folder import is_model

SETTINGS = (
    "model.patch=4", "model.image=28", "preprocess.image=28", "model.pool=cls",  # 7 x 7 patches and a class token
    "model.width=64", "model.heads=4", "model.mlp=256",
    "steps=1000", "evaluate=100", "checkpoint=50", "keep=20",
)  # fmt: skip
PATIENCE = 180.0  # seconds to wait for the first checkpoint
STOP = 20.0  # seconds to wait for the last checkpoint when the studio ends


@contextmanager
def beginning(
    sources: Sequence[str],
    say: Callable[[str], None],
    waiting: Callable[[], AbstractContextManager[Progress]],
    settings: Sequence[str] = SETTINGS,
) -> Iterator[list[str]]:
    """Yield the sources, or a default run that trains meanwhile; ``waiting`` shows the progress to its first checkpoint."""
    if sources:
        yield list(sources)
        return
    run = Run(cache.folder() / "studio" / "fashion")
    if run.result() is not None:
        yield [str(run.folder)]
        return
    torch.set_num_threads(max(1, _cores() - _half()))  # more threads than cores would slow both down
    say(f"training a small model on the embedded Fashion-MNIST, once; the page opens at its first checkpoint: {run.folder}")
    with TemporaryFile() as said:
        child = _train(run.folder, settings, said)
        try:
            with waiting() as tell:
                _wait(run, child, said, tell)
            yield [str(run.folder)]
        finally:
            child.terminate()  # it writes a checkpoint, from which the next start resumes
            try:
                child.wait(STOP)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def weights_of(runs: Sequence[Run], tell: Progress) -> None:
    """Wait for the first weights of runs that have just started to train."""
    for run in runs:
        while not steps(run) and not is_model(run.folder / "best") and training(run):
            recipe = run.noted()
            tell(
                f"waiting for the first checkpoint of {run.folder.name}", steps_done(run), recipe.checkpoint if recipe else None
            )
            time.sleep(0.2)


def _train(folder: Path, settings: Sequence[str], said: IO[bytes]) -> "subprocess.Popen[bytes]":
    changes = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "vitrail", "train", "fashion", "--recipe", "demo", "--out", str(folder), "--json"]
    command += ["--threads", str(_half())]
    return subprocess.Popen(
        [*command, *changes],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        start_new_session=True,  # Ctrl-C goes to the studio only, which then ends the training
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _half() -> int:
    """Return the number of cores for training; the page has the rest."""
    return max(1, _cores() // 2)


def _wait(run: Run, child: "subprocess.Popen[bytes]", said: IO[bytes], tell: Progress) -> None:
    end = time.monotonic() + PATIENCE
    while not steps(run):
        recipe = run.noted()
        tell("training up to the first checkpoint", steps_done(run), recipe.checkpoint if recipe else None)
        if child.poll() is not None:
            said.seek(0)
            words = said.read().decode(errors="replace").strip()
            if "another process is at work" not in words:  # another studio already trains it
                reason = words.splitlines()[-1] if words else f"its process ended with {child.returncode}"
                raise VitrailError(f"the default model could not be trained: {reason}; name a run or weights instead")
        if time.monotonic() > end:
            raise VitrailError("the default model has no checkpoint yet; try vitrail train, then vitrail studio runs/demo")
        time.sleep(0.2)
