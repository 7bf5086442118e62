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

from tests.exporters.small import exportable_vit, random_images
from vitrail.errors import VitrailError
from vitrail.exporters.export import export
from vitrail.exporters.parity import ParityReport, require_accuracy
from vitrail.exporters.quantise import quantise, quantise_weight
from vitrail.exporters.sample_images import SampleImages, load_sample_images
from vitrail.exporters.smoothquant import smooth_activations
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.models.vit import ViT

onnx = pytest.importorskip("onnx")
UNKNOWN = np.full(40, -1)


def vit_with_outlier() -> ViT:
    """Build a model in which one MLP unit is a thousand times as large as the others, with small outgoing weights."""
    torch.manual_seed(0)
    model = exportable_vit()
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
    quantised, scale = quantise_weight(weight)
    assert np.abs(quantised[:, [0, 2]]).max(axis=0).tolist() == [127, 127]
    assert_array_equal(quantised[:, 1], 0)
    assert (np.abs(quantised * scale - weight) <= scale / 2 * (1 + 1e-6)).all()


@pytest.mark.compile
def test_onnxruntime_computes_what_rounding_in_torch_does(tmp_path: Path) -> None:
    """All layers in int8, scales from the same images."""
    torch.manual_seed(1)
    model, uint8_images = exportable_vit(), random_images(40)
    report = quantise(model, tmp_path / "a.onnx", uint8_images, SampleImages(uint8_images, UNKNOWN, "noise"), max_drop=0.99)
    assert report.float_layers == ()
    assert report.num_layers == 8
    predictor = TorchPredictor(model)
    images = normalise_images(predictor, uint8_images)
    expected = quantised_logits(smooth_activations(model, images), images)
    difference = np.abs(load_predictor(tmp_path / "a.onnx").outputs(uint8_images) - expected) / np.abs(expected).max()
    assert np.median(difference) < 1e-6
    assert difference.max() < 0.01  # halfway between two levels, float rounding decides


def normalise_images(predictor: TorchPredictor, images: ndarray) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (predictor.preprocess.mean, predictor.preprocess.std))
    return (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - mean) / std


def quantised_logits(model: Any, images: Tensor) -> ndarray:
    """Quantise every linear layer of the blocks: inputs to 256 levels between their extremes, weights to 255 per output."""

    def quantise_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        low, high = min(0.0, float(ranges[layer][0])), max(0.0, float(ranges[layer][1]))
        step = (high - low) / 255
        return torch.fake_quantize_per_tensor_affine(inputs[0], step, round(-low / step), 0, 255)

    layers = [layer for layer in model.blocks.modules() if isinstance(layer, nn.Linear)]
    ranges: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: ranges.__setitem__(layer, (inputs[0].min(), inputs[0].max())))
        for layer in layers
    ]
    with torch.no_grad():
        model(images)
        for hook in hooks:
            hook.remove()
        for layer in layers:
            quantised, scale = quantise_weight(layer.weight.T.contiguous().numpy())
            layer.weight.copy_(torch.from_numpy(quantised * scale).T)
            layer.register_forward_pre_hook(quantise_input)
        return np.asarray(model(images))


@pytest.mark.compile
@pytest.mark.parametrize("activations", ["static", pytest.param("dynamic", marks=pytest.mark.thorough)])
def test_a_layer_too_sensitive_for_int8_stays_in_float(tmp_path: Path, activations: Literal["static", "dynamic"]) -> None:
    model, images = vit_with_outlier(), random_images(40)
    labels = TorchPredictor(model).outputs(images).argmax(1)
    report = quantise(
        model, tmp_path / "a.onnx", random_images(32), SampleImages(images, labels, "noise"), activations, max_drop=0.05
    )
    assert max(report.sensitivity, key=lambda layer: report.sensitivity[layer]) == "blocks.1.mlp.down"
    assert report.float_layers[:1] == ("blocks.1.mlp.down",)
    assert report.accuracy_drop <= 0.05
    predictor = load_predictor(tmp_path / "a.onnx")
    assert (predictor.outputs(images).argmax(1) == labels).mean() == 1 - report.accuracy_drop
    metadata = json.loads(onnx.load(tmp_path / "a.onnx").metadata_props[0].value)["export"]
    assert (metadata["activations"], metadata["float_layers"]) == (activations, list(report.float_layers))
    for index in (0, 17):  # nor does a prediction depend on the rest of its batch
        assert_array_equal(predictor.outputs(images)[index], predictor.outputs(images[index : index + 1])[0])


@pytest.mark.compile
@pytest.mark.thorough
def test_the_file_is_smaller_and_uses_standard_operators_only(tmp_path: Path) -> None:
    model = exportable_vit(width=96, heads=3, mlp=384)
    result = export(model, tmp_path / "a.onnx", "int8", max_drop=0.9)
    proto = onnx.load(tmp_path / "a.onnx")
    assert result.quantisation is not None
    assert {opset.domain for opset in proto.opset_import} == {""}
    assert result.file_bytes < 0.45 * result.weight_bytes
    assert not result.parity.real_images


@pytest.mark.compile
@pytest.mark.thorough
def test_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    resnet = build(ResNetConfig(stages=(1, 1), classes=3, image=(32, 32))).eval()
    resnet.preprocess = exportable_vit().preprocess
    images = random_images(2, 32, 32)
    with pytest.raises(VitrailError, match="no linear layers"):
        quantise(resnet, tmp_path / "a.onnx", images, SampleImages(images, UNKNOWN[:2], "noise"))
    assert not list(tmp_path.iterdir())


def test_int8_has_one_image_size(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="one fixed image size"):
        export(exportable_vit(), tmp_path / "a.onnx", "int8", dynamic=True)
    assert not list(tmp_path.iterdir())


def test_a_file_that_loses_too_much_is_refused() -> None:
    report = ParityReport(200, "test of trees", True, 0.1, 9.0, 0.98, torch_top1=0.85, file_top1=0.83)
    with pytest.raises(VitrailError, match=r"loses 2.00 points .* 0.5 are allowed"):
        require_accuracy(report, "a.onnx", 0.005)
    require_accuracy(report, "a.onnx", 0.03)
    assert ParityReport(200, "images", True, 0.1, 9.0, 0.98).accuracy_drop == pytest.approx(0.02)


@pytest.mark.compile
@pytest.mark.thorough
def test_features_are_compared_by_cosine_similarity(tmp_path: Path) -> None:
    """Without a classifier there is no top-1 prediction to compare."""
    torch.manual_seed(2)
    model = exportable_vit(classes=0, width=48)
    result = export(model, tmp_path / "a.onnx", "int8", max_drop=0.02)
    report, predictor = result.parity, load_predictor(tmp_path / "a.onnx")
    images = load_sample_images(model).images
    logits, expected = (torch.from_numpy(each.outputs(images)) for each in (predictor, TorchPredictor(model)))
    cosine = nn.functional.cosine_similarity(logits, expected).mean().item()
    assert report.features
    assert report.agreement == pytest.approx(cosine, abs=1e-5)
    assert report.accuracy_drop == pytest.approx(1 - cosine, abs=1e-5)
    assert 0 < report.accuracy_drop <= 0.02
    with pytest.raises(VitrailError, match=r"loses 1\.00 points of feature cosine similarity on noise, where 0\.5 are allowed"):
        require_accuracy(ParityReport(9, "noise", False, 0.1, 9.0, 0.99, features=True), "a.onnx", 0.005)
