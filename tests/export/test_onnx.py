"""An ONNX file equals the model at any batch and image size, has its preprocessing and class names, and no local paths."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.export.small import LABELS, noise, ready
from vitrail.config import to_plain
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.export.engine import TorchEngine, open_engine
from vitrail.export.graph import flexible
from vitrail.export.onnx import check_size, write_onnx
from vitrail.export.program import write_program
from vitrail.export.session import session
from vitrail.models.build import build
from vitrail.models.faster import faster
from vitrail.models.settings import ResNetConfig, Stem
from vitrail.models.vit import ViT

onnx = pytest.importorskip("onnx")

KINDS: dict[str, dict[str, Any]] = {
    "class token, registers, scales": {"registers": 2, "layer_scale": 0.1, "qk_norm": True, "qkv_bias": False},
    "rotary, attention pooling": {"position": "rotary", "heads": 2, "pool": "map", "gelu": "exact"},
    "relative, mean of the patches": {"position": "relative", "pool": "gap", "class_token": True, "norm_at": "pooled"},
    "hybrid, hidden layer": {"stem": Stem((1, 1), 32), "patch": 1, "image": (16, 24), "head": "mlp", "head_width": 7},
    "post-norm, two tables": {"norm": "post", "position": "learned2d", "position_at": "every-layer"},
    "grey, no classifier": {"channels": 1, "classes": 0, "position": "sincos2d"},
}
FOLLOWED: dict[str, dict[str, Any]] = {
    "official": {"resize": "official", "depth": 1},
    "huggingface": {"resize": "huggingface", "registers": 1, "depth": 1},
    "torchvision": {"resize": "torchvision", "pool": "gap", "depth": 1},
    "rotary": {"position": "rotary", "heads": 2, "depth": 1},
    "sincos": {"position": "sincos2d", "pool": "map", "depth": 1},
}


@pytest.fixture(scope="module")
def dynamic_export(tmp_path_factory: pytest.TempPathFactory) -> tuple[ViT, Path]:
    """Export a model for any image size."""
    model = ready(registers=1)
    model.facts = {
        "recipe": {"loss": "sigmoid", "data": "/home/somebody/images/trees", "optim": {"lr": 0.1}},
        "dataset": {"name": "~/images/trees", "fingerprint": "abc"},
        "metrics": {"step": 3, "test": {"top1": 0.5}},
    }
    path = tmp_path_factory.mktemp("onnx") / "dynamic_export.onnx"
    write_onnx(model, path, dynamic=True)
    return model, path


@pytest.mark.compile
def test_any_batch_and_image_size_is_accepted(dynamic_export: tuple[ViT, Path]) -> None:
    model, path = dynamic_export
    engine, reference = open_engine(path), TorchEngine(flexible(model))
    for count, rows, columns in ((1, 2, 3), (5, 2, 3), (2, 1, 1), (3, 6, 2), (1, 3, 7), (2, 9, 9)):
        pictures = noise(count, 6 * rows, 5 * columns)
        assert_allclose(engine.logits(pictures), reference.logits(pictures), rtol=0, atol=1e-5)


@pytest.mark.compile
def test_the_file_has_all_metadata(dynamic_export: tuple[ViT, Path]) -> None:
    model, path = dynamic_export
    engine = open_engine(path)
    assert (engine.name, engine.labels, engine.sigmoid) == ("onnxruntime", LABELS, True)
    assert engine.preprocess == model.preprocess == Preprocess((12, 15), mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4))
    (note,) = onnx.load(path).metadata_props
    said = json.loads(note.value)
    assert note.key == "vitrail"
    assert said["model"] == json.loads(json.dumps(to_plain(model.config)))
    assert said["metrics"] == model.facts["metrics"]
    assert set(said["versions"]) == {"vitrail", "torch"}
    assert said["dataset"] == {"name": "trees", "fingerprint": "abc"}


@pytest.mark.compile
def test_the_graph_maps_pixels_to_logits_and_probabilities(dynamic_export: tuple[ViT, Path]) -> None:
    opened = session(dynamic_export[1]).together
    (given,) = opened.get_inputs()
    assert (given.name, given.type, given.shape[-1]) == ("images", "tensor(uint8)", 3)
    assert [each.name for each in opened.get_outputs()] == ["logits", "probabilities"]
    logits, probabilities = opened.run(None, {"images": noise(4)})
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
        open_engine(dynamic_export[1]).logits(noise(1, 13, 15))


@pytest.mark.compile
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_exported_exactly(kind: str, tmp_path: Path) -> None:
    model = ready(**KINDS[kind])
    write_onnx(model, tmp_path / "x.onnx")
    engine, reference = open_engine(tmp_path / "x.onnx"), TorchEngine(model)
    for count in (1, 3):
        pictures = noise(count, *model.config.image, model.config.channels)
        assert_allclose(engine.logits(pictures), reference.logits(pictures), rtol=0, atol=1e-5)
    with pytest.raises(VitrailError, match=r"the (height|width) of images must be 1\d, got|channels"):
        engine.logits(noise(1, 12, 16, model.config.channels))


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLLOWED)
def test_every_kind_of_position_is_resized(kind: str, tmp_path: Path) -> None:
    model = ready(**FOLLOWED[kind])
    write_onnx(model, tmp_path / "x.onnx", dynamic=True)
    engine, reference = open_engine(tmp_path / "x.onnx"), TorchEngine(flexible(model))
    down, across = model.config.stride
    for count, rows, columns in ((1, 2, 3), (2, 1, 1), (3, 5, 2), (1, 3, 8)):
        pictures = noise(count, rows * down, columns * across)
        assert_allclose(engine.logits(pictures), reference.logits(pictures), rtol=0, atol=1e-5)


@pytest.mark.compile
def test_a_hybrid_accepts_any_size_as_onnx_and_as_program(tmp_path: Path) -> None:
    """Three stages: one that keeps the size and two that halve it."""
    model = ready(stem=Stem((1, 2, 1), 32), patch=1, image=(32, 48), depth=1)
    write_onnx(model, tmp_path / "x.onnx", dynamic=True)
    write_program(model, tmp_path / "x.pt2", dynamic=True)
    file, program, reference = open_engine(tmp_path / "x.onnx"), open_engine(tmp_path / "x.pt2"), TorchEngine(flexible(model))
    for count, rows, columns in ((2, 2, 3), (1, 1, 1), (3, 3, 1)):
        want = reference.logits(pictures := noise(count, 16 * rows, 16 * columns))
        for engine in (file, program):
            assert_allclose(engine.logits(pictures), want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.compile
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_resnet_is_exported_exactly(dynamic: bool, tmp_path: Path) -> None:
    model = build(ResNetConfig((1, 1), width=32, image=(40, 48), classes=5)).eval()
    for weight in model.parameters():
        weight.data.add_(0.1 * weight.data.new_empty(weight.shape).normal_())
    model.preprocess = Preprocess((40, 48))
    write_onnx(model, tmp_path / "x.onnx", dynamic)
    engine, reference = open_engine(tmp_path / "x.onnx"), TorchEngine(model)
    for count, high, wide in ((1, 40, 48), (3, 40, 48), *(((2, 33, 71), (1, 64, 35)) if dynamic else ())):
        want = reference.logits(pictures := noise(count, high, wide))
        assert_allclose(engine.logits(pictures), want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.compile
def test_a_token_merging_model_is_exported_exactly(tmp_path: Path) -> None:
    whole = ready()
    model = faster(whole, merge=1)
    write_onnx(model, tmp_path / "x.onnx")
    engine, reference = open_engine(tmp_path / "x.onnx"), TorchEngine(model)
    for count in (1, 3):
        assert_allclose(engine.logits(noise(count)), reference.logits(noise(count)), rtol=0, atol=1e-5)
    assert (
        np.abs(engine.logits(noise(3)) - TorchEngine(whole).logits(noise(3))).max() > 1e-4
    )  # and differs from the unmerged model
    with pytest.raises(VitrailError, match="has one fixed image size; leave --dynamic out"):
        write_onnx(model, tmp_path / "x.onnx", dynamic=True)


@pytest.mark.compile
@pytest.mark.slow
def test_the_same_model_makes_the_same_file(tmp_path: Path) -> None:
    model = ready()
    for name in ("one.onnx", "two.onnx"):
        write_onnx(model, tmp_path / name)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_weights_too_large_for_one_file_are_refused_before_any_work() -> None:
    with pytest.raises(VitrailError, match=r"take 2\.\d+ GiB, and one ONNX file holds less than 2; try --to program"):
        check_size(build("H/14", device="meta"))
    check_size(build("L/16", device="meta"))
