"""bfloat16 and compiled runs match the float32 eager one and resume bit for bit."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.train.small_run import batch, recipe, still
from vitrail.errors import VitrailError
from vitrail.train import precision
from vitrail.train.checkpoint import checkpoints
from vitrail.train.loop import Machine, fit
from vitrail.train.precision import REMEDY, bfloat16_fault, check_machine
from vitrail.train.run import Run
from vitrail.train.watch import Silent
from vitrail.weights.load import load


class Breaks(Silent):
    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        if step == 7:
            raise OSError("broke")


def losses(folder: Path) -> torch.Tensor:
    return torch.tensor([line["loss"] for line in Run(folder).lines() if "loss" in line])


def broken_and_resumed(settings: Any, folder: Path) -> Path:
    with pytest.raises(OSError, match="broke"):
        fit(settings, folder, Machine(workers=0), Breaks())
    fit(settings, folder, Machine(workers=0))
    return folder


def same(one: Path, two: Path) -> bool:
    """Whether the logs and all weights are equal, bit for bit."""
    ours, theirs = (load_file(folder / "last" / "model.safetensors") for folder in (one, two))
    return Run(one).lines() == Run(two).lines() and all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


@pytest.fixture(scope="module")
def _bfloat16() -> None:
    if bfloat16_fault() is not None:
        pytest.skip(f"bfloat16 does not work on this CPU without {REMEDY}")


@pytest.mark.usefixtures("_bfloat16")
def test_bfloat16_stays_near_float32_and_keeps_its_weights_in_float32(tmp_path: Path) -> None:
    half = replace(recipe(), precision="bfloat16")
    fit(recipe(), tmp_path / "whole", Machine(workers=0))
    fit(half, tmp_path / "half", Machine(workers=0))
    assert_close(losses(tmp_path / "half"), losses(tmp_path / "whole"), rtol=0.02, atol=0)
    assert not torch.equal(losses(tmp_path / "half"), losses(tmp_path / "whole"))
    newest = checkpoints(tmp_path / "half" / "checkpoints")[0]
    for file in (newest / "state.safetensors", tmp_path / "half" / "last" / "model.safetensors"):
        assert {value.dtype for value in load_file(file).values()} == {torch.float32}


@pytest.mark.usefixtures("_bfloat16")
def test_a_run_in_bfloat16_resumes_bit_for_bit(tmp_path: Path) -> None:
    half = replace(recipe(), precision="bfloat16")
    fit(half, tmp_path / "whole", Machine(workers=0))
    assert same(broken_and_resumed(half, tmp_path / "run"), tmp_path / "whole")


def test_only_bfloat16_on_a_cpu_and_compiling_are_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bfloat16_fault", lambda: "fails")
    monkeypatch.setattr(precision, "compiler_fault", lambda device: f"no compiler for {device}")
    half, compiled = recipe(precision="bfloat16"), recipe(compile=True)
    check_machine(recipe(), "cpu")
    check_machine(half, "cuda")
    with pytest.raises(VitrailError, match=f"precision=bfloat16 fails; put {REMEDY} before the command, or use"):
        check_machine(half, "cpu")
    with pytest.raises(
        VitrailError, match=r"compile=true does not work here \(no compiler for cuda\); install a C\+\+ compiler"
    ):
        check_machine(compiled, "cuda")


def train(out: Path, setting: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    settings = (setting, "steps=2", "schedule.warmup=0", "model.depth=1", "model.width=24")
    command = [sys.executable, "-m", "vitrail", "train", "panes:count=100,size=16", "--out", str(out)]
    command += [word for each in settings for word in ("--set", each)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_cpu_that_would_kill_the_process_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """On affected machines: without the environment variable that the tests are run with."""
    bare = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    if subprocess.run([sys.executable, "-c", precision.PROBE], env=bare, capture_output=True, check=False).returncode == 0:
        pytest.skip("this CPU supports what it reports")
    refused = train(tmp_path / "run", "precision=bfloat16", bare)
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.splitlines()[-1].startswith("vitrail: precision=bfloat16 kills the process")
    assert REMEDY in refused.stderr
    assert "Traceback" not in refused.stderr
    heeded = train(tmp_path / "run", "precision=bfloat16", {**bare, **dict([REMEDY.split("=")])})
    assert heeded.returncode == 0, heeded.stderr


@pytest.mark.compile
def test_a_machine_without_a_compiler_is_refused_in_one_sentence(tmp_path: Path) -> None:
    nowhere = {**os.environ, "PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    refused = train(tmp_path / "run", "compile=true", {name: value for name, value in nowhere.items() if name != "CXX"})
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.splitlines()[-1].startswith(
        "vitrail: compile=true does not work here (InvalidCxxCompiler: No working"
    )
    assert "Traceback" not in refused.stderr


@pytest.fixture(params=["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def _compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default compiler, and a quick one that differs only in code generation."""
    torch.compiler.reset()
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend=request.param))
    if request.param != "inductor":
        monkeypatch.setattr(precision, "compiler_fault", lambda device: None)


@pytest.mark.compile
@pytest.mark.usefixtures("_compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # raised by the compiler itself
def test_a_compiled_run_is_the_eager_one_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Without dropout, which draws other numbers when compiled."""
    eager, compiled = still(), still(compile=True)
    fit(eager, tmp_path / "eager", Machine(workers=0))
    fit(compiled, tmp_path / "compiled", Machine(workers=0))
    assert_close(losses(tmp_path / "compiled"), losses(tmp_path / "eager"), rtol=1e-4, atol=0)
    images = batch().images
    ours, theirs = (load(tmp_path / kind / "last")(images) for kind in ("compiled", "eager"))
    assert_close(ours, theirs, rtol=0, atol=1e-3)
    assert same(broken_and_resumed(compiled, tmp_path / "run"), tmp_path / "compiled")


@pytest.mark.compile
@pytest.mark.usefixtures("_compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_a_compiled_run_with_dropout_and_without_ema_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Here the compiled model itself is evaluated and saved."""
    settings = recipe(compile=True, ema=None)
    fit(settings, tmp_path / "compiled", Machine(workers=0))
    assert same(broken_and_resumed(settings, tmp_path / "run"), tmp_path / "compiled")
    assert load(tmp_path / "compiled" / "best").config == settings.model
