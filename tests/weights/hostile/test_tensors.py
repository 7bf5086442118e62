"""Weights that are not finite, missing, misshapen or of another model are named."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.weights.hostile.damage import FILES, load_outcome, read_tensors, refusal_message, save_small, write_tensors
from vitrail.weights.convert.inspect import Origin


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("format", FILES)
def test_weights_that_are_not_finite_are_named(format: Origin, number: float, tmp_path: Path) -> None:
    path = save_small(format, tmp_path)
    tensors = read_tensors(path)
    name = next(name for name in tensors if name.endswith(("head/bias", "head.bias", "classifier.bias")))
    tensors[name][3] = number
    assert "is damaged: head.bias has 1 of 5 values that are not finite (NaN/Inf)" in refusal_message(
        write_tensors(path, tensors)
    )


def test_values_too_large_for_single_precision_are_named(official: Path) -> None:
    tensors = read_tensors(official)
    tensors["head/bias"] = tensors["head/bias"].double()
    tensors["head/bias"][3] = 1e300
    assert "head.bias" in refusal_message(write_tensors(official, tensors))


@pytest.mark.parametrize("format", FILES)
def test_missing_tensors_are_listed(format: Origin, tmp_path: Path) -> None:
    path = save_small(format, tmp_path)
    tensors = read_tensors(path)
    missing = [name for name in tensors if "norm" in name.lower() or "ln_" in name][:2]
    write_tensors(path, {name: tensor for name, tensor in tensors.items() if name not in missing})
    message = refusal_message(path)
    assert all(name in message for name in missing)


@pytest.mark.parametrize("format", FILES)
def test_unexpected_tensors_are_listed(format: Origin, tmp_path: Path) -> None:
    path = save_small(format, tmp_path)
    message = refusal_message(write_tensors(path, {**read_tensors(path), "rnn.cell": torch.ones(2), "rnn.gate": torch.ones(2)}))
    assert "rnn.cell" in message
    assert "rnn.gate" in message


@pytest.mark.parametrize("format", FILES)
def test_misshapen_tensors_are_listed(format: Origin, tmp_path: Path) -> None:
    path = save_small(format, tmp_path)
    tensors = read_tensors(path)
    for name in [name for name in tensors if name.endswith("bias") and len(tensors[name]) == 40]:
        tensors[name] = torch.ones(41)
    assert "blocks.0.mlp.up.bias is [41] instead of [40]" in refusal_message(write_tensors(path, tensors))


def test_another_architecture_is_refused_with_some_of_its_names(tmp_path: Path) -> None:
    others = {"conv1.weight": torch.zeros(4, 3, 7, 7), "layer1.0.conv1.weight": torch.zeros(4, 4, 3, 3)}
    message = refusal_message(write_tensors(tmp_path / "resnet.safetensors", others))
    assert "no known Vision Transformer: conv1.weight, layer1.0.conv1.weight" in message


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "a single number": lambda tensor: torch.ones(()),
    "one axis": lambda tensor: torch.ones(tensor.numel() + 1),
    "one axis more": lambda tensor: tensor[None],
    "nothing along the first axis": lambda tensor: tensor[:0],
    "nothing along the last axis": lambda tensor: tensor[..., :0],
}
QUICK = ("one axis more", "nothing along the first axis")


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=() if shape in QUICK else pytest.mark.thorough) for shape in SHAPES]
)
@pytest.mark.parametrize("format", FILES)
def test_any_wrong_shape_is_refused(format: Origin, shape: str, tmp_path: Path) -> None:
    path = save_small(format, tmp_path)
    tensors = read_tensors(path)
    outcomes = {name: load_outcome(write_tensors(path, {**tensors, name: SHAPES[shape](tensors[name])})) for name in tensors}
    assert outcomes == dict.fromkeys(tensors, "refused")


@pytest.mark.parametrize("format", FILES)
def test_any_missing_tensor_is_detected(format: Origin, tmp_path: Path) -> None:
    path = save_small(format, tmp_path)
    tensors = read_tensors(path)
    outcomes = {name: load_outcome(write_tensors(path, {n: t for n, t in tensors.items() if n != name})) for name in tensors}
    assert set(outcomes.values()) <= {"loaded", "refused"}, outcomes
    assert sum(value == "loaded" for value in outcomes.values()) <= 2  # a file without a class token or a head may be complete


@pytest.mark.parametrize("overrides", [{"image": 20}, {"patch": 3}, {"channels": 1}, {"classes": 7}], ids=str)
@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, marks=() if shape in ("missing", *QUICK) else pytest.mark.thorough) for shape in ("missing", *SHAPES)],
)
def test_broken_weights_are_refused_also_when_resized(shape: str, overrides: dict[str, int], tmp_path: Path) -> None:
    folder = save_small("vitrail", tmp_path)
    tensors = {name: tensor for name, tensor in read_tensors(folder).items() if not name.startswith("head.")}
    outcomes = {}
    for name in tensors:
        others = {n: t for n, t in tensors.items() if n != name}
        broken = others if shape == "missing" else {**others, name: SHAPES[shape](tensors[name])}
        outcomes[name] = load_outcome(write_tensors(folder, broken), **overrides)
    assert outcomes == dict.fromkeys(tensors, "refused")
