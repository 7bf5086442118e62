"""The views of the studio show the numbers of ``vitrail.explain``, for every kind of model."""

import json
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.data.images import image_bytes
from tests.studio.test_forward_trace import EVERY_KIND, assert_same, images_of, make_model
from vitrail import explain
from vitrail.errors import VitrailError
from vitrail.explain.ablate import ABLATION_MODES
from vitrail.explain.embeddings import position_kind
from vitrail.explain.saliency import SALIENCY_METHODS
from vitrail.models.vit import ViT
from vitrail.studio.forward_trace import attention_rows, trace_image
from vitrail.studio.views import BASELINES, ablation_effect, attention_pair, model_view, saliency_with_curves
from vitrail.tasks.registry import class_probabilities


@pytest.mark.parametrize("changes", EVERY_KIND, ids=str)
def test_the_breakdown_of_a_pair_gives_the_weight_of_attention(changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    images = images_of(model)
    weights = explain.attention(model, images)[:, 0]
    exists = weights.sum(dim=(0, 1, 3)) > 0  # dropped patches have none
    layers, heads, count, _ = weights.shape
    last = int(exists.nonzero()[-1])
    for layer, head, query, key in [(0, 0, 0, 1), (layers - 1, heads - 1, last, 0), (1, 1, 1, last), (1, 2, last, last)]:
        if not exists[query] or not exists[key]:
            with pytest.raises(VitrailError, match="drops the patch of"):
                attention_pair(model, images, layer, head, query, key)
            continue
        if weights[layer, head, query, key] == 0:
            with pytest.raises(VitrailError, match=f"key {key} is outside of the window of query {query} in layer {layer}"):
                attention_pair(model, images, layer, head, query, key)
            continue
        result = attention_pair(model, images, layer, head, query, key)
        assert result["weight"] == pytest.approx(weights[layer, head, query, key].item(), abs=1e-6)
        assert result["weight"] == pytest.approx(np.exp(result["score"] - result["max_score"]) / result["exp_sum"])
        scaled = (result["product"] + result["position_offset"]) * result["scale"]
        assert result["score"] == pytest.approx(scaled + result["bias"])
        assert result["product"] == pytest.approx(np.dot(result["q"], result["k"]))
        assert (result["position_offset"] != 0) == (model.config.position == "relative")
        prefix, relative = model.config.prefix_tokens, model.config.relative_bias
        has_axes = model.config.relative_axes and min(query, key) >= prefix
        assert (result["bias"] != 0) == (relative is not None or has_axes)
        assert len(result["q"]) == len(result["k"]) == model.config.width // heads
        json.dumps(result, allow_nan=False)
    assert count == model.config.tokens


@pytest.mark.parametrize(
    ("method", "changes"),
    [(method, {}) for method in (*SALIENCY_METHODS, *BASELINES)]
    + [
        pytest.param(method, changes, marks=pytest.mark.thorough)
        for method in ("rollout", "relevance")
        for changes in ({"pool": "gap", "registers": 1}, {"image": (32, 48), "patch": (8, 16)}, {"merge_tokens": 2})
    ],
    ids=str,
)
def test_a_map_and_its_curves_are_those_of_explain(method: str, changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    images, target = images_of(model), torch.tensor([2])
    metadata, arrays = saliency_with_curves(model, images, method, 2)
    grid = model.grid(images)
    expected = (
        explain.saliency(model, images, method, target) if method in SALIENCY_METHODS else BASELINES[method](images, grid)
    )
    curves = explain.faithfulness(model, images, expected, target)
    assert_same(arrays["map"], expected[0], rtol=1e-5, atol=1e-7)
    assert_same(arrays["deletion"], curves.deletion_curve[0])
    assert_same(arrays["insertion"], curves.insertion_curve[0])
    assert metadata == {
        "method": method,
        "target": 2,
        "deletion_auc": pytest.approx(curves.deletion_auc.item()),
        "insertion_auc": pytest.approx(curves.insertion_auc.item()),
    }
    assert saliency_with_curves(model, images, method)[0]["target"] == int(model(images).argmax())


def test_without_a_head_there_are_maps_by_attention_and_no_curves() -> None:
    model = make_model(classes=0)
    metadata, arrays = saliency_with_curves(model, images_of(model), "rollout")
    assert list(arrays) == ["map"]
    assert metadata == {"method": "rollout", "target": None, "deletion_auc": None, "insertion_auc": None}
    with pytest.raises(VitrailError, match="relevance needs a class"):
        saliency_with_curves(model, images_of(model), "relevance")
    with pytest.raises(VitrailError, match="predicts no class"):
        saliency_with_curves(model, images_of(model), "rollout", 1)
    with pytest.raises(VitrailError, match="predicts no class"):
        ablation_effect(model, images_of(model), [1], "mask")
    with pytest.raises(VitrailError, match="predicts no class"):
        trace_image(model, image_bytes(3), 0)


@pytest.mark.parametrize("mode", ABLATION_MODES)
def test_the_prediction_without_patches_is_that_of_ablate(mode: str) -> None:
    model = make_model(registers=1, classes=12)
    images, patches = images_of(model), [0, 2, 3]
    metadata = ablation_effect(model, images, patches, mode, seed=4)
    with torch.no_grad():
        before = class_probabilities(model, model(images)[0])
    after = class_probabilities(model, explain.ablate(model, images, patches, mode, seed=4)[0])
    assert [one["class"] for one in metadata["top"]] == torch.maximum(before, after).argsort(descending=True)[:10].tolist()
    for one in metadata["top"]:
        assert one["before"] == pytest.approx(before[one["class"]].item())
        assert one["after"] == pytest.approx(after[one["class"]].item())
        assert one["label"] == f"name {one['class']}"
    assert metadata["prediction"]["class"] == int(after.argmax())
    assert metadata["prediction"]["probability"] == pytest.approx(after.max().item())
    assert metadata["changed"] == (int(before.argmax()) != int(after.argmax()))
    assert metadata["tokens"] == (5 if mode == "drop" else 8)
    assert (metadata["permutation"] is not None) == (mode == "shuffle")
    assert mode != "shuffle" or sorted(metadata["permutation"]) == list(range(6))
    json.dumps(metadata, allow_nan=False)


@pytest.mark.parametrize("changes", EVERY_KIND, ids=str)
def test_the_model_view_is_that_of_explain(changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    batches = [vitrail.preprocess(model, [image_bytes(1), image_bytes(2)]), images_of(model)]
    metadata, arrays = model_view(model, batches)
    result = explain.head_statistics(model, iter(batches))
    assert_same(arrays["filters"], explain.patch_filters(model))
    for name, values in (("distance", result.distance), ("renormalised", result.renormalised), ("entropy", result.entropy)):
        assert_same(arrays[name], values)
    assert_same(arrays["head_similarity"], result.similarity)
    kind = position_kind(model.config)
    if kind == "none":
        assert "position_similarity" not in arrays
    else:
        assert_same(arrays["position_similarity"], explain.position_similarity(model))
    assert metadata == {
        "position": kind,
        "filters_of": "stem" if "hybrid" in changes else "patch",
        "images": 3,
        "stride": list(model.config.patch_stride),
    }
    assert sorted(model_view(model, [])[1]) == sorted({"filters", "position_similarity"} & set(arrays))


def test_nan_is_an_error_and_never_reaches_the_page() -> None:
    model = make_model()
    images = images_of(model)
    for weight in model.blocks[2].parameters():
        weight.data.fill_(float("nan"))
    with pytest.raises(VitrailError, match=r"not finite .*check the model's weights"):
        trace_image(model, image_bytes(3))
    with pytest.raises(VitrailError, match="not finite"):
        trace_image(make_model_without_head(model), image_bytes(3))
    for call in (
        lambda: attention_rows(model, images, 0),
        lambda: saliency_with_curves(model, images, "rollout"),
        lambda: attention_pair(model, images, 3, 0, 0, 1),
        lambda: ablation_effect(model, images, [0], "mask"),
        lambda: model_view(model, [images]),
    ):
        with pytest.raises(VitrailError, match="not finite"):
            call()


def make_model_without_head(model: ViT) -> ViT:
    bare = make_model(classes=0)
    weights = {name: weight for name, weight in model.state_dict().items() if not name.startswith("head.")}
    bare.load_state_dict(weights)
    return bare


def test_an_invalid_argument_is_refused_with_the_valid_range() -> None:
    model = make_model()
    images = images_of(model)
    for call, text in (
        (lambda: trace_image(model, image_bytes(3), 5), "class must be an index from 0 to 4, got 5"),
        (lambda: trace_image(model, image_bytes(3), -1), "class must be an index from 0 to 4, got -1"),
        (lambda: attention_rows(model, images, 7), "query must be an index from 0 to 6, got 7"),
        (lambda: attention_pair(model, images, 4, 0, 0, 0), "layer must be an index from 0 to 3, got 4"),
        (lambda: attention_pair(model, images, 0, 3, 0, 0), "head must be an index from 0 to 2, got 3"),
        (lambda: attention_pair(model, images, 0, 0, 7, 0), "query must be an index from 0 to 6, got 7"),
        (lambda: attention_pair(model, images, 0, 0, 0, -1), "key must be an index from 0 to 6, got -1"),
        (lambda: saliency_with_curves(model, images, "rolout"), "no method 'rolout'.*rollout"),
        (lambda: saliency_with_curves(model, images, "rollout", 5), "class must be an index from 0 to 4, got 5"),
        (lambda: ablation_effect(model, images, [1], "burn"), "by mask, shuffle or drop, got 'burn'"),
        (lambda: ablation_effect(model, images, [6], "mask"), "patches must be .* from 0 to 5, got 6"),
        (lambda: ablation_effect(model, images, list(range(6)), "drop"), "all 6 patches cannot be dropped"),
    ):
        with pytest.raises(VitrailError, match=text):
            call()
