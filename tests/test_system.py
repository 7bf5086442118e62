"""Cores, memory, device and rank of this process."""

import os
from pathlib import Path
from typing import Any

import pytest

from vitrail.errors import VitrailError
from vitrail.system import (
    _cgroup_available,
    available_cores,
    free_memory,
    is_main_process,
    local_rank_and_world_size,
    memory_info,
    rank_and_world_size,
    select_device,
)


def test_the_cores_are_those_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_free_memory_is_the_machines_or_the_containers(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    3000 kB\nHugePages_Total:       0\n")
    assert memory_info(tmp_path / "meminfo") == {"MemTotal": 9 * 1024, "MemAvailable": 3000 * 1024}
    assert memory_info(tmp_path / "missing") == {}
    assert _cgroup_available(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("4000\n")
    assert _cgroup_available(tmp_path) is None
    (tmp_path / "memory.max").write_text("9000\n")
    assert _cgroup_available(tmp_path) == 5000
    assert free_memory() is None or free_memory() > 2**20  # type: ignore[operator]


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Any] = []

    def empty(size: int, device: str) -> Any:
        devices.append(device)
        raise RuntimeError("none here")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.empty", empty)
    monkeypatch.setenv("LOCAL_RANK", "3")
    for ranks in ("1", "8"):
        monkeypatch.setenv("WORLD_SIZE", ranks)
        for name in ("auto", "cuda", "cuda:1", "cpu"):
            with pytest.raises(VitrailError, match="cannot be used"):
                select_device(name)
    assert devices == ["cuda", "cuda", "cuda:1", "cpu", "cuda:3", "cuda:3", "cuda:1", "cpu"]


@pytest.mark.parametrize(("rank", "ranks"), [("2", "2"), ("-1", "2"), ("one", "2"), ("0", "two")])
def test_an_invalid_rank_is_one_sentence(rank: str, ranks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(VitrailError, match="RANK must be a number from 0 to WORLD_SIZE - 1"):
        rank_and_world_size()


def test_rank_0_prints_and_a_launcher_may_set_the_local_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert is_main_process()  # a variable of another program: there is only one process
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert not is_main_process()
    assert rank_and_world_size() == (3, 4)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert local_rank_and_world_size() == (1, 1)
    monkeypatch.setenv("LOCAL_RANK", "one")
    with pytest.raises(VitrailError, match="LOCAL_RANK must be a number, got 'one' of '1'; use torchrun"):
        local_rank_and_world_size()
