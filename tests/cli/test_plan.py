"""``vitrail plan`` from the command line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from vitrail.cli.main import run
from vitrail.config import to_json
from vitrail.planning.memory_estimate import MemoryBreakdown
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.registry import get_recipe

Capture = pytest.CaptureFixture[str]
TERMS = (
    "weights",
    "gradients",
    "optimizer_state",
    "ema",
    "compute_copies",
    "accumulated_grads",
    "activations",
    "workspace",
    "optimizer_workspace",
    "eval_weights",
)


def plan_json(capsys: Capture, *words: str) -> dict[str, Any]:
    assert run(["plan", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def evaluate_formula(formula: str, names: dict[str, float]) -> float:
    """Evaluate a formula such as ``8 (T - M) + 4 M``, where a blank before a letter or a bracket means times."""
    return float(eval(re.sub(r"(?<=[\w)]) (?=[A-Za-z(])", " * ", formula), {"__builtins__": {}}, names))


@pytest.mark.parametrize(
    "words",
    [
        ("paper-imagenet", "--nodes", "2", "--gpu", "A100"),
        ("paper-jft", "--model", "H/14", "--gpu", "RTX4090", "--gpus-per-node", "4", "--set", "precision=bfloat16"),
        ("demo", "--gpus-per-node", "2", "--gpu", "T4", "--set", "micro_batch_size=5"),
        ("mae", "--model", "B/16", "--gpus-per-node", "1", "--gpu", "H100"),
        ("paper-finetune", "--set", "ema_decay=0.9999"),
    ],
    ids=" ".join,
)
def test_the_formulae_give_the_printed_numbers(words: tuple[str, ...], capsys: Capture) -> None:
    found = plan_json(capsys, *words)
    model = found["model"]
    for strategy in found["strategies"].values():
        names = {
            "P": model["parameters"], "T": model["trainable"], "M": model["muon_parameters"], "S": model["largest_muon_group"],
            "O": model["non_block"], "B": model["largest_block"], "A": model["bytes_per_image"],
            "W": model["workspace_per_image"], "b": strategy["micro_batch_size"], "R": found["world_size"],
            "c": 2 if found["precision"] == "bfloat16" else 4,
        }  # fmt: skip
        for name in TERMS:
            assert strategy[name] == pytest.approx(evaluate_formula(strategy["formulae"][name], names), abs=1), name
        assert strategy["total"] == MemoryBreakdown(**{name: strategy[name] for name in TERMS}).total
        assert strategy["fits"] == (strategy["total"] <= found["memory_budget"])
    seconds = model["flops"] * found["batch_size"] / (found["world_size"] * found["peak"] * found["mfu"])
    assert found["seconds_per_step"] == pytest.approx(seconds)
    assert found["days"] == pytest.approx(seconds * found["steps"] / 86_400)
    assert found["cost"] == pytest.approx(found["gpu_hours"] * found["price_per_gpu_hour"])


def test_the_table_says_what_to_set_and_what_is_not_modelled(capsys: Capture) -> None:
    assert run(["plan", "paper-jft", "--model", "H/14", "--gpu", "rtx4090", "--set", "precision=bfloat16"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "FSDP2 fits",
        "--set micro_batch_size=",
        "4 T / R",
        "exaFLOPs",
        "GPU-hours",
        "assumed; set yours with --price-per-gpu-hour",
        "not modelled",
    ):
        assert words in printed
    assert run(["plan", "plain", "--price-per-gpu-hour", "0"]) == 0
    printed = capsys.readouterr().out
    assert "0 dollars" in printed
    assert "peak is 16 times as high" in printed
    assert run(["plan", "paper-jft", "--model", "e/14", "--gpu", "T4", "--nodes", "2"]) == 0
    printed = capsys.readouterr().out
    assert "FSDP2 does not fit" in printed
    assert "to make it fit: a smaller --model or --image-size" in printed  # the full weights alone are more than a T4 has
    assert run(["plan", "paper-jft", "--model", "G/14", "--gpu", "T4", "--image-size", "896"]) == 0
    assert "to make it fit: --set activation_checkpointing=true, a smaller" in capsys.readouterr().out


def test_the_papers_dataset_is_the_default_and_others_can_be_given(capsys: Capture) -> None:
    jft, imagenet = plan_json(capsys, "paper-jft", "--model", "H/14"), plan_json(capsys, "paper-imagenet")
    assert jft["flops"] / 1e18 == pytest.approx(4262, rel=0.01)  # Table 6
    assert imagenet["steps"] == round(300 * 1_281_167 / 4096)
    mine = plan_json(capsys, "plain", "--images", "50000", "--classes", "100", "--image-size", "96", "--model", "Ti/16")
    assert mine["steps"] == round(90 * 50_000 / 1024)
    assert plan_json(capsys, "plain")["model"]["parameters"] > mine["model"]["parameters"]


def test_a_run_and_a_recipe_file_can_be_planned(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "recipe.json").write_text(to_json(get_recipe("demo", RecipeContext())))
    named, folder, file = (plan_json(capsys, name) for name in ("demo", str(tmp_path), str(tmp_path / "recipe.json")))
    assert named == folder == file
    assert (
        plan_json(capsys, str(tmp_path), "--set", "steps=950", "--set", "schedule.warmup_steps=9")["days"] == named["days"] / 2
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plian"], "did you mean 'plain'"),
        (["plain", "--gpu", "H1000"], "no accelerator is named 'H1000'; did you mean 'H100'"),
        (["plain", "--nodes", "0"], "--nodes must be from 1"),
        (["plain", "--gpus-per-node", "3"], "try --set batch_size=1026"),
        (["plain", "--mfu", "35"], "--mfu must be above 0 and at most 1, got 35"),
        (["plain", "--price-per-gpu-hour", "nan"], "--price-per-gpu-hour must be dollars"),
        (["plain", "--model", "B/15"], "image must be a multiple of patch"),
        (["plain", "--set", "presicion=bfloat16"], "did you mean 'precision'"),
        (["plain", "--images", "0"], "--images"),
        (["demo", "--model", "B/16"], "demo has its own model"),
        (["."], "is not a run: it has no recipe.json"),
        ([".", "--model", "B/16"], "sets the model"),
        (["plain", "--gpu", "T4", "--set", "precision=bfloat16"], "T4 does not support bfloat16"),
        (
            ["plain", "--set", "optim.trainable=blocks", "--set", "optim.trainable_blocks=40"],
            "optim.trainable_blocks must be from 1 to 12",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out
