"""The command line: exit codes, one-line errors, pipes and terminals."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.cli.commands import COMMANDS, help_text
from tests.reference_numbers import PARAMETERS
from tests.small_models import small_vit
from vitrail.cli import doctor
from vitrail.cli.main import run
from vitrail.cli.panels import PANELS
from vitrail.weights.save import save

MISTAKES = [
    (["inspect"], "Missing argument 'MODEL'"),
    (["inspekt"], "Did you mean 'inspect'"),
    (["inspect", "B/16", "--imge", "3"], "--image-size"),
    (["inspect", "b/16"], "did you mean 'B'?"),
    (
        ["inspect", "B/16", "--image-size", "big"],
        "--image-size must be a number or HEIGHTxWIDTH, got 'big'; try --image-size 224 or --image-size 224x448",
    ),
    (["inspect", "B/16", "--image-size", "1x2x3"], "--image-size must be a number or HEIGHTxWIDTH"),
    (["inspect", "B/16", "--image-size", "225"], "try image=224x224"),
    (["inspect", "B/16", "--batch-size", "0"], "batch must be at least 1, got 0; try batch=1"),
    (["inspect", "B/16", "--batch-size", "many"], "--batch-size must be a whole number, got 'many'"),
    (["train", "--lr=fast"], "--lr must be a number, got 'fast'"),
    (["evaluate", "run", "data", "--split", "tset"], "--split must be one of 'test', 'validation', 'train', 'all', got 'tset'"),
    (["predict", "run", "cat.jpg", "--top", "0"], "--top must be at least 1, got '0'"),
    (["inspect", "missing.safetensors"], "missing.safetensors does not exist; name a run, a weight file"),
    (["inspect", "B/16", "--classes", "-1"], "classes must be at least 0"),
    (["inspect", "B/16", "--set", "model.dept=3"], "did you mean 'model.depth'?"),
    (["inspect", "B/16", "--set", "depth=3"], "did you mean 'model.depth'?"),
    (["train", "--set", "xyz=1"], "no field is named 'xyz'; vitrail train --print-recipe lists all fields"),
    (["inspect", "x" * 5000], "no model is named"),
    (["inspect", "B/16", "--image-size", "9" * 5000], "--image-size must be a number"),
    (["inspect", "R50x1", "--set", "model.width=32", "--image-size", "1", "--trace"], "the traced pass failed"),
    (["inspect", "no/such/folder"], "no/such/folder does not exist; name a run"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("vitrail: ")
    assert sentence.lower() in printed.err.lower()


@pytest.mark.parametrize("name", [name for name in PARAMETERS if " " not in name])
def test_inspect_is_right_for_every_variant(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", name]) == 0
    printed = capsys.readouterr().out
    assert f"{PARAMETERS[name]:,} parameters" in printed
    assert run(["inspect", name, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == PARAMETERS[name] == sum(stage["parameters"] for stage in answer["stages"])
    assert set(answer) == {"parameters", "macs", "tokens", "grid", "stages", "memory"}
    assert {"name", "shape", "parameters", "macs"} <= set(answer["stages"][0])


def test_inspect_prints_the_shapes_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "B/16", "--classes", "10", "--batch-size", "4"]) == 0
    printed = capsys.readouterr().out
    shapes = re.findall(r"\(B[\d, ]+\)", printed)
    assert list(dict.fromkeys(shapes)) == ["(B, 3, 224, 224)", "(B, 196, 768)", "(B, 197, 768)", "(B, 768)", "(B, 10)"]
    assert "B = 4" in printed


def test_options_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--image-size", "48x96", "--classes", "0", "--set", "model.depth=2", "--set", "model.pool=gap"]
    assert run(["inspect", "S/16", *changes, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["grid"], answer["tokens"]) == ([3, 6], 18)
    assert [stage["name"] for stage in answer["stages"]][-2:] == ["norm", "pool (gap)"]


def test_a_folder_is_inspected_and_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small_vit()
    save(model, tmp_path / "mine")
    assert run(["inspect", str(tmp_path / "mine"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert run(["inspect", str(tmp_path / "mine"), "--trace", "--json", "--batch-size", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)["trace"]
    assert rows[0]["shape"] == [3, 6, 24]
    assert rows[-1]["name"] == "head"
    assert run(["inspect", str(tmp_path / "mine"), "--image-size", "48"]) == 2
    assert "need a variant such as B/16" in capsys.readouterr().err
    assert run(["inspect", str(tmp_path)]) == 2
    assert "contains no weights" in capsys.readouterr().err


def test_the_trace_of_a_new_model_randomises_its_zero_head_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "mu/16", "--image-size", "32", "--trace"]) == 0
    printed = capsys.readouterr().out
    assert "its head is zero-initialised" in printed
    assert re.search(r"blocks.0.attention.qkv +Linear +\(1, 5, 96\)", printed)
    assert run(["inspect", "R50x1", "--image-size", "32", "--set", "model.stages=1", "--classes", "0", "--trace"]) == 0
    assert "mean squared output" in capsys.readouterr().out


def run_process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "vitrail", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_the_module_is_the_command_and_has_a_version() -> None:
    done = run_process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"vitrail \d+\.\d+\.\d+\n", done.stdout)
    assert run_process("inspect", "B/99", "--image-size", "224").returncode == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.strip().startswith(f"Example: vitrail {command}")


def test_no_terminal_means_no_colour_codes() -> None:
    assert "\x1b" not in run_process("inspect", "B/16", NO_COLOR="1").stdout
    assert "\x1b" not in run_process("inspect", "B/16", LC_ALL="de_DE.UTF-8").stdout


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_closed_pipe_is_no_error(option: str) -> None:
    line = f"{sys.executable} -m vitrail inspect B/16 {option} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_full_disk_is_one_line(option: str) -> None:
    line = f"{sys.executable} -m vitrail inspect B/16 {option} > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "vitrail: [Errno 28] No space left on device\n"


def test_a_terminal_without_unicode_gets_question_marks() -> None:
    done = run_process("inspect", "B/16", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "(B, 197, 768) ? 12" in done.stdout


def test_square_brackets_in_a_name_are_not_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(small_vit(), tmp_path / "run[bold] [" / "x]")
    assert run(["inspect", str(folder)]) == 0
    assert "run[bold] [/x]" in "".join(capsys.readouterr().out.splitlines())


def test_a_narrow_terminal_wraps_no_number() -> None:
    assert "85,054,464" in run_process("inspect", "B/16", COLUMNS="40", FORCE_COLOR="1").stdout


def test_a_trace_of_a_broken_model_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights so large that the pass overflows, the case that tracing is for."""
    model = small_vit()
    model.blocks[2].mlp.down.weight.data.fill_(1e38)  # type: ignore[union-attr,operator]
    assert run(["inspect", str(save(model, tmp_path / "mine")), "--trace", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["trace"]}
    assert rows["blocks.2.mlp.down"]["std"] in ("inf", "nan")
    assert isinstance(rows["blocks.1"]["std"], float)


def test_doctor_finds_a_healthy_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "run_checks", cache(doctor.run_checks))  # once for both formats
    assert run(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert torch.__version__ in printed
    assert run(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    names = {finding["name"] for finding in answer["findings"]}
    assert {"python", "torch", "devices", "threads", "memory", "disk", "bfloat16", "extra serve", "extra onnx"} <= names


@pytest.mark.thorough
def test_doctor_finds_what_is_broken_and_names_the_remedy(tmp_path: Path) -> None:
    """A broken einops comes first on the path, so that it cannot be imported."""
    (tmp_path / "einops.py").write_text("raise ImportError('cut in half')")
    done = run_process("doctor", "--json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    broken = [finding for finding in json.loads(done.stdout)["findings"] if finding["state"] == "broken"]
    assert [finding["name"] for finding in broken] == ["einops"]
    assert "cut in half" in broken[0]["detail"]
    assert broken[0]["remedy"] == f"{sys.executable} -m pip install -c constraints.txt einops"


def test_doctor_names_the_command_for_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_check_torch", list)  # takes seconds, and is tested above
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name != "uvicorn")
    (serve,) = [finding for finding in doctor.run_checks() if finding.name == "extra serve"]
    assert (serve.state, serve.detail) == ("absent", "without uvicorn")
    assert serve.remedy.endswith("-m pip install -c constraints.txt 'vitrail[serve]'")
    assert run(["doctor"]) == 0
    assert "'vitrail[serve]'" in "".join(capsys.readouterr().out.split())  # brackets and all


def test_doctor_finds_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "2.5.1+cpu")
    assert doctor._check_package("torch", "2.11").detail == "2.5.1+cpu, older than 2.11"
    assert doctor._check_package("torch", "2.5").state == "ok"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_values_and_shows_no_python_types(command: str) -> None:
    assert "[OPTIONS]" in help_text(command)
    assert re.findall(r"<(?:bool|int|float|str|path|list)[^>]*>|[{}]|\[\[", help_text(command)) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_panels_of_a_help_are_in_one_order(command: str) -> None:
    panels = re.findall(r"^╭─ ([A-Z]\w+) ─", help_text(command), re.MULTILINE)
    assert panels == [name for name in ("Arguments", *PANELS) if name in panels]
    assert panels[-1] == "Output" or "--json" not in help_text(command)


@pytest.mark.parametrize("group", ["data", "weights", "bench"])
def test_the_help_of_a_group_ends_with_an_example(group: str) -> None:
    assert help_text(group).strip().splitlines()[-1].strip().startswith(f"Example: vitrail {group} ")


@pytest.mark.parametrize("command", ["predict", "evaluate", "robustness", "serve", "bench serve"])
def test_a_command_that_only_predicts_takes_an_exported_file(command: str) -> None:
    assert "exported .onnx or .pt2 file" in help_text(command)
    assert re.search(r"Usage: .* MODEL", help_text(command))
