"""bfloat16 and compiled runs match the float32 eager one and resume bit for bit."""

import os
import subprocess
import sys
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.training.small_run import batch, deterministic_recipe, recipe
from vitrail.errors import VitrailError
from vitrail.training import hardware_check
from vitrail.training.callbacks import Callback
from vitrail.training.checkpoint import list_checkpoints
from vitrail.training.hardware_check import AMX_WORKAROUND, bfloat16_fault, check_hardware
from vitrail.training.run import Run
from vitrail.training.trainer import Hardware, fit
from vitrail.weights.load import load


class RaisesAtStep7(Callback):
    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        if step == 7:
            raise OSError("broke")


def losses(folder: Path) -> torch.Tensor:
    return torch.tensor([line["loss"] for line in Run(folder).log_rows() if "loss" in line])


def interrupt_and_resume(settings: Any, folder: Path) -> Path:
    with pytest.raises(OSError, match="broke"):
        fit(settings, folder, hardware=Hardware(workers=0), callbacks=[RaisesAtStep7()])
    fit(settings, folder, hardware=Hardware(workers=0))
    return folder


def same(one: Path, two: Path) -> bool:
    """Whether the logs and all weights are equal, bit for bit."""
    ours, theirs = (load_file(folder / "last" / "model.safetensors") for folder in (one, two))
    return Run(one).log_rows() == Run(two).log_rows() and all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


@pytest.fixture(scope="module")
def bfloat16_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if bfloat16_fault() is not None:
        pytest.skip(f"bfloat16 does not work on this CPU without {AMX_WORKAROUND}")
    folder = tmp_path_factory.mktemp("runs") / "bfloat16"
    fit(recipe(precision="bfloat16"), folder, hardware=Hardware(workers=0))
    return folder


def test_bfloat16_stays_near_float32_and_keeps_its_weights_in_float32(bfloat16_run: Path, tmp_path: Path) -> None:
    fit(recipe(), tmp_path / "float32", hardware=Hardware(workers=0))
    assert_close(losses(bfloat16_run), losses(tmp_path / "float32"), rtol=0.02, atol=0)
    assert not torch.equal(losses(bfloat16_run), losses(tmp_path / "float32"))
    newest = list_checkpoints(bfloat16_run / "checkpoints")[0]
    for file in (newest / "state.safetensors", bfloat16_run / "last" / "model.safetensors"):
        assert {value.dtype for value in load_file(file).values()} == {torch.float32}


def test_a_run_in_bfloat16_resumes_bit_for_bit(bfloat16_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_check, "bfloat16_fault", lambda: None)  # tried before the other run
    assert same(interrupt_and_resume(recipe(precision="bfloat16"), tmp_path / "run"), bfloat16_run)


def test_only_bfloat16_on_a_cpu_and_compiling_are_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_check, "bfloat16_fault", lambda: "fails")
    monkeypatch.setattr(hardware_check, "compiler_fault", lambda device: f"no compiler for {device}")
    half, compiled = recipe(precision="bfloat16"), recipe(compile=True)
    check_hardware(recipe(), "cpu")
    check_hardware(half, "cuda")
    with pytest.raises(VitrailError, match=f"precision=bfloat16 fails; put {AMX_WORKAROUND} before the command, or use"):
        check_hardware(half, "cpu")
    with pytest.raises(
        VitrailError, match=r"compile=true does not work here \(no compiler for cuda\); install a C\+\+ compiler"
    ):
        check_hardware(compiled, "cuda")


def train(out: Path, setting: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    settings = (setting, "steps=2", "schedule.warmup_steps=0", "model.depth=1", "model.width=24")
    command = [sys.executable, "-m", "vitrail", "train", "panes:train_size=100,size=16", "--out", str(out)]
    command += [word for each in settings for word in ("--set", each)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_a_cpu_that_would_kill_the_process_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """On affected machines: without the environment variable that the tests are run with."""
    bare = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    probe = [sys.executable, "-c", hardware_check.BFLOAT16_PROBE]
    if subprocess.run(probe, env=bare, capture_output=True, check=False).returncode == 0:
        pytest.skip("this CPU supports what it reports")
    refused = train(tmp_path / "run", "precision=bfloat16", bare)
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.splitlines()[-1].startswith("vitrail: precision=bfloat16 kills the process")
    assert AMX_WORKAROUND in refused.stderr
    assert "Traceback" not in refused.stderr
    heeded = train(tmp_path / "run", "precision=bfloat16", {**bare, **dict([AMX_WORKAROUND.split("=")])})
    assert heeded.returncode == 0, heeded.stderr


@pytest.mark.compile
@pytest.mark.thorough
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
        monkeypatch.setattr(hardware_check, "compiler_fault", lambda device: None)


@pytest.mark.compile
@pytest.mark.usefixtures("_compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # raised by the compiler itself
def test_a_compiled_run_is_the_eager_one_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Without dropout, which draws other numbers when compiled."""
    eager, compiled = deterministic_recipe(), deterministic_recipe(compile=True)
    fit(eager, tmp_path / "eager", hardware=Hardware(workers=0))
    fit(compiled, tmp_path / "compiled", hardware=Hardware(workers=0))
    assert_close(losses(tmp_path / "compiled"), losses(tmp_path / "eager"), rtol=1e-4, atol=0)
    images = batch().images
    ours, theirs = (load(tmp_path / kind / "last")(images) for kind in ("compiled", "eager"))
    assert_close(ours, theirs, rtol=0, atol=1e-3)
    assert same(interrupt_and_resume(compiled, tmp_path / "run"), tmp_path / "compiled")


@pytest.mark.compile
@pytest.mark.thorough
@pytest.mark.usefixtures("_compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_a_compiled_run_with_dropout_and_without_ema_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Here the compiled model itself is evaluated and saved."""
    settings = recipe(compile=True, ema_decay=None)
    fit(settings, tmp_path / "compiled", hardware=Hardware(workers=0))
    assert same(interrupt_and_resume(settings, tmp_path / "run"), tmp_path / "compiled")
    assert load(tmp_path / "compiled" / "best").config == settings.model
