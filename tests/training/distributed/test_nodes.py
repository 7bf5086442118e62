"""Two nodes, each in its own network namespace with a link between them, join by torchrun's rendezvous."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.distributed.torchrun import (
    deterministic_recipe,
    environment,
    kill,
    steps,
    wait_until,
    workers,
    write_recipe,
)
from vitrail.training.checkpoint import list_checkpoints
from vitrail.training.trainer import Hardware, fit

NODES = {"vitrail-a": "10.77.41.1", "vitrail-b": "10.77.41.2"}


def ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def network_link() -> Iterator[None]:
    if not shutil.which("ip") or not all(ip("netns", "add", name) for name in NODES):
        pytest.skip("network namespaces need root and iproute2")
    first, second = NODES
    try:
        created = ip("link", "add", "vitrail0", "type", "veth", "peer", "name", "vitrail1")
        assert created
        for name, end in ((first, "vitrail0"), (second, "vitrail1")):
            assert ip("link", "set", end, "netns", name)
            assert ip("-n", name, "addr", "add", f"{NODES[name]}/24", "dev", end)
            assert ip("-n", name, "link", "set", end, "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in NODES:
            ip("netns", "del", name)


def start_node(number: int, *arguments: object) -> "subprocess.Popen[str]":
    name, address = list(NODES.items())[number]
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={NODES['vitrail-a']}:29641", "--rdzv-id=vitrail"]
    rendezvous += [f"--rdzv-conf=is_host={int(number == 0)}", f"--local-addr={address}", "--max-restarts=3"]
    start = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *rendezvous, "-m", "vitrail"]
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *start, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # without the second, torchrun (2.13) does not tell a node that joins later where the first one is
        env=environment(GLOO_SOCKET_IFNAME=f"vitrail{number}", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"),
    )


def end(process: "subprocess.Popen[str]") -> None:
    for each in (*workers(process.pid), process.pid):
        kill(each)
    process.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("network_link")
def test_a_node_that_is_lost_comes_back_and_the_run_is_the_same_run(tmp_path: Path) -> None:
    settings = deterministic_recipe(steps=40, eval_every=20, checkpoint_every=4)
    fit(settings, tmp_path / "single", hardware=Hardware(workers=1))
    file, run = write_recipe(settings, tmp_path), tmp_path / "run"
    call = ("train", "--recipe-from", file, "--out", run, "--set", "parallel=fsdp")
    nodes = [start_node(number, *call) for number in range(2)]
    try:
        wait_until(lambda: list_checkpoints(run / "checkpoints"), nodes[0])
        for pid in (nodes[1].pid, *workers(nodes[1].pid)):  # a power failure: the launcher first, then its processes
            os.kill(pid, signal.SIGKILL)
        nodes[1].communicate()
        nodes[1] = start_node(1, *call)
        outputs = [each.communicate(timeout=240)[1] for each in nodes]
        assert [each.returncode for each in nodes] == [0, 0], "\n----\n".join(output[-2500:] for output in outputs)
    finally:
        for each in nodes:
            end(each)
    assert "resumed from step" in outputs[0]
    ours, theirs = steps(tmp_path / "single"), steps(run)
    assert list(theirs) == list(ours)
    for step, metrics in ours.items():
        assert theirs[step] == pytest.approx(metrics, rel=5e-5, abs=1e-5)
