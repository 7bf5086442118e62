"""A failure of one process ends all, with a clear message, and nothing is lost (FAULTS 15)."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.training.distributed.torchrun import (
    alive,
    deterministic_recipe,
    lines,
    start_torchrun,
    steps,
    torchrun,
    wait_until,
    workers,
    write_recipe,
)
from vitrail.cli.main import run as run_command
from vitrail.recipes.recipe import Recipe
from vitrail.training.checkpoint import find_valid_checkpoint, list_checkpoints
from vitrail.training.trainer import Hardware, fit


def small_recipe() -> Recipe:
    return deterministic_recipe(steps=40, eval_every=20, checkpoint_every=4)


@pytest.fixture(scope="module")
def single_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "single"
    fit(small_recipe(), folder, hardware=Hardware(workers=1))
    return folder


def assert_same_run(one: Path, two: Path) -> None:
    ours, theirs = steps(one), steps(two)
    assert list(theirs) == list(ours)
    for step, metrics in ours.items():
        assert theirs[step] == pytest.approx(metrics, rel=5e-5, abs=1e-5)


def has_checkpoint(run: Path) -> bool:
    return bool(list_checkpoints(run / "checkpoints"))


@pytest.mark.thorough
def test_a_killed_rank_is_restarted_and_the_run_is_the_same_run(single_process: Path, tmp_path: Path) -> None:
    file, run = write_recipe(small_recipe(), tmp_path), tmp_path / "run"
    with start_torchrun(2, "train", "--recipe-from", file, "--out", run, restarts=1) as process:
        wait_until(lambda: has_checkpoint(run), process)
        os.kill(workers(process.pid)[1], signal.SIGKILL)
        _, output = process.communicate(timeout=180)
    assert process.returncode == 0, output[-2000:]
    assert "resumed from step" in output
    assert_same_run(single_process, run)


@pytest.mark.thorough
def test_without_a_restart_all_end_and_the_next_start_resumes(single_process: Path, tmp_path: Path) -> None:
    file, run = write_recipe(small_recipe(), tmp_path), tmp_path / "run"
    with start_torchrun(2, "train", "--recipe-from", file, "--out", run) as process:
        wait_until(lambda: has_checkpoint(run), process)
        began, ranks = time.monotonic(), workers(process.pid)
        os.kill(ranks[0], signal.SIGKILL)
        _, output = process.communicate(timeout=180)
        assert process.returncode != 0
        assert time.monotonic() - began < 60
        assert not any(alive(each) for each in ranks)
    assert "rank 1 lost contact with the other ranks" in output or "Signal 9" in output, output[-2000:]
    assert find_valid_checkpoint(run / "checkpoints") is not None
    fit(small_recipe(), run, hardware=Hardware(workers=1))
    assert_same_run(single_process, run)


@pytest.mark.thorough
def test_if_the_launcher_is_killed_its_processes_save_and_end(single_process: Path, tmp_path: Path) -> None:
    """The store of the rendezvous ends with the launcher."""
    file, run = write_recipe(small_recipe(), tmp_path), tmp_path / "run"
    with start_torchrun(2, "train", "--recipe-from", file, "--out", run) as process:
        wait_until(lambda: has_checkpoint(run), process)
        ranks = workers(process.pid)
        process.kill()
        process.wait()
        end = time.monotonic() + 60
        while any(alive(each) for each in ranks) and time.monotonic() < end:
            time.sleep(0.1)
        assert not any(alive(each) for each in ranks)
        left = max(steps(run))
    assert left == 40 or list_checkpoints(run / "checkpoints")[0].name == f"step-{left}"
    fit(small_recipe(), run, hardware=Hardware(workers=1))
    assert_same_run(single_process, run)


@pytest.mark.slow
def test_a_rank_that_hangs_ends_all_within_the_timeout(single_process: Path, tmp_path: Path) -> None:
    """A stopped process does not respond and takes no signal but SIGKILL, which the launcher sends after half a minute."""
    file, run = write_recipe(small_recipe(), tmp_path), tmp_path / "run"
    with start_torchrun(2, "train", "--recipe-from", file, "--out", run) as process:
        wait_until(lambda: has_checkpoint(run), process)
        ranks = workers(process.pid)
        os.kill(ranks[1], signal.SIGSTOP)
        _, output = process.communicate(timeout=180)
        assert process.returncode != 0
        assert not any(alive(each) for each in ranks)
    assert "vitrail: rank 0 lost contact with the other ranks" in output, output[-2000:]
    fit(small_recipe(), run, hardware=Hardware(workers=1))
    assert_same_run(single_process, run)


FULL_DISK_SCRIPT = """
import os, resource, signal, sys, threading, time
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = Path(sys.argv[sys.argv.index("--out") + 1])
def fill():
    while not (run / "checkpoints" / "step-4").exists():
        time.sleep(0.001)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
if os.environ["RANK"] == "1":
    threading.Thread(target=fill, daemon=True).start()
from vitrail.cli.main import main
main()
"""


@pytest.mark.thorough
def test_a_disk_that_is_full_on_one_rank_is_named_and_leaves_the_last_checkpoint_whole(
    single_process: Path, tmp_path: Path
) -> None:
    file, run, script = write_recipe(small_recipe(), tmp_path), tmp_path / "run", tmp_path / "full.py"
    script.write_text(FULL_DISK_SCRIPT)
    done = torchrun(2, "train", "--recipe-from", file, "--out", run, script=str(script))
    assert done.returncode != 0
    assert "rank 1 cannot write the checkpoint of step" in done.stderr, done.stderr[-3000:]
    assert "File too large" in done.stderr
    assert not list((run / "checkpoints").glob(".step-*"))
    fit(small_recipe(), run, hardware=Hardware(workers=1))
    assert_same_run(single_process, run)


@pytest.mark.thorough
def test_a_mistake_is_one_sentence_and_not_one_per_rank(tmp_path: Path) -> None:
    file = write_recipe(deterministic_recipe(batch_size=25), tmp_path)
    done = torchrun(2, "train", "--recipe-from", file, "--out", tmp_path / "run")
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if "vitrail" in line and "--batch-size must be" in line] == [
        "vitrail: --batch-size must be a multiple of the world size 2, got 25; try --batch-size 26"
    ]
    assert not lines(tmp_path / "run")


def test_a_run_that_may_be_restarted_needs_a_named_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    assert run_command(["train", "--recipe-from", str(write_recipe(small_recipe(), tmp_path))]) == 2
    assert "needs a named folder" in capsys.readouterr().err
