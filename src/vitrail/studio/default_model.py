"""The default model of the studio: a small one, trained once on the embedded Fashion-MNIST while the page is open.

Training runs in its own process and takes some minutes; the page follows its curves and checkpoints.
An interrupted training is resumed at the next start.
"""

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
from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.studio.run_log import is_training, last_logged_step
from vitrail.system import available_cores
from vitrail.training.load_checkpoint import checkpoint_steps
from vitrail.training.run import LOCKED_MESSAGE, Run
from vitrail.weights.model_folder import is_model_folder

DEFAULT_OVERRIDES = (
    "model.patch=4", "model.image=28", "preprocess.image_size=28", "model.pool=cls",  # 7 x 7 patches and a class token
    "model.width=64", "model.heads=4", "model.mlp=256",
    "steps=1000", "eval_every=100", "checkpoint_every=50", "keep_checkpoints=20",
)  # fmt: skip
FIRST_CHECKPOINT_TIMEOUT = 180.0  # seconds to wait for the first checkpoint
SHUTDOWN_TIMEOUT = 20.0  # seconds to wait for the last checkpoint when the studio ends


@contextmanager
def default_model(
    sources: Sequence[str],
    on_message: Callable[[str], None],
    show_progress: Callable[[], AbstractContextManager[Progress]],
    overrides: Sequence[str] = DEFAULT_OVERRIDES,
) -> Iterator[list[str]]:
    """Yield the sources, or a default run that trains meanwhile; ``show_progress`` shows how far its first checkpoint is."""
    if sources:
        yield list(sources)
        return
    run = Run(cache.cache_folder() / "studio" / "fashion")
    if run.result() is not None:
        yield [str(run.folder)]
        return
    torch.set_num_threads(max(1, available_cores() - _training_cores()))  # more threads than cores would slow both down
    on_message(
        f"training a small model on the embedded Fashion-MNIST, once; the page opens at its first checkpoint: {run.folder}"
    )
    with TemporaryFile() as error_output:
        child = _start_training(run.folder, overrides, error_output)
        try:
            with show_progress() as on_progress:
                _wait_for_checkpoint(run, child, error_output, on_progress)
            yield [str(run.folder)]
        finally:
            child.terminate()  # it writes a checkpoint, from which the next start resumes
            try:
                child.wait(SHUTDOWN_TIMEOUT)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def wait_for_weights(runs: Sequence[Run], on_progress: Progress) -> None:
    """Wait for the first weights of runs that have just started to train."""
    for run in runs:
        while not checkpoint_steps(run) and not is_model_folder(run.folder / "best") and is_training(run):
            recipe = run.saved_recipe()
            on_progress(
                f"waiting for the first checkpoint of {run.folder.name}",
                last_logged_step(run),
                recipe.checkpoint_every if recipe else None,
            )
            time.sleep(0.2)


def _start_training(folder: Path, overrides: Sequence[str], error_output: IO[bytes]) -> "subprocess.Popen[bytes]":
    set_options = [argument for override in overrides for argument in ("--set", override)]
    command = [sys.executable, "-m", "vitrail", "train", "fashion", "--recipe", "demo", "--out", str(folder), "--json"]
    command += ["--threads", str(_training_cores())]
    return subprocess.Popen(
        [*command, *set_options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=error_output,
        start_new_session=True,  # Ctrl-C goes to the studio only, which then ends the training
    )


def _training_cores() -> int:
    """Return the number of cores for training; the page has the rest."""
    return max(1, available_cores() // 2)


def _wait_for_checkpoint(run: Run, child: "subprocess.Popen[bytes]", error_output: IO[bytes], on_progress: Progress) -> None:
    deadline = time.monotonic() + FIRST_CHECKPOINT_TIMEOUT
    while not checkpoint_steps(run):
        recipe = run.saved_recipe()
        on_progress("training up to the first checkpoint", last_logged_step(run), recipe.checkpoint_every if recipe else None)
        if child.poll() is not None:
            error_output.seek(0)
            error_text = error_output.read().decode(errors="replace").strip()
            if LOCKED_MESSAGE not in error_text:  # another studio already trains it
                reason = error_text.splitlines()[-1] if error_text else f"its process ended with {child.returncode}"
                raise VitrailError(f"the default model could not be trained: {reason}; name a run or weights instead")
        if time.monotonic() > deadline:
            raise VitrailError("the default model has no checkpoint yet; try vitrail train, then vitrail studio runs/demo")
        time.sleep(0.2)
