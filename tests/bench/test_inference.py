"""``vitrail bench inference``: every path gives the model's own predictions, and ratios are to the fastest peer."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.exporters.small import exportable_vit, random_images
from vitrail.bench import fbgemm
from vitrail.bench.inference import (
    EAGER,
    FBGEMM,
    INT8,
    MERGED,
    MERGED_INT8,
    ONNX,
    InferencePaths,
    _make_row,
    benchmark_inference,
)
from vitrail.errors import VitrailError
from vitrail.exporters.quantise import smooth_model
from vitrail.exporters.sample_images import SampleImages
from vitrail.inference.predictor import TorchPredictor


@pytest.mark.compile
@pytest.mark.thorough
def test_every_path_predicts_and_its_accuracy_is_reported() -> None:
    pytest.importorskip("onnx")
    model, images = exportable_vit(depth=3), random_images(24)
    labels = TorchPredictor(model).outputs(images).argmax(1)
    labels[:6] = (labels[:6] + 1) % 5  # a quarter is wrong
    samples = SampleImages(images, labels, "noise")
    paths = InferencePaths(model, samples, merge=(1, 1), compile=False)
    assert set(paths.run_batch) == {EAGER, MERGED, ONNX, INT8, MERGED_INT8} | ({FBGEMM} if fbgemm.is_available() else set())
    for ask in paths.run_batch.values():
        ask(3)
    accuracy = paths.accuracy_kept(samples)
    assert accuracy[EAGER].top1 == accuracy[ONNX].top1 == 0.75
    assert accuracy[EAGER].agreement == accuracy[ONNX].agreement == 1
    assert all(accuracy[path].agreement >= 0.9 for path in (INT8, FBGEMM) if path in accuracy)


@pytest.mark.skipif(not fbgemm.is_available(), reason="this processor has no fbgemm")
def test_fbgemm_rounds_the_layers_except_those_left_in_float() -> None:
    """An image's prediction depends on the rest of the batch, which is why it is not offered."""
    model = exportable_vit(depth=2)
    images = random_images(6)
    built = fbgemm.quantise_linear_layers(smooth_model(model, images), ("blocks.1.mlp.down",))
    kinds = [type(block.mlp.down) for block in built.blocks]  # type: ignore[union-attr]
    assert kinds[0] is not nn.Linear
    assert kinds[1] is nn.Linear
    want, got = TorchPredictor(model).outputs(images), TorchPredictor(built).outputs(images)
    assert 1e-5 < np.abs(got - want).max() / np.abs(want).max() < 0.1
    assert np.abs(TorchPredictor(built).outputs(images[:1]) - got[:1]).max() > 1e-6
    without_key_bias = exportable_vit(depth=2, key_bias=False)
    want = TorchPredictor(without_key_bias).outputs(images)
    rough_model = fbgemm.quantise_linear_layers(smooth_model(without_key_bias, images))
    assert np.abs(TorchPredictor(rough_model).outputs(images) - want).max() / np.abs(want).max() < 0.1
    layer = nn.Linear(7, 3, bias=False)
    x = torch.linspace(-1, 1, 14).reshape(2, 7)
    rough = fbgemm._QuantisedLinear(layer)(x)
    steps = layer.weight.abs().amax(dim=1) / 127 / 2 * x.abs().sum(1, keepdim=True) + 2 / 127 * layer.weight.abs().sum(1)
    assert ((rough - layer(x)).abs() <= steps).all()


def test_the_faster_of_two_int8_engines_is_reported() -> None:
    rates = {EAGER: 10.0, INT8: 20.0, FBGEMM: 30.0, "timm": 10.0}
    row = _make_row("S/16", 1, rates, ("timm",), 10)
    assert (row.int8_ratio, row.int8_engine) == (3.0, "fbgemm")
    row = _make_row("S/16", 1, {**rates, FBGEMM: 19.0}, ("timm",), 10)
    assert (row.int8_ratio, row.int8_engine) == (2.0, "onnxruntime")
    assert _make_row("S/16", 1, {EAGER: 1.0}, (), 10).int8_engine is None


def test_ratios_are_to_the_fastest_peer() -> None:
    rates = {EAGER: 10.0, ONNX: 12.0, INT8: 20.0, MERGED_INT8: 25.0, "timm": 8.0, "torchvision": 5.0}
    row = _make_row("Ti/16", 8, rates, ("timm", "torchvision"), 10)
    assert (row.eager_ratio, row.float_ratio, row.int8_ratio, row.merged_int8_ratio) == (1.25, 1.5, 2.5, 3.125)
    assert row.gemm_fraction == 10.0 * 2 * 10  # operations per second, until the peak is known
    assert _make_row("Ti/16", 8, {EAGER: 1.0}, (), 10).eager_ratio is None
    assert np.isclose(row.images_per_second["timm"], 8)


def test_errors_are_one_sentence() -> None:
    with pytest.raises(VitrailError, match="Ti/16, S/16, B/16, got 'Q/16'"):
        benchmark_inference(sizes=("Q/16",))
    with pytest.raises(VitrailError, match="name some with --data"):
        benchmark_inference(weights="mine.npz")
