"""Models of published kinds, smoothed, as an ONNX file, a program and in int8, compute what they compute in torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from tests.exporters.small import exportable_vit, random_images
from tests.small_models import PUBLISHED_KINDS
from tests.tiers import quick_only
from vitrail.errors import VitrailError
from vitrail.exporters.export_module import to_flexible
from vitrail.exporters.onnx import write_onnx
from vitrail.exporters.quantise import quantise
from vitrail.exporters.sample_images import SampleImages
from vitrail.exporters.smoothquant import smooth_activations
from vitrail.exporters.torch_export import write_program
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.config import RelativeBiasConfig

pytest.importorskip("onnx")
QUICK = ("mixed rotary", "bias by a table", "RMSNorm, no biases")
DYNAMIC = (
    "normalised rotary, registers",
    "mixed rotary",
    "bias by an MLP for all",
    "RMSNorm, no biases",
    "keys without a bias",
)


def make_uneven(model: Any) -> None:
    """Make one channel of every norm and of the values a hundred times the others."""
    with torch.no_grad():
        for block in model.blocks:
            for norm in (block.norm1, block.norm2, block.attention.norm, block.mlp.norm):
                for weight in norm.parameters():
                    weight[3] *= 100
            block.attention.qkv.weight[-2] *= 100


@pytest.mark.parametrize("norm", ["pre", "post", "branch"])
@pytest.mark.parametrize("changes", PUBLISHED_KINDS.values(), ids=PUBLISHED_KINDS.keys())
def test_a_smoothed_model_has_the_same_outputs(changes: dict[str, Any], norm: str) -> None:
    model, images = exportable_vit(**changes, norm=norm), torch.randn(5, 3, 12, 15)
    with torch.no_grad():
        assert_close(smooth_activations(model, images)(images), model(images), rtol=1e-5, atol=1e-5)
        make_uneven(model)
        expected, smoothed = model(images), smooth_activations(model, images)
        assert_close(smoothed(images), expected, rtol=1e-3, atol=1e-4)
    for name in ("blocks.0.attention.out", *(["blocks.1.mlp.down"] if model.config.mlp_norm else [])):
        before, after = (channel_spread(each, name, images) for each in (model, smoothed))
        assert after < before, name


def channel_spread(model: Any, name: str, images: torch.Tensor) -> float:
    """Return the largest input of a layer divided by the median of its channels' maxima."""
    inputs: list[torch.Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        model(images)
    hook.remove()
    channels = inputs[0].abs().flatten(0, -2).amax(dim=0)
    return float(channels.max() / channels.median())


@pytest.mark.compile
@pytest.mark.parametrize("name", quick_only(PUBLISHED_KINDS, *QUICK))
def test_a_file_has_the_models_logits(name: str, tmp_path: Path) -> None:
    model = exportable_vit(**PUBLISHED_KINDS[name])
    reference = TorchPredictor(model)
    write_program(model, tmp_path / "x.pt2")
    write_onnx(model, tmp_path / "x.onnx")
    for file in ("x.pt2", "x.onnx"):
        predictor = load_predictor(tmp_path / file)
        for count in (1, 3):
            outputs = predictor.outputs(random_images(count))
            assert_allclose(outputs, reference.outputs(random_images(count)), rtol=0, atol=1e-5)


@pytest.mark.compile
@pytest.mark.thorough
@pytest.mark.parametrize("name", DYNAMIC)
def test_any_image_size_is_accepted(name: str, tmp_path: Path) -> None:
    model = exportable_vit(**{**PUBLISHED_KINDS[name], "depth": 1})
    reference = TorchPredictor(to_flexible(model))
    write_program(model, tmp_path / "x.pt2", dynamic=True)
    write_onnx(model, tmp_path / "x.onnx", dynamic=True)
    for file in ("x.pt2", "x.onnx"):
        predictor = load_predictor(tmp_path / file)
        for count, rows, columns in ((2, 2, 3), (1, 1, 1), (3, 4, 2)):
            images = random_images(count, 6 * rows, 5 * columns)
            assert_allclose(predictor.outputs(images), reference.outputs(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("changes", [{"relative_bias": RelativeBiasConfig()}, {"window": 2}, {"relative_axes": True}], ids=str)
def test_tables_of_offsets_and_windows_have_one_image_size(changes: dict[str, Any], tmp_path: Path) -> None:
    model = exportable_vit(**changes)
    with pytest.raises(VitrailError, match="the image size cannot be dynamic; leave --dynamic out"):
        write_program(model, tmp_path / "x.pt2", dynamic=True)


@pytest.mark.compile
@pytest.mark.parametrize("name", quick_only(PUBLISHED_KINDS, "keys without a bias", "norms inside"))
def test_in_int8_all_layers_of_the_blocks_are_near_the_model(name: str, tmp_path: Path) -> None:
    model, images = exportable_vit(**PUBLISHED_KINDS[name]), random_images(40)
    samples = SampleImages(images, np.full(40, -1), "noise")
    report = quantise(model, tmp_path / "x.onnx", images, samples, max_drop=0.99)
    assert report.num_layers == 8
    assert report.float_layers == ()
    expected = TorchPredictor(model).outputs(images)
    error = load_predictor(tmp_path / "x.onnx").outputs(images) - expected
    assert np.square(error).mean() < 0.02 * expected.var()
