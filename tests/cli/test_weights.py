"""``vitrail weights``: shown, converted and verified from the command line."""

import json
from pathlib import Path

import pytest
import torch

from tests.small_models import small_vit
from vitrail.cli.main import run
from vitrail.weights.load import load
from vitrail.weights.save import save

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "token.weights.npz"
Capture = pytest.CaptureFixture[str]


def test_show_prints_a_tree_with_numbers(capsys: Capture) -> None:
    assert run(["weights", "show", str(GOLDEN)]) == 0
    printed = capsys.readouterr().out
    assert "MultiHeadDotProductAttention_1" in printed
    assert "(48, 3, 16)" in printed
    assert run(["weights", "show", str(GOLDEN), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["tensors"] == len(answer["rows"])
    row = next(row for row in answer["rows"] if row["name"] == "head/kernel")
    assert (row["shape"], row["dtype"], row["bad"]) == ([48, 11], "float32", 0)


def test_show_counts_values_that_are_not_finite(tmp_path: Path, capsys: Capture) -> None:
    torch.save(
        {"a": torch.tensor([1.0, float("nan"), float("inf")]), "b.c": torch.ones(2, dtype=torch.int64)}, tmp_path / "x.pth"
    )
    assert run(["weights", "show", str(tmp_path / "x.pth"), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert (rows["a"]["bad"], rows["a"]["norm"], rows["b.c"]["bad"]) == (2, 1.0, 0)
    assert run(["weights", "show", str(tmp_path / "x.pth")]) == 0


def test_convert_reports_and_verify_agrees(tmp_path: Path, capsys: Capture) -> None:
    ours, back = str(tmp_path / "ours"), str(tmp_path / "back.npz")
    assert run(["weights", "convert", str(GOLDEN), ours]) == 0
    printed = capsys.readouterr()
    assert "read official weights" in printed.out
    assert "assumed a square grid of 4x4" in printed.out
    assert printed.err == ""
    assert run(["weights", "convert", ours, back, "--to", "official", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["written"], answer["format"], answer["origin"]) == (back, "official", "vitrail")
    assert run(["weights", "verify", ours, back, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] < 1e-5


def test_convert_can_change_the_model(tmp_path: Path) -> None:
    out = tmp_path / "other"
    options = ["--image-size", "48x64", "--classes", "3", "--channels", "1", "--resize", "timm"]
    assert run(["weights", "convert", str(GOLDEN), str(out), *options]) == 0
    model = load(out)
    assert (model.config.image, model.config.classes, model.config.channels) == ((48, 64), 3, 1)
    assert run(["weights", "convert", str(GOLDEN), str(tmp_path / "patch"), "--patch", "16"]) == 0
    assert load(tmp_path / "patch").config.patch == (16, 16)  # type: ignore[union-attr]


def test_verify_exits_with_1_if_the_logits_differ(tmp_path: Path, capsys: Capture) -> None:
    model = small_vit()
    one = save(model, tmp_path / "one")
    dict(model.named_parameters())["head.bias"].data += 1
    two = save(model, tmp_path / "two")
    assert run(["weights", "verify", str(one), str(two)]) == 1
    assert "max difference 1.00e+00, tolerance 1e-04" in capsys.readouterr().out
    assert run(["weights", "verify", str(one), str(two), "--tolerance", "2"]) == 0
    capsys.readouterr()
    assert run(["weights", "verify", str(one)]) == 0
    assert "no reference for the logits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["weights", "show", "nothing.npz"], "nothing.npz does not exist"),
        (["weights", "convert", str(GOLDEN), "x", "--to", "onnx"], "format must be 'vitrail'"),
        (["weights", "convert", str(GOLDEN), "x.pth", "--to", "timm"], "use format='huggingface' or 'official'"),
        (["weights", "convert", str(GOLDEN), "x", "--gelu", "erf"], "--gelu must be tanh, exact or quick, got 'erf'"),
        (["weights", "verify", str(GOLDEN), "--grid", "3x3"], "a grid of 3x3 does not fit a position table of 17 rows"),
        (["weights", "verify", str(GOLDEN), "--heads", "5"], "the file has 3 heads, got heads=5"),
        (["weights", "shwo"], "did you mean 'show'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert sentence.lower() in printed.err.lower()
    assert list(tmp_path.iterdir()) == []
