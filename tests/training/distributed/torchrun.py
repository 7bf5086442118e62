"""Runs on several processes, as ``torchrun`` starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.training.small_run import recipe
from vitrail.augment.policy import get_policy
from vitrail.config import to_json
from vitrail.models.config import ViTConfig
from vitrail.recipes.recipe import Recipe

SECONDS = 240  # after which a test has failed
TIMEOUT = "20"  # seconds that ranks wait for each other


def deterministic_recipe(**changes: object) -> Recipe:
    """A recipe without dropout and stochastic depth, whose draws depend on the rank: mixed images, EMA, Muon, clipping."""
    model = ViTConfig(width=24, depth=3, mlp=48, heads=3, patch=(8, 8), image=(16, 16), channels=3, classes=10, gelu="exact")
    settings: dict[str, object] = {
        "model": model, "steps": 50, "batch_size": 24, "eval_every": 25, "checkpoint_every": 10,
        "augment": get_policy("none", mixup=0.4, cutmix=0.5),
    }  # fmt: skip
    return recipe(**{**settings, **changes})


def write_recipe(settings: Recipe, folder: Path) -> Path:
    path = folder / "recipe.json"
    path.write_text(to_json(settings))
    return path


def command(ranks: int, *arguments: object, restarts: int = 0, script: str | None = None) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--max-restarts={restarts}"]
    program = ["-m", "vitrail"] if script is None else [script]
    return [*start, f"--nproc-per-node={ranks}", *program, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "VITRAIL_TIMEOUT": TIMEOUT, **more}


def torchrun(ranks: int, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``torchrun`` to its end."""
    line = command(ranks, *arguments, **options)
    return subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=SECONDS, check=False)


@contextmanager
def start_torchrun(ranks: int, *arguments: object, **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """Run ``torchrun`` in the background; afterwards none of its processes is left."""
    line = command(ranks, *arguments, **options)
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            for each in (*workers(process.pid), process.pid):
                kill(each)


def wait_until(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Wait until a condition holds; fail if the process ends or the time is up."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < end
        time.sleep(0.02)


def workers(parent: int) -> list[int]:
    """Process ids that a launcher has started, by rank."""
    pids: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                variables = dict(word.split("=", 1) for word in (folder / "environ").read_text().split("\0") if "=" in word)
                pids[int(variables["RANK"])] = int(folder.name)
        except (OSError, KeyError, IndexError):
            continue
    return [pids[rank] for rank in sorted(pids)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int) -> None:
    if alive(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def lines(run: Path) -> list[dict[str, Any]]:
    """The complete rows of the log."""
    path = run / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.is_file() else []


def steps(run: Path) -> dict[int, dict[str, float]]:
    return {line["step"]: line for line in lines(run) if "loss" in line}
