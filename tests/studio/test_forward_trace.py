"""The numbers of the page are those of ``vitrail.explain``, for every kind of model."""

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

import vitrail
from tests.data.images import image_bytes, make_image
from tests.small_models import PUBLISHED_KINDS, small_vit
from vitrail import explain
from vitrail.data.preprocess import Preprocess, vit_preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import Model, build
from vitrail.models.config import ViTConfig
from vitrail.models.speedups import speed_up
from vitrail.models.variants import variant
from vitrail.models.vit import ViT
from vitrail.studio import forward_trace
from vitrail.studio.forward_trace import attention_rows, trace_image
from vitrail.tasks.registry import class_probabilities

KINDS: list[dict[str, Any]] = [
    {},
    {"pool": "map", "registers": 2},
    {"position": "relative"},
    {"classes": 0},
    {"hybrid": True},
    PUBLISHED_KINDS["bias by a table"],
    PUBLISHED_KINDS["class token and register"],
    {"merge_tokens": 2, "drop_patches": 0.3, "position": "rotary", "pool": "gap"},
]
MORE_KINDS: list[dict[str, Any]] = [
    {"pool": "gap"},
    {"pool": "gap", "class_token": True, "registers": 1, "final_norm": "pooled"},
    {"registers": 2, "position_prefix": "all"},
    {"image": (32, 48), "patch": (8, 16)},
    {"norm": "post"},
    {"qk_norm": True, "layer_scale": 0.1},
    {"position": "rotary"},
    {"position": "none"},
    {"position": "learned2d", "position_at": "every-layer"},
    {"position": "sincos2d-mae"},
    {"channels": 1},
    {"classes": 0, "pool": "map"},
    {"classes": 1},
    {"classes": 120},
    {"merge_tokens": 2},
]
MORE_KINDS += [changes for changes in PUBLISHED_KINDS.values() if changes not in KINDS]
EVERY_KIND = [*KINDS, *(pytest.param(kind, marks=pytest.mark.thorough) for kind in MORE_KINDS)]


def make_model(**changes: Any) -> ViT:
    """Build a model with preprocessing and class names; ``hybrid`` and speed-ups are more kinds of it."""
    speedups = {name: changes.pop(name) for name in ("merge_tokens", "drop_patches") if name in changes}
    model: Model
    if changes.pop("hybrid", False):
        model = build(variant("R+Ti/16", image=(64, 96), classes=3, depth=2)).eval()
    else:
        model = small_vit(**({"image": (30, 35)} if speedups else {}), **changes)
    config = model.config
    assert isinstance(config, ViTConfig)
    model.preprocess = vit_preprocess(config.image, config.channels)
    model.class_names = tuple(f"name {number}" for number in range(config.classes)) or None
    model = speed_up(model, **speedups)
    assert isinstance(model, ViT)
    return model


def images_of(model: ViT) -> Tensor:
    return vitrail.preprocess(model, [image_bytes(3)])


