"""Initialising from a checkpoint: identified by its values, complete below a new head, refused if it is not the recipe's."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import multi_label_vit, small_config, small_vit
from vitrail.errors import VitrailError
from vitrail.models.build import Model, build
from vitrail.models.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig
from vitrail.weights.init_from import init_model_from, weights_hash
from vitrail.weights.load import load
from vitrail.weights.save import save

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gap with registers": {"pool": "gap", "registers": 2, "gelu": "exact"},
    "map": {"pool": "map", "qk_norm": True},
    "sincos": {"position": "sincos2d", "layer_scale": 0.1},
    "rotary": {"position": "rotary", "class_token": True, "pool": "gap", "final_norm": "pooled"},
    "a table per layer": {"position": "learned2d", "position_at": "every-layer"},
    "post-norm with a hidden layer": {"norm": "post", "head": "mlp", "head_hidden": 7},
    "hybrid": {"stem": StemConfig(stages=(1,)), "patch": (2, 1), "image": (16, 12)},
}


def random_model(model_config: ModelConfig) -> Model:
    model = build(model_config).eval()
    for weight in model.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_starts_from_its_weights_and_a_zero_head(kind: str, tmp_path: Path) -> None:
    """At another image size too: below the head it equals what ``load`` returns."""
    source = save(random_model(small_config(**KINDS[kind])), tmp_path / "mine")
    stride = small_config(**KINDS[kind]).patch_stride
    loaded = load(source, image=(stride[0] * 4, stride[1] * 7))
    assert isinstance(loaded.config, ViTConfig)
    expected = replace(loaded.config, classes=9, head="linear", head_hidden=None, dropout=0.2)
    model = init_model_from(str(source), expected).eval()
    assert model.config == expected
    images = torch.randn(2, 3, *expected.image)
    assert_close(model.features(images), loaded.features(images), rtol=0, atol=0)
    assert not model(images).any()
    assert model(images).shape == (2, 9)


def test_a_resnet_starts_likewise(tmp_path: Path) -> None:
    source = save(random_model(ResNetConfig(stages=(1, 1), width=32, image=(32, 32), classes=3)), tmp_path / "mine")
    loaded = load(source, image=(40, 48))
    model = init_model_from(str(source), replace(loaded.config, classes=5)).eval()
    images = torch.randn(1, 3, 40, 48)
    assert_close(model.features(images), loaded.features(images), rtol=0, atol=0)
    assert not model(images).any()


def test_a_kept_head_predicts_as_before(tmp_path: Path) -> None:
    source = save(small_vit(head="mlp"), tmp_path / "mine")
    images = torch.randn(2, 3, 12, 15)
    assert_close(
        init_model_from(str(source), small_config(head="mlp"), keep_head=True).eval()(images),
        load(source)(images),
        rtol=0,
        atol=0,
    )
    with pytest.raises(VitrailError, match=r"do not fit the recipe's model: head.2.weight, head.2.bias; change only"):
        init_model_from(str(source), small_config(head="mlp", classes=6), keep_head=True)


def test_the_hash_depends_on_values_only_not_on_the_format(tmp_path: Path) -> None:
    model = small_vit(gelu="exact", patch=(6, 6), image=(12, 12))
    ours = weights_hash(save(model, tmp_path / "mine"))
    model.preprocess, model.class_names = None, ("a", "b", "c", "d", "e")  # they belong to the recipe, not to the weights
    assert weights_hash(save(model, tmp_path / "mine")) == ours
    assert weights_hash(save(model, tmp_path / "mine.safetensors", format="timm")) == ours
    model.get_parameter("blocks.1.mlp.up.bias").data[3] += 1e-6
    assert weights_hash(save(model, tmp_path / "mine")) != ours


def test_other_weights_than_the_recipes_are_refused_with_a_remedy(tmp_path: Path) -> None:
    source = str(save(small_vit(), tmp_path / "mine"))
    old_hash = weights_hash(source)
    save(small_vit(), source)
    new_hash = weights_hash(source)
    with pytest.raises(
        VitrailError, match=rf"other weights than .*{new_hash[:12]} instead of {old_hash[:12]}.*init_sha256={new_hash}"
    ):
        init_model_from(source, small_config(), old_hash)
    init_model_from(source, small_config(), new_hash)


def test_a_model_that_the_weights_do_not_fit_is_refused(tmp_path: Path) -> None:
    source = str(save(small_vit(), tmp_path / "mine"))
    with pytest.raises(VitrailError, match=r"do not fit the recipe's model: cls, .* and \d+ more; change only"):
        init_model_from(source, small_config(width=48))
    with pytest.raises(VitrailError, match=r"do not fit the recipe's model: blocks\.4\.\S+"):
        init_model_from(source, small_config(depth=5))


def test_training_metadata_is_saved_with_the_weights(tmp_path: Path) -> None:
    metadata = {"recipe": {"name": "tiny"}, "dataset": {"fingerprint": "abc"}, "metrics": {"step": 3, "test": {"top1": 0.75}}}
    model = small_vit()
    loaded = load(save(model, tmp_path / "mine", metadata=metadata))
    assert loaded.metadata == metadata
    assert {"recipe", "dataset", "metrics"} <= set(json.loads((tmp_path / "mine" / "vitrail.json").read_text()))
    # Only the caller knows whether it still describes these weights.
    assert load(save(loaded, tmp_path / "again")).metadata == {}
    assert load(tmp_path / "mine", classes=7).metadata == {}  # another head has other metrics
    tagger = multi_label_vit()
    copied = load(save(load(save(tagger, tmp_path / "tags")), tmp_path / "again"))  # what the outputs mean is saved in any case
    assert copied.metadata == tagger.metadata
    assert load(tmp_path / "again", image=(18, 20)).metadata == tagger.metadata
    assert load(tmp_path / "again", classes=7).metadata == {}
    converted = save(small_vit(gelu="exact"), tmp_path / "mine.safetensors", format="timm", metadata=metadata)
    assert load(converted).metadata == metadata


@pytest.mark.parametrize(
    "metadata", [{"score": {}}, {"metrics": 0.75}, {"metrics": {"top1": float("nan")}}, {"dataset": {"a": {1}}}]
)
def test_invalid_metadata_is_refused(metadata: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="metadata must be JSON objects named recipe, dataset, metrics"):
        save(small_vit(), tmp_path / "mine", metadata=metadata)
    assert not list(tmp_path.iterdir())


def test_malformed_training_metadata_is_ignored(tmp_path: Path) -> None:
    folder = save(small_vit(), tmp_path / "mine")
    content = json.loads((folder / "vitrail.json").read_text())
    (folder / "vitrail.json").write_text(json.dumps({**content, "metrics": [1, 2], "recipe": {"name": 5}, "dataset": "x"}))
    assert load(folder).metadata == {"recipe": {"name": 5}}
