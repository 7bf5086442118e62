"""An ONNX file equals the model at any batch and image size, has its preprocessing and class names, and no local paths."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.exporters.small import CLASS_NAMES, exportable_vit, random_images
from tests.tiers import quick_only
from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.exporters.export_module import to_flexible
from vitrail.exporters.onnx import check_model_size, write_onnx
from vitrail.exporters.torch_export import write_program
from vitrail.inference.export_metadata import path_hash
from vitrail.inference.load import load_predictor
from vitrail.inference.onnx_predictor import open_session
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig, StemConfig
from vitrail.models.speedups import speed_up
from vitrail.models.vit import ViT

onnx = pytest.importorskip("onnx")

KINDS: dict[str, dict[str, Any]] = {
    "class token, registers, scales": {"registers": 2, "layer_scale": 0.1, "qk_norm": True, "qkv_bias": False},
    "rotary, attention pooling": {"position": "rotary", "heads": 2, "pool": "map", "gelu": "exact"},
    "relative, mean of the patches": {"position": "relative", "pool": "gap", "class_token": True, "final_norm": "pooled"},
    "hybrid, hidden layer": {"stem": StemConfig((1, 1), 32), "patch": 1, "image": (16, 24), "head": "mlp", "head_hidden": 7},
    "post-norm, two tables": {"norm": "post", "position": "learned2d", "position_at": "every-layer"},
    "gated MLP": {"mlp_kind": "swiglu", "layer_scale": 0.1},
    "grey, no classifier": {"channels": 1, "classes": 0, "position": "sincos2d"},
}
RESIZED: dict[str, dict[str, Any]] = {
    "official": {"position_resize": "official", "depth": 1},
    "huggingface": {"position_resize": "huggingface", "registers": 1, "depth": 1},
    "torchvision": {"position_resize": "torchvision", "pool": "gap", "depth": 1},
    "rotary": {"position": "rotary", "heads": 2, "depth": 1},
    "sincos": {"position": "sincos2d", "pool": "map", "depth": 1},
}


@pytest.fixture(scope="module")
def dynamic_export(tmp_path_factory: pytest.TempPathFactory) -> tuple[ViT, Path]:
    """Export a model for any image size."""
    model = exportable_vit(registers=1)
    model.metadata = {
        "recipe": {
            "task": {"kind": "classification", "loss": "sigmoid"},
            "data": "/home/user/images/trees",
            "optim": {"lr": 0.1},
        },
        "dataset": {"name": "~/images/trees", "fingerprint": "abc"},
        "metrics": {"step": 3, "test": {"top1": 0.5}},
    }
    path = tmp_path_factory.mktemp("onnx") / "dynamic_export.onnx"
    write_onnx(model, path, dynamic=True)
    return model, path


@pytest.mark.compile
def test_any_batch_and_image_size_is_accepted(dynamic_export: tuple[ViT, Path]) -> None:
    model, path = dynamic_export
    predictor, reference = load_predictor(path), TorchPredictor(to_flexible(model))
    for count, rows, columns in ((1, 2, 3), (5, 2, 3), (2, 1, 1), (3, 6, 2), (1, 3, 7), (2, 9, 9)):
        images = random_images(count, 6 * rows, 5 * columns)
        assert_allclose(predictor.outputs(images), reference.outputs(images), rtol=0, atol=1e-5)


@pytest.mark.compile
def test_the_file_has_all_metadata(dynamic_export: tuple[ViT, Path]) -> None:
    model, path = dynamic_export
    predictor = load_predictor(path)
    assert (predictor.backend, predictor.class_names, predictor.task.config.loss) == ("onnxruntime", CLASS_NAMES, "sigmoid")
    assert predictor.preprocess == model.preprocess == Preprocess((12, 15), mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4))
    (entry,) = onnx.load(path).metadata_props
    metadata = json.loads(entry.value)
    assert entry.key == "vitrail"
    assert metadata["model"] == json.loads(json.dumps(to_dict(model.config)))
    assert metadata["metrics"] == model.metadata["metrics"]
    assert set(metadata["versions"]) == {"vitrail", "torch"}
    assert metadata["dataset"] == {"name": "trees", "fingerprint": "abc", "path_hash": path_hash("~/images/trees")}


@pytest.mark.compile
def test_the_graph_maps_pixels_to_logits_and_probabilities(dynamic_export: tuple[ViT, Path]) -> None:
    session = open_session(dynamic_export[1].read_bytes(), "x.onnx").multi_threaded
    (graph_input,) = session.get_inputs()
    assert (graph_input.name, graph_input.type, graph_input.shape[-1]) == ("images", "tensor(uint8)", 3)
    assert [output.name for output in session.get_outputs()] == ["logits", "probabilities"]
    logits, probabilities = session.run(None, {"images": random_images(4)})
    assert_allclose(probabilities, 1 / (1 + np.exp(-logits)), rtol=1e-5)  # the model has the sigmoid loss


@pytest.mark.compile
def test_the_file_has_no_local_paths_and_no_resize_operators(dynamic_export: tuple[ViT, Path]) -> None:
    content = dynamic_export[1].read_bytes()
    for name in (str(Path(__file__).parents[2]), "site-packages", "/home/", "~/", ".py"):
        assert name.encode() not in content, name
    graph = onnx.load_from_string(content).graph
    assert not {"Resize", "Upsample", "GridSample"} & {node.op_type for node in graph.node}


@pytest.mark.compile
def test_a_size_that_the_patches_do_not_divide_is_refused(dynamic_export: tuple[ViT, Path]) -> None:
    with pytest.raises(VitrailError, match="multiple of 6x5, got 13x15"):
        load_predictor(dynamic_export[1]).outputs(random_images(1, 13, 15))


@pytest.mark.compile
@pytest.mark.parametrize("kind", quick_only(KINDS, "rotary, attention pooling", "gated MLP"))
def test_every_kind_of_model_is_exported_exactly(kind: str, tmp_path: Path) -> None:
    model = exportable_vit(**KINDS[kind])
    write_onnx(model, tmp_path / "x.onnx")
    predictor, reference = load_predictor(tmp_path / "x.onnx"), TorchPredictor(model)
    for count in (1, 3):
        images = random_images(count, *model.config.image, model.config.channels)
        assert_allclose(predictor.outputs(images), reference.outputs(images), rtol=0, atol=1e-5)
    with pytest.raises(VitrailError, match=r"the (height|width) of images must be 1\d, got|channels"):
        predictor.outputs(random_images(1, 12, 16, model.config.channels))


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("kind", RESIZED)
def test_every_kind_of_position_is_resized(kind: str, tmp_path: Path) -> None:
    model = exportable_vit(**RESIZED[kind])
    write_onnx(model, tmp_path / "x.onnx", dynamic=True)
    predictor, reference = load_predictor(tmp_path / "x.onnx"), TorchPredictor(to_flexible(model))
    stride_y, stride_x = model.config.patch_stride
    for count, rows, columns in ((1, 2, 3), (2, 1, 1), (3, 5, 2), (1, 3, 8)):
        images = random_images(count, rows * stride_y, columns * stride_x)
        assert_allclose(predictor.outputs(images), reference.outputs(images), rtol=0, atol=1e-5)


@pytest.mark.compile
@pytest.mark.thorough
def test_a_hybrid_accepts_any_size_as_onnx_and_as_program(tmp_path: Path) -> None:
    """Three stages: one that keeps the size and two that halve it."""
    model = exportable_vit(stem=StemConfig((1, 2, 1), 32), patch=1, image=(32, 48), depth=1)
    write_onnx(model, tmp_path / "x.onnx", dynamic=True)
    write_program(model, tmp_path / "x.pt2", dynamic=True)
    file, program, reference = (
        load_predictor(tmp_path / "x.onnx"),
        load_predictor(tmp_path / "x.pt2"),
        TorchPredictor(to_flexible(model)),
    )
    for count, rows, columns in ((2, 2, 3), (1, 1, 1), (3, 3, 1)):
        expected = reference.outputs(images := random_images(count, 16 * rows, 16 * columns))
        for predictor in (file, program):
            assert_allclose(predictor.outputs(images), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.compile
@pytest.mark.thorough
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_resnet_is_exported_exactly(dynamic: bool, tmp_path: Path) -> None:
    model = build(ResNetConfig((1, 1), width=32, image=(40, 48), classes=5)).eval()
    for weight in model.parameters():
        weight.data.add_(0.1 * weight.data.new_empty(weight.shape).normal_())
    model.preprocess = Preprocess((40, 48))
    write_onnx(model, tmp_path / "x.onnx", dynamic)
    predictor, reference = load_predictor(tmp_path / "x.onnx"), TorchPredictor(model)
    for count, height, width in ((1, 40, 48), (3, 40, 48), *(((2, 33, 71), (1, 64, 35)) if dynamic else ())):
        expected = reference.outputs(images := random_images(count, height, width))
        assert_allclose(predictor.outputs(images), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.compile
@pytest.mark.thorough
def test_a_token_merging_model_is_exported_exactly(tmp_path: Path) -> None:
    whole = exportable_vit()
    model = speed_up(whole, merge_tokens=1)
    write_onnx(model, tmp_path / "x.onnx")
    predictor, reference = load_predictor(tmp_path / "x.onnx"), TorchPredictor(model)
    for count in (1, 3):
        assert_allclose(predictor.outputs(random_images(count)), reference.outputs(random_images(count)), rtol=0, atol=1e-5)
    unmerged = TorchPredictor(whole).outputs(random_images(3))
    assert np.abs(predictor.outputs(random_images(3)) - unmerged).max() > 1e-4
    with pytest.raises(VitrailError, match="has one fixed image size; leave --dynamic out"):
        write_onnx(model, tmp_path / "x.onnx", dynamic=True)


@pytest.mark.compile
@pytest.mark.slow
def test_the_same_model_makes_the_same_file(tmp_path: Path) -> None:
    model = exportable_vit()
    for name in ("one.onnx", "two.onnx"):
        write_onnx(model, tmp_path / name)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_weights_too_large_for_one_file_are_refused_before_any_work() -> None:
    with pytest.raises(VitrailError, match=r"take 2\.\d+ GiB, and one ONNX file holds less than 2; try --to program"):
        check_model_size(build("H/14", device="meta"))
    check_model_size(build("L/16", device="meta"))
