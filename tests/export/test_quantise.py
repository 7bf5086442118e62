"""int8: the arithmetic is exact, sensitive layers are found, and no prediction depends on the rest of its batch."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy import ndarray
from numpy.testing import assert_array_equal
from torch import Tensor, nn

from tests.export.small import noise, ready
from vitrail.errors import VitrailError
from vitrail.export.check import Checked, refuse_drop
from vitrail.export.engine import TorchEngine, open_engine
from vitrail.export.even import even
from vitrail.export.quantise import quantise, rounded
from vitrail.export.ship import ship
from vitrail.export.trial import Trial, trial
from vitrail.models.build import build
from vitrail.models.settings import ResNetConfig
from vitrail.models.vit import ViT

onnx = pytest.importorskip("onnx")
UNKNOWN = np.full(40, -1)


def spoiled() -> ViT:
    """Build a model in which one MLP unit is a thousand times as large as the others, with small outgoing weights."""
    torch.manual_seed(0)
    model = ready()
    assert isinstance(model.head, nn.Linear)
    mlp: Any = model.blocks[1]
    with torch.no_grad():
        model.head.weight.normal_(std=2)
        mlp.mlp.up.weight[4] *= 1000
        mlp.mlp.down.weight[:, 4] /= 1000
    return model


def test_weights_are_rounded_to_the_nearest_level_of_their_output_channel() -> None:
    weight = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    weight[:, 1] = 0
    whole, scale = rounded(weight)
    assert np.abs(whole[:, [0, 2]]).max(axis=0).tolist() == [127, 127]
    assert_array_equal(whole[:, 1], 0)
    assert (np.abs(whole * scale - weight) <= scale / 2 * (1 + 1e-6)).all()


@pytest.mark.compile
def test_onnxruntime_computes_what_rounding_in_torch_does(tmp_path: Path) -> None:
    """All layers in int8, scales from the same images."""
    torch.manual_seed(1)
    model, pictures = ready(), noise(40)
    found = quantise(model, tmp_path / "a.onnx", pictures, Trial(pictures, UNKNOWN, "noise"), max_drop=0.99)
    assert found.in_float == ()
    assert found.layers == 8
    engine = TorchEngine(model)
    images = engine_images(engine, pictures)
    want = in_eight_bits(even(model, images), images)
    apart = np.abs(open_engine(tmp_path / "a.onnx").logits(pictures) - want) / np.abs(want).max()
    assert np.median(apart) < 1e-6
    assert apart.max() < 0.01  # halfway between two levels, float rounding decides


def engine_images(engine: TorchEngine, pictures: ndarray) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (engine.preprocess.mean, engine.preprocess.std))
    return (torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255 - mean) / std


def in_eight_bits(model: Any, images: Tensor) -> ndarray:
    """Quantise every linear layer of the blocks: inputs to 256 levels between their extremes, weights to 255 per output."""

    def before(layer: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        low, high = min(0.0, float(ranges[layer][0])), max(0.0, float(ranges[layer][1]))
        step = (high - low) / 255
        return torch.fake_quantize_per_tensor_affine(given[0], step, round(-low / step), 0, 255)

    layers = [layer for layer in model.blocks.modules() if isinstance(layer, nn.Linear)]
    ranges: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    looks = [
        layer.register_forward_pre_hook(lambda layer, given: ranges.__setitem__(layer, (given[0].min(), given[0].max())))
        for layer in layers
    ]
    with torch.no_grad():
        model(images)
        for look in looks:
            look.remove()
        for layer in layers:
            whole, scale = rounded(layer.weight.T.contiguous().numpy())
            layer.weight.copy_(torch.from_numpy(whole * scale).T)
            layer.register_forward_pre_hook(before)
        return np.asarray(model(images))


@pytest.mark.compile
@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_a_layer_too_sensitive_for_int8_stays_in_float(tmp_path: Path, activations: Literal["static", "dynamic"]) -> None:
    model, pictures = spoiled(), noise(40)
    labels = TorchEngine(model).logits(pictures).argmax(1)
    found = quantise(model, tmp_path / "a.onnx", noise(32), Trial(pictures, labels, "noise"), activations, max_drop=0.05)
    assert max(found.sensitivity, key=lambda layer: found.sensitivity[layer]) == "blocks.1.mlp.down"
    assert found.in_float[:1] == ("blocks.1.mlp.down",)
    assert found.drop <= 0.05
    engine = open_engine(tmp_path / "a.onnx")
    assert (engine.logits(pictures).argmax(1) == labels).mean() == 1 - found.drop
    said = json.loads(onnx.load(tmp_path / "a.onnx").metadata_props[0].value)["export"]
    assert (said["activations"], said["float_layers"]) == (activations, list(found.in_float))
    for place in (0, 17):  # nor does a prediction depend on the rest of its batch
        assert_array_equal(engine.logits(pictures)[place], engine.logits(pictures[place : place + 1])[0])


@pytest.mark.compile
def test_the_file_is_smaller_and_uses_standard_operators_only(tmp_path: Path) -> None:
    model = ready(width=96, heads=3, mlp=384)
    shipped = ship(model, tmp_path / "a.onnx", "int8", max_drop=0.9)
    proto = onnx.load(tmp_path / "a.onnx")
    assert shipped.quantised is not None
    assert {opset.domain for opset in proto.opset_import} == {""}
    assert shipped.bytes < 0.45 * shipped.weights
    assert not shipped.checked.real


@pytest.mark.compile
def test_what_cannot_be_quantised_is_refused(tmp_path: Path) -> None:
    resnet = build(ResNetConfig(stages=(1, 1), classes=3, image=(32, 32))).eval()
    resnet.preprocess = ready().preprocess
    pictures = noise(2, 32, 32)
    with pytest.raises(VitrailError, match="no linear layers"):
        quantise(resnet, tmp_path / "a.onnx", pictures, Trial(pictures, UNKNOWN[:2], "noise"))
    with pytest.raises(VitrailError, match="one fixed image size"):
        ship(ready(), tmp_path / "a.onnx", "int8", dynamic=True)
    assert not list(tmp_path.iterdir())


def test_a_file_that_loses_too_much_is_refused() -> None:
    found = Checked(200, "test of trees", True, 0.1, 9.0, 0.98, torch_top1=0.85, file_top1=0.83)
    with pytest.raises(VitrailError, match=r"loses 2.00 points .* 0.5 are allowed"):
        refuse_drop(found, "a.onnx", 0.005)
    refuse_drop(found, "a.onnx", 0.03)
    assert Checked(200, "images", True, 0.1, 9.0, 0.98).drop == pytest.approx(0.02)


@pytest.mark.compile
def test_features_are_compared_by_cosine_similarity(tmp_path: Path) -> None:
    """Without a classifier there is no top-1 prediction to compare."""
    torch.manual_seed(2)
    model = ready(classes=0, width=48)
    shipped = ship(model, tmp_path / "a.onnx", "int8", max_drop=0.02)
    found, engine = shipped.checked, open_engine(tmp_path / "a.onnx")
    pictures = trial(model).pictures
    got, want = (torch.from_numpy(each.logits(pictures)) for each in (engine, TorchEngine(model)))
    cosine = nn.functional.cosine_similarity(got, want).mean().item()
    assert found.features
    assert found.agreement == pytest.approx(cosine, abs=1e-5)
    assert found.drop == pytest.approx(1 - cosine, abs=1e-5)
    assert 0 < found.drop <= 0.02
    with pytest.raises(VitrailError, match=r"loses 1\.00 points of feature cosine similarity on noise, where 0\.5 are allowed"):
        refuse_drop(Checked(9, "noise", False, 0.1, 9.0, 0.99, features=True), "a.onnx", 0.005)