def assert_same(actual: np.ndarray, expected: Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert actual.dtype == np.float32
    assert actual.flags.c_contiguous
    assert_close(torch.from_numpy(actual), expected.float(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("changes", EVERY_KIND, ids=str)
def test_every_array_is_that_of_explain(changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    metadata, arrays = trace_image(model, image_bytes(3))
    images, width, classes = images_of(model), model.config.width, model.config.classes
    prefix, grid = model.config.prefix_tokens, model.grid(images)
    with torch.no_grad():
        logits = model(images)[0, :classes] if classes else torch.zeros(0)
        patches = model.embed_patches(images)[0]
    assert metadata["tokens"] == prefix + grid[0] * grid[1] == arrays["attention"].shape[2]
    assert metadata["grid"] == list(grid)
    assert_same(arrays["logits"], logits)
    assert_same(arrays["probabilities"], class_probabilities(model, logits))
    assert_same(arrays["attention"], explain.attention(model, images)[:, 0])
    assert_same(arrays["pooled_attention"], explain.pooled_attention(model, images)[:, 0])
    assert_same(arrays["pooling_weights"], explain.pooling_weights(model, images)[0])
    assert_same(arrays["token_norms"], explain.token_norms(model, images)[:, 0])
    assert_same(arrays["patch_norms"], patches.norm(dim=-1))
    printed = arrays["lens_classes"]
    assert printed.dtype == np.int32
    if classes:
        assert_same(
            arrays["lens"],
            class_probabilities(model, explain.logit_lens(model, images)[:, 0])[:, torch.from_numpy(printed).long()],
        )
    assert arrays["lens"].shape == (model.config.depth + 1, len(printed))
    if model.config.layers_with_position[0] is None:
        assert "position_norms" not in arrays
    elif "merge_tokens" not in changes:
        entering = model.add_prefix_tokens(patches[None])
        block_inputs: list[Tensor] = []
        hook = model.blocks[0].register_forward_pre_hook(lambda _, inputs: block_inputs.append(inputs[0]))
        with torch.no_grad():
            model(images)
        hook.remove()
        assert entering.shape[2] == width
        assert_same(arrays["position_norms"], (block_inputs[0] - entering)[0].norm(dim=-1), rtol=1e-4, atol=1e-5)
    json.dumps(metadata, allow_nan=False)
    assert all(np.isfinite(values).all() for values in arrays.values())


@pytest.mark.parametrize("changes", EVERY_KIND, ids=str)
def test_the_metadata_are_those_of_the_model_and_its_prediction(changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    metadata, arrays = trace_image(model, image_bytes(3))
    predicted = vitrail.predict(model, [image_bytes(3)], top_k=10)[0].top if model.config.classes else ()
    assert [one["label"] for one in metadata["top"]] == [guess.label for guess in predicted]
    assert [one["probability"] for one in metadata["top"]] == pytest.approx([guess.probability for guess in predicted])
    assert metadata["target"] == (int(arrays["logits"].argmax()) if model.config.classes else None)
    assert all(model.class_names is not None and model.class_names[one["class"]] == one["label"] for one in metadata["top"])
    config = model.config
    assert metadata["prefix"] == config.prefix_tokens
    for name in ("registers", "depth", "heads", "pool", "classes"):
        assert metadata[name] == getattr(config, name)
    assert (metadata["class_token"], metadata["full_attention"], metadata["sigmoid"]) == (config.has_class_token, True, False)
    assert metadata["scale"] == pytest.approx((config.width / config.heads) ** -0.5)
    assert metadata["image"] == {"width": 20, "height": 24}


@pytest.mark.parametrize("channels", [1, 3])
def test_the_pixels_are_what_becomes_the_models_input(channels: int) -> None:
    model = make_model(channels=channels)
    preprocess = model.preprocess
    assert preprocess is not None
    _, arrays = trace_image(model, image_bytes(3))
    assert arrays["pixels"].dtype == np.uint8
    assert arrays["pixels"].shape == (12, 15, channels)
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    images = (torch.from_numpy(arrays["pixels"]).permute(2, 0, 1) / 255 - mean) / std
    assert_close(images_of(model)[0], images, rtol=1e-5, atol=1e-6)


def test_the_crop_of_the_original_is_what_the_model_sees() -> None:
    model = make_model(image=(24, 30))
    model.preprocess = Preprocess((24, 30), crop_pct=0.5, interpolation="bilinear", mean=(0.1, 0.2, 0.3))
    metadata, arrays = trace_image(model, make_image(1, (96, 150)))
    preprocessing = metadata["preprocess"]
    assert (preprocessing["resized"], preprocessing["mean"], preprocessing["interpolation"], preprocessing["fit"]) == (
        [75, 48],
        [0.1, 0.2, 0.3],
        "bilinear",
        "crop",
    )
    left, top, right, bottom = preprocessing["box"]
    assert (left, top, right, bottom) == (44, 24, 104, 72)  # a margin of 22.5 pixels falls on an even one
    part = make_image(1, (96, 150)).crop((44, 24, 104, 72)).resize((30, 24), Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(part).astype(int) - arrays["pixels"])[2:-2, 2:-2].max() <= 2


def test_bytes_arrays_and_pil_images_give_equal_traces() -> None:
    model, content = make_model(), image_bytes(3, format="PNG")
    for one in (np.asarray(make_image(3)), make_image(3)):
        metadata, arrays = trace_image(model, one)
        other, more = trace_image(model, content)
        assert metadata == other
        assert all(np.array_equal(arrays[name], more[name]) for name in arrays)


def test_with_many_classes_the_lens_has_the_top_ones_of_every_state_and_the_target() -> None:
    model = make_model(classes=120)
    probabilities = class_probabilities(model, explain.logit_lens(model, images_of(model))[:, 0])
    last = int(probabilities.amax(dim=0).argmin())
    metadata, arrays = trace_image(model, image_bytes(3), last)
    first = {number for row in probabilities.argsort(dim=1, descending=True)[:, :5].tolist() for number in row}
    assert metadata["target"] == last
    assert last not in first
    assert arrays["lens_classes"].tolist() == sorted({*first, last})
    order = probabilities.argsort(dim=1, descending=True)
    assert metadata["ranks"] == [1 + row.index(last) for row in order.tolist()], "its rank among all of them"


@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}, {"pool": "map"}], ids=str)
def test_large_attention_is_sent_row_by_row(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(**changes)
    before, arrays = trace_image(model, image_bytes(3))
    monkeypatch.setattr(forward_trace, "MAX_ATTENTION_BYTES", arrays["attention"].nbytes - 1)
    after, fewer = trace_image(model, image_bytes(3))
    assert (before["full_attention"], after["full_attention"]) == (True, False)
    assert "attention" not in fewer
    assert_same(fewer["pooled_attention"], torch.from_numpy(arrays["pooled_attention"]))
    for query in (0, 4):
        metadata, rows = attention_rows(model, images_of(model), query)
        assert metadata == {"query": query}
        assert_same(rows["rows"], torch.from_numpy(arrays["attention"][:, :, query]))


def test_a_model_of_the_sigmoid_loss_has_sigmoid_probabilities() -> None:
    model = make_model()
    model.metadata = {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}}
    metadata, arrays = trace_image(model, image_bytes(3))
    assert metadata["sigmoid"] is True
    assert_same(arrays["probabilities"], torch.from_numpy(arrays["logits"]).sigmoid())


def test_in_half_precision_the_arrays_have_dtypes_of_the_browser() -> None:
    _, arrays = trace_image(make_model().bfloat16(), image_bytes(3))
    assert {str(values.dtype) for values in arrays.values()} == {"float32", "uint8", "int32"}


def test_a_flexible_model_is_traced_at_its_preprocessing_size() -> None:
    model = make_model(flexible=True)
    model.preprocess = vit_preprocess((18, 20))
    metadata, arrays = trace_image(model, image_bytes(3))
    assert (metadata["grid"], metadata["tokens"], arrays["attention"].shape) == ([3, 4], 13, (4, 3, 13, 13))
    assert arrays["position_norms"].shape == (13,)


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (3000, 2)])
def test_images_of_one_pixel_or_extreme_aspect_ratio_are_traced(size: tuple[int, int]) -> None:
    metadata, _ = trace_image(make_model(), make_image(1, size))
    left, top, right, bottom = metadata["preprocess"]["box"]
    assert metadata["image"] == {"width": size[1], "height": size[0]}
    assert 0 <= left < right <= size[1] + 1e-6
    assert 0 <= top < bottom <= size[0] + 1e-6


def test_an_image_that_is_too_large_or_damaged_is_refused() -> None:
    stream = io.BytesIO()
    Image.new("1", (10000, 10000)).save(stream, "PNG")
    with pytest.raises(VitrailError, match=r"^the image has .*67,108,864 .*allowed; try another one$"):
        trace_image(make_model(), stream.getvalue())
    with pytest.raises(VitrailError, match=r"^the image cannot be decoded: it is none of JPEG"):
        trace_image(make_model(), b"<html>")


def test_a_resnet_has_no_trace() -> None:
    model = build(variant("R50x1", image=64, classes=3, stages=(1,)))
    model.preprocess = vit_preprocess((64, 64))
    with pytest.raises(VitrailError, match="a ResNet has no attention"):
        trace_image(model, image_bytes(3))
